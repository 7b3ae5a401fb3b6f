// The listening socket: whose it is, what two starts at once make of it, and what happens without descriptors.
#include "service/transport/sockets/listener.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "service/transport/sockets/connections.h"
#include "tests/default_folder.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

class ListenerTest : public ::testing::Test {
 protected:
  Address At(const std::string& name) const { return *ParseAddress("unix:" + dir_.path + "/" + name); }
  // A connection to a socket of this folder, or -1.
  int Connect(const std::string& name) const {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = dir_.path + "/" + name;
    memcpy(address.sun_path, path.data(), path.size());
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
    close(fd);
    return -1;
  }
  bool Exists(const std::string& name) const { return std::filesystem::exists(dir_.path + "/" + name); }
  TempDir dir_;
};

// /tmp is everybody's: the folder there is made, and is refused where another could have made it.
TEST_F(ListenerTest, TheDefaultFolderIsItsUsersAlone) {
  const DefaultFolder folder;
  const std::string path = folder.path();
  const Address address = *ParseAddress("unix:" + path + "/seine.sock");
  for (const char* what : {"made", "there"}) {
    EXPECT_TRUE(Listener::Open(address).ok()) << what;
    EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms::owner_all) << what;
  }
  ASSERT_EQ(chmod(path.c_str(), 0777), 0);
  EXPECT_EQ(Listener::Open(address).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Listener::Open(*ParseAddress("unix:" + path + "/stated.sock")).ok());  // whoever names it means it
  std::filesystem::remove_all(path);
  ASSERT_EQ(symlink(dir_.path.c_str(), path.c_str()), 0);
  EXPECT_EQ(Listener::Open(address).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ListenerTest, TakesWhatIsFreeAndLeavesNothing) {
  EXPECT_TRUE(Listener::Open(At("fresh")).ok());
  EXPECT_FALSE(Exists("fresh"));
  EXPECT_FALSE(Exists("fresh.lock"));
  std::ofstream(dir_.path + "/file") << "not a socket";
  EXPECT_EQ(Listener::Open(At("file")).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Exists("file"));
  EXPECT_EQ(Listener::Open(At("no/such")).status().code(), absl::StatusCode::kFailedPrecondition);
}

// The socket of a killed server stands there, and many start at once: one has it.
TEST_F(ListenerTest, OfStartsAtOnceOnAStaleSocketOneWins) {
  for (int round = 0; round < 20; ++round) {
    const int dead = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = dir_.path + "/raced";
    memcpy(address.sun_path, path.data(), path.size());
    ASSERT_EQ(bind(dead, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    close(dead);  // its file stays
    std::atomic<int> won{0}, others{0};
    std::mutex mutex;
    std::vector<std::unique_ptr<Listener>> winners;
    std::vector<std::thread> starts;
    for (int i = 0; i < 6; ++i) {
      starts.emplace_back([&] {
        auto listener = Listener::Open(At("raced"));
        (listener.ok() ? won : others).fetch_add(1);
        if (!listener.ok()) {
          EXPECT_EQ(listener.status().code(), absl::StatusCode::kAlreadyExists) << listener.status();
          return;
        }
        const std::lock_guard<std::mutex> lock(mutex);
        winners.push_back(*std::move(listener));
      });
    }
    for (auto& start : starts) start.join();
    EXPECT_EQ(won.load(), 1);
    EXPECT_EQ(others.load(), 5);
    const int fd = Connect("raced");
    EXPECT_GE(fd, 0);
    close(fd);
  }
}

TEST_F(ListenerTest, AnothersSocketStaysAtTheEnd) {
  auto first = Listener::Open(At("name"));
  ASSERT_TRUE(first.ok());
  std::filesystem::rename(dir_.path + "/name", dir_.path + "/old");
  std::filesystem::remove(dir_.path + "/name.lock");
  auto second = Listener::Open(At("name"));  // as after an operator's clean-up
  ASSERT_TRUE(second.ok()) << second.status();
  first->reset();
  EXPECT_TRUE(Exists("name"));
  EXPECT_GE(Connect("name"), 0);
}

TEST_F(ListenerTest, ConnectionsBeyondTheLimitAreToldSoAndLaterOnesServed) {
  Connections connections;
  auto listener = Listener::Open(At("full"));
  ASSERT_TRUE(listener.ok());
  constexpr int kRoom = 6;  // both ends of three connections
  DescriptorLimit limit(OpenDescriptors() + kRoom);
  std::mutex mutex;
  std::vector<int> taken;
  (*listener)->Start(
      [&](int, int fd) {
        const std::lock_guard<std::mutex> lock(mutex);
        taken.push_back(fd);
      },
      &limit, &connections);
  std::vector<int> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(Connect("full"));
  while ((*listener)->accepted() + (*listener)->refused() < 20) std::this_thread::yield();
  EXPECT_GT((*listener)->refused(), 0);
  char reply[256];
  const ssize_t count = read(clients.back(), reply, sizeof(reply));
  ASSERT_GT(count, 26);
  EXPECT_EQ(reply[9 + 3], 7) << "a GOAWAY after the SETTINGS";
  EXPECT_NE(std::string(reply, count).find("try again later"), std::string::npos);
  const int64_t accepted = (*listener)->accepted();
  for (const int fd : clients) close(fd);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    for (const int fd : taken) close(fd);
  }
  for (int tries = 0; tries < 1000 && (*listener)->accepted() == accepted; ++tries) {
    const int fd = Connect("full");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    close(fd);
  }
  EXPECT_GT((*listener)->accepted(), accepted);
}

// The kernel asks after a silent host: HTTP/2's pings would end a client that waits without gRPC's help.
TEST_F(ListenerTest, SilentHostsAreProbed) {
  Connections connections;
  auto listener = Listener::Open(*ParseAddress("127.0.0.1:0"));
  ASSERT_TRUE(listener.ok()) << listener.status();
  DescriptorLimit limit;
  std::promise<int> taken;
  (*listener)->Start([&](int, int fd) { taken.set_value(fd); }, &limit, &connections);
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>((*listener)->address().port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const int served = taken.get_future().get();
  const auto option = [served](int level, int name) {
    int value = 0;
    socklen_t size = sizeof(value);
    EXPECT_EQ(getsockopt(served, level, name, &value, &size), 0);
    return value;
  };
  EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_LE(option(IPPROTO_TCP, TCP_KEEPIDLE) + option(IPPROTO_TCP, TCP_KEEPINTVL) * option(IPPROTO_TCP, TCP_KEEPCNT),
            18);
  EXPECT_LE(option(IPPROTO_TCP, TCP_USER_TIMEOUT), 18000);
  close(client);
  close(served);
}

}  // namespace
}  // namespace seine::test
