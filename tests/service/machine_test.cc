// What seined makes of limits that it is given, what it says of folders of a network, and idle clients' pings.
#include "service/process/machine.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "kernels/backend.h"
#include "service/server.h"
#include "service/snapshots/files/far_folder.h"

namespace seine {
namespace {

constexpr int64_t kMiB = 1 << 20;

MachineLimits Allowed(int64_t bytes) {
  MachineLimits machine;
  machine.memory_bytes = bytes;
  machine.memory_why = "/sys/fs/cgroup/memory.max";
  return machine;
}

// What the process may hold, by the words of docs/server.md: the limit, a tenth, and the constant part.
TEST(Machine, TheDefaultMemoryLimitFits) {
  CoreOptions options;
  EXPECT_EQ(MemoryLimitWithin(Allowed(0), 200 * kMiB, options), 0);
  for (int64_t bytes : {1024 * kMiB, 1500 * kMiB + 77, 8192 * kMiB, 65536 * kMiB}) {
    for (int64_t message : {kMiB, 64 * kMiB, 100 * kMiB}) {
      options.max_message_bytes = message;
      options.memory_limit_bytes = MemoryLimitWithin(Allowed(bytes), 200 * kMiB, options);
      Core core(options, MakeCpuBackend(1));
      core.base_bytes = 200 * kMiB;
      const int64_t most = options.memory_limit_bytes * 11 / 10 + core.ConstantBytes();
      EXPECT_LE(most, bytes);
      EXPECT_GT(most, bytes - 4 * kMiB) << "nearly all of it is used";
      EXPECT_EQ(MoreThanAllowed(Allowed(bytes), options.memory_limit_bytes, core.ConstantBytes()), "");
      EXPECT_EQ(ConstantBytes(200 * kMiB, options), core.ConstantBytes());
    }
  }
}

TEST(Machine, ALimitAboveTheGroupsIsTold) {
  CoreOptions options;
  options.memory_limit_bytes = MemoryLimitWithin(Allowed(64 * kMiB), 200 * kMiB, options);
  EXPECT_EQ(options.memory_limit_bytes, 8 * kMiB) << "some of it, however small it is";
  for (int64_t limit : {options.memory_limit_bytes, 1024 * kMiB, 2048 * kMiB}) {
    options.memory_limit_bytes = limit;
    Core core(options, MakeCpuBackend(1));
    const std::string told = MoreThanAllowed(Allowed(1024 * kMiB), limit, core.ConstantBytes());
    EXPECT_EQ(told.empty(), limit < 1024 * kMiB) << told;
    EXPECT_EQ(MoreThanAllowed(Allowed(0), limit, core.ConstantBytes()), "");
    EXPECT_EQ(told.find("of /sys/fs/cgroup/memory.max: the system may kill it") != std::string::npos, !told.empty());
  }
}

TEST(Machine, ALimitOfAddressSpaceIsOneOfMemory) {
  const MachineLimits none = WithinAddressSpace(Allowed(0), 0, 90 * kMiB, 20 * kMiB);
  EXPECT_EQ(none.memory_bytes, 0);
  const MachineLimits tight = WithinAddressSpace(Allowed(0), 1000 * kMiB, 90 * kMiB, 20 * kMiB);
  EXPECT_EQ(tight.memory_bytes, (1000 - 70 - 40 * 2 - 2 * 64) * kMiB);
  EXPECT_EQ(tight.memory_why, kAddressSpace);
  MachineLimits large;
  large.processors = 64;  // more threads and arenas
  EXPECT_EQ(WithinAddressSpace(large, 10000 * kMiB, 90 * kMiB, 20 * kMiB).memory_bytes,
            (10000 - 70 - 544 * 2 - 32 * 64) * kMiB);
  EXPECT_EQ(WithinAddressSpace(Allowed(500 * kMiB), 1000 * kMiB, 90 * kMiB, 20 * kMiB).memory_bytes, 500 * kMiB);
  EXPECT_EQ(WithinAddressSpace(Allowed(5000 * kMiB), 1000 * kMiB, 90 * kMiB, 20 * kMiB).memory_why, kAddressSpace);
  EXPECT_EQ(WithinAddressSpace(Allowed(0), 10 * kMiB, 90 * kMiB, 20 * kMiB).memory_bytes, kMiB);
  const std::string told = MoreThanAllowed(tight, 1024 * kMiB, 400 * kMiB);
  EXPECT_NE(told.find("ulimit -v"), std::string::npos) << told;
  EXPECT_NE(told.find("server.max_message"), std::string::npos) << told;
}

TEST(Machine, IsDescribed) {
  MachineLimits machine = Allowed(1024 * kMiB);
  machine.processors_why = "/sys/fs/cgroup/cpu.max";
  EXPECT_EQ(DescribeMachine(machine),
            "machine: 1 processor (/sys/fs/cgroup/cpu.max), at most 1GiB of memory (/sys/fs/cgroup/memory.max)");
  machine = {};
  machine.processors = 3;
  machine.processors_why = "affinity";
  EXPECT_EQ(DescribeMachine(machine), "machine: 3 processors (affinity), no limit of memory");
}

// No network file system can be mounted here: statfs's answer is put in its place. Numbers: man 2 statfs.
TEST(FarFolder, IsToldByTheTypeOfItsFileSystem) {
  const auto line = [](int64_t type) { return FarFolder("snapshots.dir", "/s", [=](auto&) { return type; }); };
  for (const auto& [type, name] : {std::pair<int64_t, const char*>{0x6969, "nfs"},
                                   {0xff534d42, "cifs"},
                                   {static_cast<int32_t>(0xff534d42), "cifs"},
                                   {0x65735546, "fuse"},
                                   {0x01021997, "9p"}}) {
    EXPECT_EQ(line(type).find(std::string("snapshots.dir: /s is on ") + name), 0u) << line(type);
  }
  for (int64_t type : std::initializer_list<int64_t>{0xef53, 0x58465342, 0x9123683e, 0x01021994, 0x794c7630, 0})
    EXPECT_EQ(line(type), "");
  EXPECT_EQ(FarFolder("idle.dir", "", [](auto&) { return 0x6969; }), "");
  EXPECT_EQ(FarFolder("idle.dir", "/nowhere/at/all"), "");
  EXPECT_EQ(FarFolder("idle.dir", "/proc"), "");
}

// A client that pings every `ping` and makes no call, over TCP as keep-alive is for.
grpc_connectivity_state StateAfter(const std::string& address, int ping_ms, std::chrono::milliseconds time) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, ping_ms);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(5)))
    return GRPC_CHANNEL_SHUTDOWN;
  channel->WaitForStateChange(GRPC_CHANNEL_READY, std::chrono::system_clock::now() + time);
  return channel->GetState(false);
}

// How many of so many pings at once the server answers; gRPC's own client keeps a second between pings, whatever it is
// told. None is read before all are sent.
size_t AnswersToPings(int port, size_t pings) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval most = {5, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most));
  std::string sent = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string("\0\0\0\4\0\0\0\0\0", 9), said;
  for (size_t i = 0; i < pings; ++i) sent += std::string("\0\0\10\6\0\0\0\0\0abcdefgh", 17);
  const std::string answer("\0\0\10\6\1\0\0\0\0abcdefgh", 17);
  size_t answers = 0, from = 0;
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0 &&
      send(fd, sent.data(), sent.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(sent.size())) {
    char bytes[4096];
    for (ssize_t count; answers < pings && (count = recv(fd, bytes, sizeof(bytes), 0)) > 0;) {
      said.append(bytes, static_cast<size_t>(count));
      for (size_t at; (at = said.find(answer, from)) != std::string::npos; ++answers) from = at + answer.size();
    }
  }
  close(fd);
  return answers;
}

// `seine-soak` has floods of them.
TEST(KeepAlive, AnIdleClientStaysAndEveryPingIsAnswered) {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.core.threads = 1;
  auto server = Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string& address = (*server)->address();
  EXPECT_EQ(AnswersToPings(std::stoi(address.substr(address.rfind(':') + 1)), 50'000), 50'000);
  EXPECT_EQ(StateAfter(address, 1300, std::chrono::milliseconds(9000)), GRPC_CHANNEL_READY);
  (*server)->Shutdown(absl::ZeroDuration());
}

}  // namespace
}  // namespace seine
