#include "index/bytes/write_behind.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>

#include "index/bytes/pace.h"
#include "kernels/thread_name.h"

namespace seine {

namespace {

constexpr std::align_val_t kAlignment{4096};  // no disk asks for more

}  // namespace

void WriteBehind::Freer::operator()(uint8_t* data) const { operator delete(data, kAlignment); }

WriteBehind::WriteBehind(int fd, FileOps* files) : fd_(fd), files_(*files), direct_(files_.SetDirect(fd, true) == 0) {
  for (auto& buffer : buffers_) buffer.reset(static_cast<uint8_t*>(operator new(kBufferBytes, kAlignment)));
}

WriteBehind::~WriteBehind() { Join(); }

int WriteBehind::Write(const uint8_t* data, int64_t bytes) {
  while (bytes > 0) {
    const int64_t count = std::min(bytes, kBufferBytes - used_);
    std::memcpy(buffers_[full_ % kBuffers].get() + used_, data, static_cast<size_t>(count));
    used_ += count;
    data += count;
    bytes -= count;
    if (used_ < kBufferBytes) break;
    if (const int error = HandOver(); error != 0) return error;
  }
  return 0;
}

// The last bytes are no whole sector.
int WriteBehind::Finish() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return written_ == full_ || error_ != 0; });
  }
  Join();
  if (error_ != 0) return error_;
  if (direct_ && files_.SetDirect(fd_, false) != 0) return EIO;
  direct_ = false;
  return WriteAll(buffers_[full_ % kBuffers].get(), used_);
}

int WriteBehind::HandOver() {
  if (const int error = Start(); error != 0) return error;
  used_ = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  ++full_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return full_ - written_ < kBuffers || error_ != 0; });
  return error_;
}

int WriteBehind::Start() {
  if (thread_.joinable()) return 0;
  try {
    thread_ = std::thread([this] { Work(); });
  } catch (const std::system_error& error) {
    return error.code().value();
  }
  return 0;
}

void WriteBehind::Work() {
  NameThread("seine-snap-file");
  const OwnThread own;
  Pace pace(kSnapshotPauses);
  std::unique_lock<std::mutex> lock(mutex_);
  while (error_ == 0) {
    changed_.wait(lock, [this] { return ends_ || written_ < full_; });
    if (ends_) return;
    const uint8_t* const data = buffers_[written_ % kBuffers].get();
    lock.unlock();
    const int error = WriteAll(data, kBufferBytes);
    pace.Pause();
    lock.lock();
    error_ = error;
    ++written_;
    changed_.notify_all();
  }
}

// A file system may take the flag and still refuse a write, one after a write cut short for instance.
int WriteBehind::WriteAll(const uint8_t* data, int64_t bytes) {
  while (bytes > 0) {
    const int64_t count = files_.Write(fd_, data, bytes);
    if (count == -EINTR) continue;
    if (count == -EINVAL && direct_ && files_.SetDirect(fd_, false) == 0) {
      direct_ = false;
      continue;
    }
    if (count <= 0) return count == 0 ? EIO : static_cast<int>(-count);
    data += count;
    bytes -= count;
  }
  return 0;
}

void WriteBehind::Join() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace seine
