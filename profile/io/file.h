// Regular files, opened and read so that nothing else hangs or ends the process: a FIFO is refused, not waited for, and
// a file that somebody cuts short meanwhile is an error. Errors open with the path: NOT_FOUND, PERMISSION_DENIED,
// INVALID_ARGUMENT (no regular file, larger than it may be), DATA_LOSS (empty, cut short, changed while it is read).
#ifndef SEINE_PROFILE_IO_FILE_H_
#define SEINE_PROFILE_IO_FILE_H_

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace seine {

class File {
 public:
  static absl::StatusOr<File> Open(const std::string& path);
  File(File&& other) noexcept : path_(std::move(other.path_)), fd_(other.fd_), info_(other.info_) { other.fd_ = -1; }
  File& operator=(File&&) = delete;
  ~File();

  uint64_t size() const { return static_cast<uint64_t>(info_.st_size); }
  // Bytes [offset, offset + count), into memory of our own.
  absl::StatusOr<std::string> Read(uint64_t offset, uint64_t count) const;
  // All of it, the same at the end as at the start.
  absl::StatusOr<std::string> ReadAll(uint64_t max_bytes) const;
  // The pages of the file itself: of any size, but touching them once the file was cut short is SIGBUS, or what
  // TellOfCutFiles (mapping.h) was given. For programs that a person runs on a trace, not for a server.
  absl::StatusOr<std::shared_ptr<const uint8_t>> Map() const;

 private:
  File(const std::string& path, int fd, const struct stat& info) : path_(path), fd_(fd), info_(info) {}
  std::string path_;
  int fd_;
  struct stat info_;  // at Open
};

}  // namespace seine

#endif  // SEINE_PROFILE_IO_FILE_H_
