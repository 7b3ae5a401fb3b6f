// Connections that are cut off for stream resets, and those that are not.
#include "service/transport/sockets/connections.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

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
