// The line that shows how far a command has come, on a terminal that is stopped.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include <future>
#include <string>

#include "client/cli/base/output.h"

namespace seine::cli {
namespace {

TEST(Progress, AStoppedTerminalIsNotWaitedFor) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(master, 0);
  ASSERT_EQ(grantpt(master), 0);
  ASSERT_EQ(unlockpt(master), 0);
  const int terminal = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(terminal, 0);
  const int err = dup(STDERR_FILENO);
  dup2(terminal, STDERR_FILENO);
  const auto draw = [] {
    ProgressBar bar("append", 100);
    bar.Update(50);
  };
  draw();
  char text[4096] = {};
  EXPECT_GT(read(master, text, sizeof(text) - 1), 0);
  EXPECT_NE(std::string(text).find("append [###############"), std::string::npos) << text;

  EXPECT_EQ(tcflow(terminal, TCOOFF), 0);  // as Ctrl-S does
  auto drawn = std::async(std::launch::async, draw);
  EXPECT_EQ(drawn.wait_for(std::chrono::seconds(5)), std::future_status::ready);
  tcflow(terminal, TCOON);
  drawn.wait();
  dup2(err, STDERR_FILENO);
  close(err);
  close(terminal);
  close(master);
}

}  // namespace
}  // namespace seine::cli
