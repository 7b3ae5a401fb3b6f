// Standard input by poll, beside an event that stops the wait.
#include "client/cli/input/line_source.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/cli/base/exit_code.h"

namespace seine::cli {

LineSource::LineSource() : stop_(eventfd(0, EFD_CLOEXEC)) {
  if (stop_ < 0) status_ = absl::ErrnoToStatus(errno, "standard input");
  ended_ = stop_ < 0;
}

LineSource::~LineSource() {
  if (stop_ >= 0) close(stop_);
}

void LineSource::Stop() {
  const uint64_t one = 1;
  if (stop_ >= 0) [[maybe_unused]]
    const ssize_t written = write(stop_, &one, sizeof(one));
}

bool LineSource::Fill() {
  char bytes[1 << 16];
  pollfd waits[] = {{STDIN_FILENO, POLLIN, 0}, {stop_, POLLIN, 0}};
  while (!ended_) {
    if (poll(waits, 2, -1) < 0 && errno != EINTR) break;
    if (waits[1].revents != 0) {
      ended_ = true;
      return false;
    }
    if (waits[0].revents == 0) continue;
    const ssize_t got = read(STDIN_FILENO, bytes, sizeof(bytes));
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) status_ = FileError(absl::ErrnoToStatus(errno, "standard input"));
    ended_ = got <= 0;
    if (got > 0) buffer_.append(bytes, static_cast<size_t>(got));
    return got > 0;
  }
  return false;
}

bool LineSource::Next(std::string* line) {
  for (;;) {
    const size_t end = buffer_.find('\n', begin_);
    if (end == std::string::npos) {
      buffer_.erase(0, begin_);
      begin_ = 0;
      if (Fill()) continue;
      if (buffer_.empty()) return false;
    }
    *line = buffer_.substr(begin_, end == std::string::npos ? end : end - begin_);
    begin_ = end == std::string::npos ? buffer_.size() : end + 1;
    ++number_;
    if (!absl::StripAsciiWhitespace(*line).empty()) return true;
  }
}

bool LineSource::ReadAll(std::string* text) {
  while (Fill()) {
  }
  *text = std::move(buffer_);
  return status_.ok();
}

}  // namespace seine::cli
