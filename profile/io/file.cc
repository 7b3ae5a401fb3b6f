#include "profile/io/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "profile/io/mapping.h"

namespace seine {
namespace {

absl::Status ReadError(const std::string& path, int error) {
  const std::string text = absl::StrCat(path, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(text);
  return absl::UnavailableError(text);
}

absl::Status NotRegular(const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
}

bool SameTime(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

}  // namespace

absl::StatusOr<File> File::Open(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(path.substr(0, path.find('\0')), ": the name holds a NUL"));
  }
  // Without O_NONBLOCK a FIFO would wait here for a writer; a regular file does not know the flag.
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) return errno == ENXIO ? NotRegular(path) : ReadError(path, errno);  // ENXIO: a socket
  struct stat info;
  const int error = fstat(fd, &info) < 0 ? errno : 0;
  File file(path, fd, info);
  if (error != 0) return ReadError(path, error);
  if (!S_ISREG(info.st_mode)) return NotRegular(path);
  return file;
}

File::~File() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<std::string> File::Read(uint64_t offset, uint64_t count) const {
  if (offset > size() || count > size() - offset) {
    return absl::DataLossError(absl::StrCat(path_, ": cut short: bytes to ", offset + count, " of ", size()));
  }
  std::string bytes(count, '\0');
  for (size_t done = 0; done < count;) {
    const ssize_t got = pread(fd_, bytes.data() + done, count - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ReadError(path_, errno);
    if (got == 0) return absl::DataLossError(absl::StrCat(path_, ": cut short while it is read"));
    done += got;
  }
  return bytes;
}

absl::StatusOr<std::string> File::ReadAll(uint64_t max_bytes) const {
  if (size() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": has ", size(), " bytes, more than ", max_bytes));
  }
  absl::StatusOr<std::string> bytes = Read(0, size());
  if (!bytes.ok()) return bytes;
  struct stat now;
  if (fstat(fd_, &now) < 0) return ReadError(path_, errno);
  if (now.st_size != info_.st_size || !SameTime(now.st_mtim, info_.st_mtim)) {
    return absl::DataLossError(absl::StrCat(path_, ": changed while it is read"));
  }
  return bytes;
}

absl::StatusOr<std::shared_ptr<const uint8_t>> File::Map() const {
  const size_t count = size();
  if (count == 0) return absl::DataLossError(absl::StrCat(path_, ": cut short: the file is empty"));
  std::shared_ptr<const uint8_t> bytes = MapFile(fd_, count, path_);
  if (bytes == nullptr) return ReadError(path_, errno);
  return bytes;
}

}  // namespace seine
