// The lines that show how far a command has come, or how long it has waited, on a terminal and on one that is stopped.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <string>

#include "absl/time/clock.h"
#include "client/cli/base/output.h"

namespace seine::cli {
namespace {

// Standard error is a terminal, whose other end is read here.
class Progress : public ::testing::Test {
 protected:
  void SetUp() override {
    master_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ASSERT_GE(master_, 0);
    ASSERT_EQ(grantpt(master_), 0);
    ASSERT_EQ(unlockpt(master_), 0);
    terminal_ = open(ptsname(master_), O_RDWR | O_NOCTTY | O_CLOEXEC);
    ASSERT_GE(terminal_, 0);
    err_ = dup(STDERR_FILENO);
    dup2(terminal_, STDERR_FILENO);
  }
  void TearDown() override {
    dup2(err_, STDERR_FILENO);
    for (const int fd : {err_, terminal_, master_}) close(fd);
  }
  // Returns all that was drawn so far, and within `wait` more.
  std::string Drawn(int wait_ms) const {
    std::string text;
    for (pollfd drawn = {master_, POLLIN, 0}; poll(&drawn, 1, text.empty() ? wait_ms : 0) == 1;) {
      char part[4096];
      const ssize_t count = read(master_, part, sizeof(part));
      if (count <= 0) break;
      text.append(part, static_cast<size_t>(count));
    }
    return text;
  }
  static void Draw() {
    ProgressBar bar("append", 100);
    bar.Update(50);
  }
  int master_ = -1, terminal_ = -1, err_ = -1;
};

TEST_F(Progress, AStoppedTerminalIsNotWaitedFor) {
  Draw();
  const std::string text = Drawn(5000);
  EXPECT_NE(text.find("append [###############"), std::string::npos) << text;

  EXPECT_EQ(tcflow(terminal_, TCOOFF), 0);  // as Ctrl-S does
  auto drawn = std::async(std::launch::async, [] {
    Draw();
    const WaitingLine line("seq snapshot", absl::Seconds(9), /*of_each=*/true, absl::Milliseconds(5));
    absl::SleepFor(absl::Milliseconds(100));
  });
  EXPECT_EQ(drawn.wait_for(std::chrono::seconds(5)), std::future_status::ready);
  tcflow(terminal_, TCOON);
  drawn.wait();
}

TEST_F(Progress, WhoeverWaitsIsToldForHowLong) {
  {
    const WaitingLine line("health", absl::Seconds(90), /*of_each=*/false, absl::Milliseconds(50));
    std::string text = Drawn(5000);
    EXPECT_NE(text.find("health: 0 s, at most 90 s left"), std::string::npos) << text;
    const ProgressBar bar("append", 100);
    text = Drawn(0);
    EXPECT_NE(text.find("\r\x1b[K"), std::string::npos) << "cleared for the bar: " << text;
    EXPECT_EQ(Drawn(300).find("health"), std::string::npos) << "a bar is there already";
  }
  Drawn(0);
  {
    const WaitingLine line("seq snapshot", absl::Seconds(30), /*of_each=*/true, absl::Milliseconds(50));
    EXPECT_NE(Drawn(5000).find("each call may take 30 s"), std::string::npos);
  }
  const std::string end = Drawn(5000);
  EXPECT_EQ(end.substr(end.size() - std::min<size_t>(4, end.size())), "\r\x1b[K") << "nothing of it stays";
}

TEST_F(Progress, WhatIsQuickSaysNothing) {
  { const WaitingLine line("version", absl::Seconds(30), /*of_each=*/true); }
  EXPECT_EQ(Drawn(300), "");
}

}  // namespace
}  // namespace seine::cli
