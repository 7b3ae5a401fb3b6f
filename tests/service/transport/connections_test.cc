// Connections that are cut off for stream resets, and those that are not.
#include "service/transport/sockets/connections.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/transport/rpc.h"

namespace seine {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

int64_t Flood(ResetWindow& window, int64_t count, CallEnd end, ResetWindow::Time now) {
  int64_t floods = 0;
  for (int64_t i = 0; i < count; ++i) floods += window.Count(end, now) ? 1 : 0;
  return floods;
}

TEST(ResetWindowTest, MoreResetsThanABoundInASecondAreAFlood) {
  ResetWindow window;
  const ResetWindow::Time now{seconds(100)};
  EXPECT_EQ(Flood(window, ResetWindow::kMostResets, CallEnd::kReset, now), 0);
  EXPECT_TRUE(window.Count(CallEnd::kReset, now + milliseconds(999)));
}

TEST(ResetWindowTest, ResetsOverSecondsAreNone) {
  ResetWindow window;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(Flood(window, ResetWindow::kMostResets, CallEnd::kReset, ResetWindow::Time{seconds(100 + i)}), 0);
  }
}

// A client whose deadlines pass because the server is slow may cancel seven times as many.
TEST(ResetWindowTest, CallsCancelledAtTheirDeadlinesWeighLittle) {
  ResetWindow window;
  const ResetWindow::Time now{seconds(100)};
  EXPECT_EQ(Flood(window, ResetWindow::kMostLateResets, CallEnd::kLateReset, now), 0);
  EXPECT_TRUE(window.Count(CallEnd::kLateReset, now));
}

// "grpc-timeout: 99999999H" is 11,415 years, more than 64 bits of nanoseconds: by that, resets would weigh an eighth.
TEST(ResetWindowTest, ADeadlineOfCenturiesIsFarAway) {
  const auto in = [](int64_t seconds) {
    return gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_seconds(seconds, GPR_TIMESPAN));
  };
  constexpr int64_t kYear = 365 * 24 * 3600;
  for (const int64_t far : {int64_t{60}, 2 * kYear, 293 * kYear, 400 * kYear, 99'999'999 * int64_t{3600}}) {
    EXPECT_EQ(EndOf(true, in(far)), CallEnd::kReset) << far;
  }
  EXPECT_EQ(EndOf(true, gpr_inf_future(GPR_CLOCK_REALTIME)), CallEnd::kReset);
  EXPECT_EQ(EndOf(true, in(0)), CallEnd::kLateReset);
  EXPECT_EQ(EndOf(true, in(-400 * kYear)), CallEnd::kLateReset);
  EXPECT_EQ(EndOf(false, in(60)), CallEnd::kServed);
}

TEST(ResetWindowTest, AConnectionWithAsManyServedCallsGoesOn) {
  ResetWindow window;
  const ResetWindow::Time now{seconds(100)};
  EXPECT_EQ(Flood(window, 5000, CallEnd::kServed, now), 0);
  EXPECT_EQ(Flood(window, 5000, CallEnd::kReset, now), 0);
  EXPECT_TRUE(window.Count(CallEnd::kReset, now));
}

class Pair {
 public:
  Pair() { socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_); }
  ~Pair() { close(ends_[0]), close(ends_[1]); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  int served() const { return ends_[0]; }
  std::string peer() const { return absl::StrCat("fd:", served()); }
  bool Ended() const {
    pollfd look{ends_[1], POLLIN | POLLHUP, 0};
    return poll(&look, 1, 0) == 1 && (look.revents & POLLHUP) != 0;
  }

 private:
  int ends_[2] = {-1, -1};
};

TEST(ConnectionsTest, AFloodCutsItsOwnConnectionAndItsClientMayMakeFewer) {
  Connections connections;
  const Pair flood, other;
  connections.Add(flood.served());
  connections.Add(other.served());
  EXPECT_FALSE(connections.Refuses(other.served()));
  int cuts = 0;
  for (int64_t i = 0; i < 2 * ResetWindow::kMostResets; ++i) cuts += connections.Ended(flood.peer(), CallEnd::kReset);
  EXPECT_EQ(cuts, 1);
  EXPECT_EQ(connections.cut_resets(), 1);
  EXPECT_TRUE(flood.Ended());
  EXPECT_FALSE(other.Ended());
  // Both are this process's: it is refused for a second, and what it has open may make half as many.
  EXPECT_TRUE(connections.Refuses(other.served()));
  for (int64_t i = 0; i < ResetWindow::kMostResets / 2; ++i) {
    ASSERT_FALSE(connections.Ended(other.peer(), CallEnd::kReset)) << i;
  }
  EXPECT_TRUE(connections.Ended(other.peer(), CallEnd::kReset));
  for (int cuts_before = 2; cuts_before < 8; ++cuts_before) {
    const Pair next;
    connections.Add(next.served());
    const int64_t most = std::max<int64_t>(ResetWindow::kMostResets >> cuts_before, 32);
    for (int64_t i = 0; i < most; ++i) ASSERT_FALSE(connections.Ended(next.peer(), CallEnd::kReset)) << i;
    EXPECT_TRUE(connections.Ended(next.peer(), CallEnd::kReset)) << cuts_before;
    EXPECT_TRUE(next.Ended());
    connections.Sweep();
  }
  const Pair works;  // as many served calls: no flood, however many there were
  connections.Add(works.served());
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(connections.Ended(works.peer(), CallEnd::kServed));
    EXPECT_FALSE(connections.Ended(works.peer(), CallEnd::kReset));
  }
  connections.Sweep();
  EXPECT_EQ(connections.count(), 1);
}

// Two clients of one host.
TEST(ConnectionsTest, AHostIsNeverRefused) {
  const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(at);
  ASSERT_EQ(bind(listening, reinterpret_cast<sockaddr*>(&at), length), 0);
  ASSERT_EQ(listen(listening, 8), 0);
  getsockname(listening, reinterpret_cast<sockaddr*>(&at), &length);
  Connections connections;
  std::vector<int> open = {listening};
  for (int i = 0; i < 6; ++i) {
    open.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(open.back(), reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
    sockaddr_in from{};
    length = sizeof(from);
    open.push_back(accept4(listening, reinterpret_cast<sockaddr*>(&from), &length, SOCK_CLOEXEC));
    ASSERT_FALSE(connections.Refuses(open.back())) << i;
    connections.Add(open.back());
    const std::string peer = absl::StrCat("ipv4:127.0.0.1:", ntohs(from.sin_port));
    const int64_t most = std::max<int64_t>(ResetWindow::kMostResets >> i, 32);
    for (int64_t reset = 0; reset < most; ++reset) ASSERT_FALSE(connections.Ended(peer, CallEnd::kReset)) << reset;
    EXPECT_TRUE(connections.Ended(peer, CallEnd::kReset)) << i;
  }
  EXPECT_EQ(connections.cut_resets(), 6);
  for (const int fd : open) close(fd);
}

}  // namespace
}  // namespace seine
