// Being supervised: what a service manager is told, and the end of a server that no longer answers.
#include "service/process/watchdog.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "service/process/notify.h"
#include "service/server.h"
#include "tests/temp_folder.h"

namespace seine::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The socket of a service manager.
class Manager {
 public:
  explicit Manager(const std::string& path) : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un at = {};
    at.sun_family = AF_UNIX;
    std::strncpy(at.sun_path, path.c_str(), sizeof(at.sun_path) - 1);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
    const timeval patience = {10, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setenv("NOTIFY_SOCKET", path.c_str(), 1);
  }
  ~Manager() {
    close(fd_);
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) unsetenv(name);
  }
  // The next message; empty where none comes.
  std::string Next() {
    char text[512];
    const ssize_t size = recv(fd_, text, sizeof(text), 0);
    return size > 0 ? std::string(text, size) : "";
  }

 private:
  const int fd_;
};

class NotifierTest : public ::testing::Test {
 protected:
  TempFolder folder_;
};

TEST_F(NotifierTest, TellsTheManagerAndReadsWhatItAsksFor) {
  Manager manager(folder_.Path("notify"));
  setenv("WATCHDOG_USEC", "2500000", 1);
  setenv("WATCHDOG_PID", std::to_string(getpid()).c_str(), 1);
  const Notifier notifier;
  EXPECT_TRUE(notifier.managed());
  EXPECT_EQ(notifier.watchdog(), absl::Milliseconds(2500));
  ASSERT_TRUE(notifier.Notify("READY=1\nSTATUS=here").ok());
  EXPECT_EQ(manager.Next(), "READY=1\nSTATUS=here");
  ASSERT_TRUE(notifier.TellReloading().ok());
  EXPECT_EQ(manager.Next().rfind("RELOADING=1\nMONOTONIC_USEC=", 0), 0u);
}

TEST_F(NotifierTest, AWatchdogOfAnotherProcessIsNotOurs) {
  Manager manager(folder_.Path("notify"));
  setenv("WATCHDOG_USEC", "2500000", 1);
  setenv("WATCHDOG_PID", "1", 1);
  EXPECT_EQ(Notifier().watchdog(), absl::ZeroDuration());
  setenv("WATCHDOG_PID", "", 1);
  setenv("WATCHDOG_USEC", "soon", 1);
  EXPECT_EQ(Notifier().watchdog(), absl::ZeroDuration());
}

TEST_F(NotifierTest, WithoutAManagerNothingIsTold) {
  unsetenv("NOTIFY_SOCKET");
  const Notifier notifier;
  EXPECT_FALSE(notifier.managed());
  EXPECT_TRUE(notifier.Notify("READY=1").ok());
}

TEST_F(NotifierTest, AManagerThatIsNotThereIsNamed) {
  for (const std::string& socket : {folder_.Path("nobody"), std::string("nonsense"), std::string(200, '/')}) {
    setenv("NOTIFY_SOCKET", socket.c_str(), 1);
    const Notifier notifier;
    const absl::Status told = notifier.Notify("READY=1");
    EXPECT_EQ(told.code(), absl::StatusCode::kUnavailable) << socket;
    EXPECT_NE(told.message().find("NOTIFY_SOCKET"), absl::string_view::npos) << told;
  }
  unsetenv("NOTIFY_SOCKET");
}

TEST(Watchdog, SilenceIsNoticedOnceAndOnlyAfterTheLimit) {
  std::promise<void> let_go, noticed;
  std::shared_future<void> end = let_go.get_future().share();
  std::atomic<int> silences{0}, answers{0};
  const auto begin = std::chrono::steady_clock::now();
  Watchdog watchdog({absl::Milliseconds(320), [&] { return end.wait(), false; }, [&] { ++answers; },
                     [&] {
                       ++silences;
                       noticed.set_value();
                     }});
  ASSERT_EQ(noticed.get_future().wait_for(seconds(20)), std::future_status::ready);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(310));
  let_go.set_value();  // the call comes back failed: that is no answer
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(silences, 1);
  EXPECT_EQ(answers, 0);
}

TEST(Watchdog, CallsThatFailAreSilenceAndThoseThatComeBackAreNot) {
  std::atomic<bool> well{true};
  std::atomic<int> answers{0};
  std::promise<void> noticed;
  auto silent = noticed.get_future();
  Watchdog watchdog(
      {absl::Milliseconds(160), [&] { return well.load(); }, [&] { ++answers; }, [&] { noticed.set_value(); }});
  // Far longer than the limit; a machine that holds both threads up for all of it does not count as silence either.
  while (answers < 60) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(silent.wait_for(milliseconds(0)), std::future_status::timeout);
  well = false;
  EXPECT_EQ(silent.wait_for(seconds(20)), std::future_status::ready);
}

TEST(Watchdog, AServerAnswersItsOwnCalls) {
  const TempFolder folder;
  ServerOptions options;
  options.listen = "unix:" + folder.Path("s.sock");
  for (const bool polling : {false, true}) {
    options.polling = polling;
    auto server = Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    for (int i = 0; i < 20; ++i) EXPECT_TRUE((*server)->Answers(absl::Seconds(10)));
  }
}

// On a channel to a gRPC server that has shut down gRPC 1.51 calls through a null pointer.
TEST(Watchdog, AServerThatShutsDownIsAskedUntilItIsGone) {
  const TempFolder folder;
  ServerOptions options;
  options.listen = "unix:" + folder.Path("s.sock");
  for (int round = 0; round < 6; ++round) {
    options.polling = round % 2 == 1;
    auto server = Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    std::atomic<int> answers{0};
    std::atomic<bool> ended{false};
    std::vector<std::thread> asking;
    for (int i = 0; i < 3; ++i) {
      asking.emplace_back([&] {
        for (bool last = false; !last;) {
          last = ended;  // one more, once it has
          const bool answered = (*server)->Answers(absl::Seconds(30));
          if (last) {
            EXPECT_FALSE(answered);
          }
          answers += answered ? 1 : 0;
        }
      });
    }
    while (answers < 30 * (round + 1)) std::this_thread::sleep_for(milliseconds(1));
    (*server)->Shutdown(absl::ZeroDuration());
    ended = true;
    for (std::thread& thread : asking) thread.join();
  }
}

}  // namespace
}  // namespace seine::test
