// The terminal as a view that is refreshed needs it.
#ifndef SEINE_CLIENT_CLI_LIVE_SCREEN_H_
#define SEINE_CLIENT_CLI_LIVE_SCREEN_H_

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/base/output.h"

namespace seine::cli {

// The terminal without echo and line by line, on a screen of its own; as it was at the end.
class Screen {
 public:
  Screen() {
    tcgetattr(STDIN_FILENO, &before_);
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);  // control-C is a key, too
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    PrintText("\033[?1049h\033[?25l");
    std::fflush(stdout);
  }
  ~Screen() {
    PrintText("\033[?25h\033[?1049l");
    std::fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void Show(const std::string& text) {
    PrintText(absl::StrCat("\033[H\033[2J", text, "\nq leaves\n"));
    std::fflush(stdout);
  }
  // Lines for indexes, between what stands above and below them.
  static size_t Rows() {
    constexpr size_t kOthers = 7;
    winsize size = {};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row <= kOthers) return 1;
    return size.ws_row - kOthers;
  }
  // Returns true if the user leaves within the time.
  static bool Leaves(absl::Duration within) {
    const absl::Time until = absl::Now() + within;
    for (absl::Duration left = within; left > absl::ZeroDuration(); left = until - absl::Now()) {
      pollfd input = {STDIN_FILENO, POLLIN, 0};
      if (poll(&input, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) <= 0) continue;
      char key = 0;
      if (read(STDIN_FILENO, &key, 1) <= 0) return true;
      constexpr char kControlC = 3, kControlD = 4;
      if (key == 'q' || key == 'Q' || key == kControlC || key == kControlD) return true;
    }
    return false;
  }

 private:
  termios before_ = {};
};

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_LIVE_SCREEN_H_
