// Turns at reading: what gRPC's reader sees of a connection whose client never pauses, and of one that does.
#include "service/transport/sockets/read_turns.h"

#include <dlfcn.h>
#include <errno.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace seine::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

class ReadTurnsTest : public testing::Test {
 protected:
  ReadTurnsTest() {
    const char* const engine = getenv("GRPC_POLL_STRATEGY");
    if (engine != nullptr) engine_ = engine;
    setenv("GRPC_POLL_STRATEGY", "poll", /*overwrite=*/1);
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends_.data()), 0);
  }
  ~ReadTurnsTest() override {
    stop_ = true;
    if (writer_.joinable()) writer_.join();
    for (const int end : ends_) close(end);
    engine_.empty() ? unsetenv("GRPC_POLL_STRATEGY") : setenv("GRPC_POLL_STRATEGY", engine_.c_str(), 1);
  }
  // Writes 0, 1, 2 ... as bytes, as fast as they are read.
  void Flood() {
    writer_ = std::thread([this] {
      std::vector<uint8_t> some(1 << 16);
      for (uint8_t next = 0; !stop_;) {
        for (size_t i = 0; i < some.size(); ++i) some[i] = static_cast<uint8_t>(next + i);
        const ssize_t sent = write(ends_[1], some.data(), some.size());
        if (sent > 0) next = static_cast<uint8_t>(next + sent);
        if (sent < 0) Wait(ends_[1], POLLOUT, 10);
      }
    });
    Wait(ends_[0], POLLIN, 1000);
  }
  static void Wait(int end, int16_t what, int milliseconds) {
    pollfd waiting{end, what, 0};
    poll(&waiting, 1, milliseconds);
  }
  // One read into buffers of several sizes, as gRPC makes it. Checks that bytes come in their order.
  ssize_t Read(bool checks = true) {
    iovec parts[3] = {
        {bytes_.data(), 1000}, {bytes_.data() + 1000, 8192}, {bytes_.data() + 9192, bytes_.size() - 9192}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 3;
    const ssize_t got = recvmsg(ends_[0], &message, 0);
    EXPECT_EQ(message.msg_iovlen, 3u);
    EXPECT_EQ(parts[0].iov_len + parts[1].iov_len + parts[2].iov_len, bytes_.size());
    for (ssize_t i = 0; checks && i < got; ++i) {
      if (bytes_[i] == next_++) continue;
      ADD_FAILURE() << "byte " << i << " of " << got;
      break;
    }
    return got;
  }
  // Spends what acting on so many bytes of small frames takes.
  static void Act(ssize_t bytes, double ns_a_byte) {
    const auto end =
        Clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(static_cast<double>(bytes) * ns_a_byte));
    while (Clock::now() < end) continue;
  }

  std::array<int, 2> ends_{};
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(1 << 18);

 private:
  std::string engine_;
  uint8_t next_ = 0;
  std::atomic<bool> stop_{false};
  std::thread writer_;
};

// libgrpc.so is to call ours, not libc's.
TEST_F(ReadTurnsTest, LibrariesFindTheProgramsOwnCalls) {
  Dl_info ours{}, found{};
  ASSERT_NE(dladdr(reinterpret_cast<const void*>(&TakeTurns), &ours), 0);
  for (const char* name : {"recvmsg", "poll"}) {
    ASSERT_NE(dladdr(dlsym(RTLD_DEFAULT, name), &found), 0) << name;
    EXPECT_STREQ(found.dli_fname, ours.dli_fname) << name;
  }
}

TEST_F(ReadTurnsTest, AFloodIsFoundEmptyAgainAndAgain) {
  TakeTurns(ends_[0]);
  Flood();
  int turns = 0;
  int64_t in_turn = 0, most = 0, all = 0;
  const auto end = Clock::now() + std::chrono::milliseconds(500);
  for (int empty = 0; Clock::now() < end;) {
    const ssize_t got = Read();
    if (got > 0) {
      Act(got, /*ns_a_byte=*/20);
      in_turn += got;
      all += got;
      empty = 0;
      continue;
    }
    ASSERT_EQ(errno, EAGAIN);
    if (++empty < 2) continue;  // gRPC comes again at once where it had read something
    if (++turns > 10) most = std::max(most, in_turn);
    in_turn = 0;
    empty = 0;
    Wait(ends_[0], POLLIN, 1000);
  }
  EXPECT_GT(turns, 100);
  EXPECT_GT(all, 1 << 20);
  EXPECT_LT(most, 64 << 10);  // 1.3 ms to act on; most turns are a twentieth of it, where nothing interrupts them
}

TEST_F(ReadTurnsTest, LongMessagesAreReadInLongPieces) {
  TakeTurns(ends_[0]);
  Flood();
  int64_t all = 0;
  int reads = 0;
  const auto end = Clock::now() + std::chrono::seconds(5);
  while (all < 32 << 20 && Clock::now() < end) {
    const ssize_t got = Read(/*checks=*/false);  // which takes long under sanitizers
    if (got <= 0) {
      Wait(ends_[0], POLLIN, 1000);
      continue;
    }
    ++reads;
    all += got;
  }
  EXPECT_GE(all, 32 << 20);
  EXPECT_GT(all / reads, 16 << 10);
}

// A step that comes after a pause is read at once, however long the one before is ago.
TEST_F(ReadTurnsTest, AMessageAfterAPauseIsNotHeldUp) {
  TakeTurns(ends_[0]);
  for (int i = 0; i < 200; ++i) {
    uint8_t message[100];
    for (int b = 0; b < 100; ++b) message[b] = static_cast<uint8_t>(100 * i + b);
    ASSERT_EQ(write(ends_[1], message, sizeof(message)), static_cast<ssize_t>(sizeof(message)));
    Wait(ends_[0], POLLIN, 1000);
    EXPECT_EQ(Read(), 100) << i;
    if (i % 2 == 0) {  // gRPC asks again on a Unix socket, and does not where TCP says what is left
      EXPECT_EQ(Read(), -1);
    }
    std::this_thread::sleep_for(microseconds(200));
  }
}

TEST_F(ReadTurnsTest, OtherDescriptorsAndOtherEnginesAreLeftAlone) {
  constexpr ssize_t kBytes = 100'000;
  std::vector<uint8_t> some(kBytes);
  for (ssize_t i = 0; i < kBytes; ++i) some[i] = static_cast<uint8_t>(i);
  setenv("GRPC_POLL_STRATEGY", "epoll1", /*overwrite=*/1);
  TakeTurns(ends_[0]);  // does nothing
  ASSERT_EQ(write(ends_[1], some.data(), some.size()), kBytes);
  EXPECT_EQ(Read(), kBytes);
  setenv("GRPC_POLL_STRATEGY", "poll", /*overwrite=*/1);
  TakeTurns(ends_[0]);
  for (ssize_t i = 0; i < kBytes; ++i) some[i] = static_cast<uint8_t>(kBytes + i);
  ASSERT_EQ(write(ends_[1], some.data(), some.size()), kBytes);
  EXPECT_EQ(Read(), 64 << 10);  // and the rest behind the one time that it is told to be empty
  EXPECT_EQ(Read(), -1);
  Wait(ends_[0], POLLIN, 1000);
  EXPECT_EQ(shutdown(ends_[1], SHUT_WR), 0);
  EXPECT_EQ(Read(), kBytes - (64 << 10));
  Wait(ends_[0], POLLIN, 1000);
  EXPECT_EQ(Read(), 0);  // the end is not lost, nor what came before it
}

}  // namespace
}  // namespace seine::test
