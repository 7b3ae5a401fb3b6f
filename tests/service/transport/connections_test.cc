// Connections that are cut off for stream resets, and those that are not.
#include "service/transport/sockets/connections.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

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

TEST(ConnectionsTest, AFloodCutsItsOwnConnectionAndRefusesItsClientForAWhile) {
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
  EXPECT_TRUE(connections.Refuses(other.served()));  // both are this process's
  EXPECT_FALSE(connections.Ended(other.peer(), CallEnd::kReset));
  connections.Sweep();
  EXPECT_EQ(connections.count(), 1);
}

}  // namespace
}  // namespace seine
