// Backend: memory and batch operations on views, with the same contract on every device. The CPU backend always exists.
//
// Thread safety: every method may be called from any thread at once. Operations assume validated input.
// Errors: allocation failure is nullptr; nothing throws.
#ifndef SEINE_KERNELS_BACKEND_H_
#define SEINE_KERNELS_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/code.h"
#include "kernels/search.h"

namespace seine {

class Backend;

// A move-only block of memory of one backend, 64-byte aligned. Huge pages where they are large enough.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend* backend, uint8_t* data, size_t size) : backend_(backend), data_(data), size_(size) {}
  Buffer(Buffer&& o) noexcept { *this = static_cast<Buffer&&>(o); }
  Buffer& operator=(Buffer&& o) noexcept;
  ~Buffer();
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  Backend* backend_ = nullptr;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// One head's keys to be encoded: Codec::Encode's arguments.
struct EncodeTask {
  const Codec* codec = nullptr;
  ConstRows keys;
  int num_keys = 0;
  const SharedCentre* shared_centre = nullptr;
  CodePlanes out;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;         // "cpu"
  virtual std::string simd_target() const = 0;  // e.g. "AVX3_DL"
  virtual int num_threads() const = 0;

  virtual Buffer Allocate(size_t bytes) = 0;  // empty Buffer if out of memory
  virtual void Free(uint8_t* data, size_t bytes) = 0;

  // Both run their tasks in parallel and return when all are done.
  virtual void Encode(const EncodeTask* tasks, int count) = 0;
  virtual void Search(const SearchTask* tasks, int count, const SearchParams& params, SearchOutput* outputs) = 0;

  // fn(i) for i in [0, count), each once, on the host's threads; returns when all have run. For the index's own work:
  // fn must not throw or call the backend.
  virtual void Run(int count, const std::function<void(int)>& fn) = 0;
};

// `threads` = 0: one per core. 1: everything on the calling thread.
std::unique_ptr<Backend> MakeCpuBackend(int threads);

}  // namespace seine

#endif  // SEINE_KERNELS_BACKEND_H_
