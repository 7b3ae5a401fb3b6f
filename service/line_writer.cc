#include "service/line_writer.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace seine {

bool LineWriter::Write(absl::string_view line) { return (!cut_ || WriteAll("\n")) && WriteAll(line); }

bool LineWriter::WriteAll(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      pollfd room = {fd_, POLLOUT, 0};
      poll(&room, 1, -1);
      continue;
    }
    if (written < 0) return false;
    if (written == 0) return errno = ENOSPC, false;
    cut_ = bytes[static_cast<size_t>(written) - 1] != '\n';
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace seine
