#include "index/bytes/file_ops.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace seine {

namespace {

int ErrorIf(bool failed) { return failed ? -errno : 0; }

}  // namespace

// Only the server's own user reads it: it holds what users have said.
int FileOps::Create(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd >= 0) flock(fd, LOCK_EX | LOCK_NB);
  return fd >= 0 ? fd : -errno;
}

int64_t FileOps::Write(int fd, const uint8_t* data, int64_t bytes) {
  const ssize_t count = write(fd, data, static_cast<size_t>(bytes));
  return count >= 0 ? count : -errno;
}

int FileOps::SetDirect(int fd, bool direct) {
  const int flags = fcntl(fd, F_GETFL);
  return ErrorIf(flags < 0 || fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) < 0);
}

int FileOps::Sync(int fd) { return ErrorIf(fsync(fd) < 0); }
int FileOps::Close(int fd) { return ErrorIf(close(fd) < 0); }
int FileOps::Remove(const std::string& path) { return ErrorIf(unlink(path.c_str()) < 0); }

int FileOps::Rename(const std::string& from, const std::string& to) {
  return ErrorIf(rename(from.c_str(), to.c_str()) < 0);
}

int FileOps::SyncFolder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -errno;
  const int error = ErrorIf(fsync(fd) < 0);
  close(fd);
  return error;
}

FileOps& SystemFiles() {
  static FileOps* const files = new FileOps;
  return *files;
}

}  // namespace seine
