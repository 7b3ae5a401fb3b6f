#include "index/bytes/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "index/bytes/write_behind.h"
#include "profile/io/output_path.h"

namespace seine {

namespace {

constexpr int64_t kBufferBytes = int64_t{1} << 17;  // as much or more is read past the buffer

absl::Status FileError(int error, absl::string_view doing) {
  error = std::abs(error);
  const std::string text = absl::StrCat("the snapshot file: ", doing, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == EACCES || error == EPERM || error == EROFS) return absl::PermissionDeniedError(text);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) return absl::ResourceExhaustedError(text);
  if (error == EISDIR || error == ELOOP || error == ENAMETOOLONG) return absl::InvalidArgumentError(text);
  return absl::UnavailableError(text);
}

class FileSink : public ByteSink {
 public:
  explicit FileSink(WriteBehind* file) : file_(*file) {}
  absl::Status Write(const uint8_t* data, int64_t bytes) override {
    const int error = file_.Write(data, bytes);
    return error == 0 ? absl::OkStatus() : FileError(error, "writing");
  }

 private:
  WriteBehind& file_;
};

class FileSource : public ByteSource {
 public:
  FileSource() : buffer_(kBufferBytes) {}
  ~FileSource() override {
    if (fd_ >= 0) close(fd_);
  }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  absl::Status Open(const std::string& path) {
    fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0) return FileError(errno, "opening it");
    struct stat stat;
    if (fstat(fd_, &stat) != 0 || !S_ISREG(stat.st_mode)) {
      return absl::InvalidArgumentError("the snapshot file: it is no regular file");
    }
    size_ = static_cast<int64_t>(stat.st_size);
    posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
    return absl::OkStatus();
  }
  std::optional<int64_t> size() const override { return size_; }
  absl::Status Read(uint8_t* data, int64_t bytes) override {
    while (bytes > 0) {
      const int64_t ready = std::min(bytes, end_ - at_);
      std::memcpy(data, buffer_.data() + at_, ready);
      at_ += ready;
      data += ready;
      bytes -= ready;
      if (bytes == 0) break;
      const bool past = bytes >= kBufferBytes;
      const ssize_t count = read(fd_, past ? data : buffer_.data(), past ? bytes : kBufferBytes);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return FileError(errno, "reading");
      if (count == 0) return absl::DataLossError("the snapshot is cut short");
      if (past) {
        data += count;
        bytes -= count;
      } else {
        at_ = 0;
        end_ = count;
      }
    }
    return absl::OkStatus();
  }

 private:
  int fd_ = -1;
  int64_t size_ = 0;
  std::vector<uint8_t> buffer_;
  int64_t at_ = 0, end_ = 0;  // in buffer_
};

// A file that goes with the object, unless it has got its name. The descriptor, and so the lock, is held until then.
// What closing it says is of no interest: all of it has been written through.
class PartialFile {
 public:
  PartialFile(std::string path, FileOps* files) : path_(std::move(path)), files_(*files), fd_(files_.Create(path_)) {}
  ~PartialFile() {
    if (fd_ < 0) return;
    files_.Close(fd_);
    if (!named_) files_.Remove(path_);
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  int fd() const { return fd_; }
  int Rename(const std::string& path) {
    const int error = files_.Rename(path_, path);
    named_ = error == 0;
    return error;
  }

 private:
  const std::string path_;
  FileOps& files_;
  const int fd_;
  bool named_ = false;
};

absl::Status WriteAndSync(int fd, const std::function<absl::Status(ByteSink*)>& write, FileOps* files) {
  WriteBehind file(fd, files);
  FileSink sink(&file);
  if (absl::Status s = write(&sink); !s.ok()) return s;
  if (const int error = file.Finish(); error != 0) return FileError(error, "writing");
  const int error = files->Sync(fd);
  return error == 0 ? absl::OkStatus() : FileError(error, "writing it through");
}

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

absl::Status WriteFile(const std::string& path, const std::function<absl::Status(ByteSink*)>& write, FileOps* files) {
  if (files == nullptr) files = &SystemFiles();
  const absl::StatusOr<std::string> place = ResolveOutput(path);
  if (!place.ok()) return absl::InvalidArgumentError(absl::StrCat("the snapshot file: ", place.status().message()));
  const std::string folder = FolderOf(*place);
  {
    PartialFile partial(PartialPath(*place, kPartialSuffix), files);
    if (partial.fd() < 0) return FileError(partial.fd(), "making it");
    if (absl::Status s = WriteAndSync(partial.fd(), write, files); !s.ok()) return s;
    if (const int error = partial.Rename(*place); error != 0) return FileError(error, "naming it");
  }
  const int error = files->SyncFolder(folder);
  return error == 0 ? absl::OkStatus() : FileError(error, "writing its folder through");
}

absl::StatusOr<std::unique_ptr<ByteSource>> OpenFile(const std::string& path) {
  auto source = std::make_unique<FileSource>();
  if (absl::Status s = source->Open(path); !s.ok()) return s;
  return source;
}

int RemovePartialFiles(const std::string& folder, FileOps* files) {
  if (files == nullptr) files = &SystemFiles();
  int removed = 0;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string path = entry->path().string();
    if (!absl::EndsWith(path, kPartialSuffix)) continue;
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && files->Remove(path) == 0) ++removed;
    close(fd);
  }
  return removed;
}

}  // namespace seine
