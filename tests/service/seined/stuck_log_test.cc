// The program seined, where nobody reads its log: calls, endings and the watchdog do not wait for it.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "index/snapshot/snapshot_file.h"
#include "service/log.h"
#include "service/snapshots/files/snapshot_folder.h"
#include "tests/service/metrics/http_client.h"
#include "tests/service/seined/seined_process.h"

namespace seine::test {
namespace {

constexpr int kIndexes = 3'000;  // a line for each that comes, and one for each that goes

// What stderr may be: a pipe of some bytes, a socket as journald's, or a terminal as in a `screen` that is scrolled.
enum Kind { kSocket = 0, kTerminal = 1, kSmallPipe = 4096, kPipe = 65536 };

// Nonblocking where it is read.
class Pipe {
 public:
  explicit Pipe(int kind) {
    if (kind == kSocket) {
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0);
    } else if (kind == kTerminal) {
      ends_[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
      EXPECT_EQ(grantpt(ends_[0]) | unlockpt(ends_[0]), 0);
      ends_[1] = open(ptsname(ends_[0]), O_RDWR | O_NOCTTY | O_CLOEXEC);
    } else {
      EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0);
      EXPECT_EQ(fcntl(ends_[1], F_SETPIPE_SZ, kind), kind);
    }
    EXPECT_GE(ends_[1], 0);
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  ~Pipe() {
    close(ends_[0]);
    close(ends_[1]);
  }
  int end_to_write() const { return ends_[1]; }
  // What comes until `text` has come, within ten seconds.
  std::string ReadUntil(const std::string& text) const {
    std::string all;
    for (int i = 0; i < 1000 && all.find(text) == std::string::npos; ++i) {
      char bytes[65536];
      const ssize_t got = read(ends_[0], bytes, sizeof(bytes));
      if (got > 0) all.append(bytes, got);
      if (got <= 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return all;
  }

 private:
  int ends_[2] = {-1, -1};
};

int FreePort() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&at), size), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size);
  close(fd);
  return ntohs(at.sin_port);
}

// Threads of a child that do not run, as those that wait for each other: the ones of that name. Reap() waits for them
// to be gone with their process.
class FrozenThreads {
 public:
  FrozenThreads(pid_t process, const std::string& name) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task")) {
      std::string called;
      std::getline(std::ifstream(entry.path() / "comm"), called);
      if (called != name) continue;
      const pid_t thread = std::stoi(entry.path().filename());
      EXPECT_EQ(ptrace(PTRACE_SEIZE, thread, nullptr, nullptr), 0) << strerror(errno);
      EXPECT_EQ(ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr), 0) << strerror(errno);
      EXPECT_EQ(waitpid(thread, nullptr, __WALL), thread) << strerror(errno);
      threads_.push_back(thread);
    }
  }
  size_t size() const { return threads_.size(); }
  void Reap() const {
    for (const pid_t thread : threads_) EXPECT_EQ(waitpid(thread, nullptr, __WALL), thread) << strerror(errno);
  }

 private:
  std::vector<pid_t> threads_;
};

class StuckLogTest : public SeinedTest {
 protected:
  static double Seconds(std::chrono::steady_clock::time_point since) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
  }
  std::string metrics() const { return "127.0.0.1:" + std::to_string(port_); }
  std::vector<std::string> Flags() const {
    return {"--listen",
            socket(),
            "--threads",
            "1",
            "--metrics-listen",
            metrics(),
            "--snapshots-dir",
            dir_.path + "/kept",
            "--grace",
            "2",
            "--snapshots-at-exit",
            "--watchdog",
            "4"};
  }
  bool WaitUntilReady() const {
    for (int i = 0; i < 1000; ++i) {
      if (Http(metrics(), "GET", "/readyz").code == 200) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  int64_t Lost() const {
    std::smatch match;
    const std::string text = Http(metrics(), "GET", "/metrics").body;
    if (!std::regex_search(text, match, std::regex("\nseine_log_lines_lost_total ([0-9.e+]+)"))) return -1;
    return static_cast<int64_t>(std::stod(match[1]));
  }
  // A sequence that an end has to write, then as many lines as an hour may have.
  static void LogMuch(const Stubs& stubs) {
    EXPECT_TRUE(Creates(stubs, Spec("kept")));
    v1::CreateSequenceRequest create;
    v1::CreateSequenceResponse created;
    create.set_index("kept");
    EXPECT_TRUE(Call(*stubs.sequence, &v1::SequenceService::Stub::CreateSequence, create, &created).ok());
    v1::AppendRequest append;
    v1::AppendResponse appended;
    *append.mutable_item() = Item(created.handle(), 0, 0, 100);
    EXPECT_TRUE(Call(*stubs.retrieval, &v1::RetrievalService::Stub::Append, append, &appended).ok());
    v1::DeleteIndexRequest remove;
    v1::DeleteIndexResponse removed;
    remove.set_name("passing");
    double slowest = 0;
    for (int i = 0; i < kIndexes; ++i) {
      const auto start = std::chrono::steady_clock::now();
      ASSERT_TRUE(Creates(stubs, Spec("passing")));
      ASSERT_TRUE(Call(*stubs.index, &v1::IndexService::Stub::DeleteIndex, remove, &removed).ok());
      EXPECT_FALSE(Holds(stubs, "passing"));  // a line that the limit admits, now and then
      slowest = std::max(slowest, Seconds(start));
    }
    EXPECT_LT(slowest, 2.0);
  }

  const int port_ = FreePort();
};

TEST_F(StuckLogTest, CallsAndEndingsDoNotWaitForWhoeverReadsStderr) {
  for (const Kind kind : {kSmallPipe, kPipe, kSocket, kTerminal}) {
    SCOPED_TRACE(kind);
    const Pipe pipe(kind);
    Process seined(dir_.path, Flags(), {}, "", false, pipe.end_to_write());
    ASSERT_TRUE(WaitUntilReady());
    LogMuch(Stubs(socket()));
    constexpr int kTaken = 1000;  // lines, at most: 64 KiB of them
    EXPECT_GE(Lost(), 2 * kIndexes - kLogLines - kTaken);
    const auto start = std::chrono::steady_clock::now();
    seined.Signal(SIGTERM);
    EXPECT_EQ(seined.Wait(), 0);
    EXPECT_LT(Seconds(start), 3.0);
    const auto files = SnapshotsIn(dir_.path + "/kept/own/at-exit/index-kept");
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_EQ(files->size(), 1u);
    std::filesystem::remove_all(dir_.path + "/kept");
  }
}

TEST_F(StuckLogTest, TheWatchdogDoesNotWaitForItEither) {
  const Pipe pipe(kSmallPipe);
  Process seined(dir_.path, Flags(), {}, "", false, pipe.end_to_write());
  ASSERT_TRUE(WaitUntilReady());
  LogMuch(Stubs(socket()));
  const auto start = std::chrono::steady_clock::now();
  const FrozenThreads front(seined.pid(), "front");
  ASSERT_EQ(front.size(), 2u);
  front.Reap();
  EXPECT_EQ(seined.Wait(), 4);  // exit code: no answer to its own calls
  EXPECT_GT(Seconds(start), 2.0);
  EXPECT_LT(Seconds(start), 12.0);  // --watchdog 4, and a second for the last lines
}

TEST_F(StuckLogTest, LostLinesAreSaidOnceStderrIsReadAgain) {
  const Pipe pipe(kSmallPipe);
  Process seined(dir_.path, Flags(), {}, "", false, pipe.end_to_write());
  ASSERT_TRUE(WaitUntilReady());
  LogMuch(Stubs(socket()));
  const int64_t lost = Lost();
  EXPECT_GT(lost, 0);
  const std::string text = pipe.ReadUntil("lines are lost");
  EXPECT_NE(text.find(" warning log: " + std::to_string(lost) + " lines are lost, for stderr did not take them"),
            std::string::npos)
      << lost << "\n"
      << text.substr(text.size() - std::min<size_t>(text.size(), 500));
  seined.Signal(SIGTERM);
  const std::string rest = pipe.ReadUntil("ended after ");
  EXPECT_NE(rest.find("SIGTERM: ending"), std::string::npos);
  EXPECT_NE(rest.find("ended after "), std::string::npos) << "an end writes what waits";
  EXPECT_EQ(rest.find("lines are lost"), std::string::npos);
  EXPECT_EQ(seined.Wait(), 0);
}

TEST_F(StuckLogTest, AnErrorAtTheStartIsNotWaitedForEither) {
  const Pipe pipe(kSmallPipe);
  ASSERT_EQ(write(pipe.end_to_write(), std::string(4096, '\n').data(), 4096), 4096);
  const auto start = std::chrono::steady_clock::now();
  Process seined(dir_.path, {"--listen", "/nowhere/at/all/s.sock"}, {}, "", false, pipe.end_to_write());
  EXPECT_EQ(seined.Wait(), 1);
  EXPECT_LT(Seconds(start), 5.0);
}

}  // namespace
}  // namespace seine::test
