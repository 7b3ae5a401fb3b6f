// Writes a new file from a thread of its own, while its caller makes what comes next. Bytes go past the page cache
// where the file system can do that: they cost little of a processor, and nothing is left for an fsync to wait for.
#ifndef SEINE_INDEX_BYTES_WRITE_BEHIND_H_
#define SEINE_INDEX_BYTES_WRITE_BEHIND_H_

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "index/bytes/file_ops.h"

namespace seine {

// For one caller. It holds kBuffers * kBufferBytes.
class WriteBehind {
 public:
  static constexpr int kBuffers = 3;
  static constexpr int64_t kBufferBytes = int64_t{1} << 20;

  // `fd` is at the begin of its file. std::bad_alloc.
  WriteBehind(int fd, FileOps* files);
  ~WriteBehind();  // forgets what has not been written yet
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // Each returns 0, or the errno of the first write that failed; then nothing more is written.
  int Write(const uint8_t* data, int64_t bytes);
  int Finish();  // all is handed to the kernel; once, after the last Write

 private:
  struct Freer {
    void operator()(uint8_t* data) const;
  };
  int HandOver();  // a full buffer
  int Start();
  void Work();
  int WriteAll(const uint8_t* data, int64_t bytes);
  void Join();

  const int fd_;
  FileOps& files_;
  bool direct_;  // of the thread, while there is one
  std::array<std::unique_ptr<uint8_t, Freer>, kBuffers> buffers_;
  int64_t used_ = 0;  // bytes of the buffer that is being filled

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t full_ = 0, written_ = 0;  // buffers, ever
  int error_ = 0;
  bool ends_ = false;
  std::thread thread_;  // started by the first full buffer
};

}  // namespace seine

#endif  // SEINE_INDEX_BYTES_WRITE_BEHIND_H_
