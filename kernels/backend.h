// Backend: memory and batch operations on views, with the same contract on every device. The CPU backend always exists.
//
// Thread safety: every method may be called from any thread at once. Operations assume validated input, and return when
// what they did is done. Errors: allocation failure is an empty Buffer, all else an Outcome; nothing throws. Operations
// that run tasks look at the caller's StopToken (stop.h) between them and within the long ones.
#ifndef SEINE_KERNELS_BACKEND_H_
#define SEINE_KERNELS_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/codecs/code.h"
#include "kernels/codecs/codec.h"
#include "kernels/ops/attend/attention.h"
#include "kernels/ops/learn/oja.h"
#include "kernels/ops/low_rank/low_rank.h"
#include "kernels/ops/query/search.h"
#include "kernels/ops/score_keys/score_keys.h"

namespace seine {

class Backend;

// What a buffer is for, and so where it lies.
enum class MemorySpace : uint8_t {
  kCodes = 0,  // what searches read in full; the host touches it by the backend's operations alone
  kStore = 1,  // the host's memory, read by searches too: page-locked under a device
};

// How an operation ended.
enum class Outcome : uint8_t {
  kDone = 0,
  kNoMemory = 1,  // nothing was done
  kLost = 2,  // the device is gone, with all that lay on it; Backend::loss says why, and every later operation ends so
  kStopped = 3,  // the caller's StopToken has stopped (stop.h), and some of the tasks were left out
};

// A move-only block of memory of one backend, 64-byte aligned. Huge pages where they are large enough.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend* backend, MemorySpace space, uint8_t* data, size_t size)
      : backend_(backend), space_(space), data_(data), size_(size) {}
  Buffer(Buffer&& o) noexcept { *this = static_cast<Buffer&&>(o); }
  Buffer& operator=(Buffer&& o) noexcept;
  ~Buffer();
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  Backend* backend_ = nullptr;
  MemorySpace space_ = MemorySpace::kCodes;
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

// `bytes` from one buffer of the backend's to another, of any space; the two do not overlap.
struct CopyTask {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

// counts[b][byte] += sign for keys [begin, end) of a segment: how often each byte of the coarse plane occurs.
struct CountTask {
  ConstCodePlanes planes;
  const CodeLayout* layout = nullptr;
  int begin = 0, end = 0;
  int sign = 1;
  uint32_t* counts = nullptr;  // [head_dim / 8][256] in MemorySpace::kCodes
};

// One KV head's attention on a device (DeviceAttention).
struct AttendTask {
  // Rows and windows in the backend's buffers, of any space; no low-rank rows, window_runs or `attended`. Places are
  // below 2^30. Sets and logits are looked at where `search` is negative.
  cpu::AttentionTask attention;
  int search = -1;          // of the call's searches: its sets are attended, and its scores are logits under kPerQHead
  float* output = nullptr;  // [group, head_dim]
  float* log_sum_exp = nullptr;  // [group]
  // Queries, and output and log_sum_exp, lie in the device's memory; then after what `stream`, a cudaStream_t, has by
  // now. A search says so of its own queries.
  bool device_queries = false, device_output = false;
  void* stream = nullptr;
  int64_t attended = 0;  // filled in: as cpu::Attend returns
};

// Attention by the device that searches, over the rows where they lie: what is found is attended without the host in
// between. Within 1e-5 of cpu::Attend.
class DeviceAttention {
 public:
  virtual ~DeviceAttention() = default;
  // Searches as Backend::Search does, into found [num_searches], and attends. Either count may be 0.
  [[nodiscard]] virtual Outcome Attend(const SearchTask* searches, int num_searches, const SearchParams& params,
                                       SearchOutput* found, AttendTask* tasks, int count) = 0;
  // Backend::Copy, after what `stream`, a cudaStream_t of the caller's, has by now; sources may be the caller's, on the
  // device. They count as copied to the host.
  [[nodiscard]] virtual Outcome CopyAfter(void* stream, const CopyTask* tasks, int count) = 0;
  // Whether a caller's stream can be waited for: none of another device, or being captured. Else nothing may name it.
  virtual bool CanAwait(void* stream) = 0;
  // Whether the caller's `bytes` from `data` on lie in the device's own memory, as far as their ends tell. Memory of
  // the host or of another device, given as this one's, would lose the device.
  virtual bool Holds(const void* data, size_t bytes) = 0;
  // Bytes that calls have copied so far, arguments to the device and answers and CopyAfter's to the host.
  struct Copied {
    int64_t to_device = 0, to_host = 0;
  };
  virtual Copied copied() = 0;
};

// May be called on the thread that called an operation, before each task that it works on itself: `left` of the
// operation's tasks are not begun. A moment for something short that does not call the backend. May be empty.
using ProgressCallback = std::function<void(int left)>;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;         // "cpu", "cuda"
  virtual std::string simd_target() const = 0;  // e.g. "AVX3_DL"; a device's name
  virtual int num_threads() const = 0;

  // Whether MemorySpace::kCodes is a memory apart from the host's, with a limit of its own.
  virtual bool codes_on_device() const { return false; }
  // Why the device is lost; empty while it is not.
  virtual std::string loss() const { return {}; }

  virtual Buffer Allocate(size_t bytes, MemorySpace space) = 0;  // empty Buffer if out of memory
  virtual void Free(uint8_t* data, size_t bytes, MemorySpace space) = 0;

  // Copies between the backend's buffers, and operations on memory of MemorySpace::kCodes. None of the three needs
  // memory: each ends in kDone or kLost, whatever the token says.
  [[nodiscard]] virtual Outcome Copy(const CopyTask* tasks, int count) = 0;
  [[nodiscard]] virtual Outcome Zero(uint8_t* data, size_t bytes) = 0;
  [[nodiscard]] virtual Outcome CountCodes(const CountTask* tasks, int count) = 0;

  // Both run their tasks in parallel.
  [[nodiscard]] virtual Outcome Encode(const EncodeTask* tasks, int count) = 0;
  [[nodiscard]] virtual Outcome Search(const SearchTask* tasks, int count, const SearchParams& params,
                                       SearchOutput* outputs, const ProgressCallback& progress) = 0;
  [[nodiscard]] Outcome Search(const SearchTask* tasks, int count, const SearchParams& params, SearchOutput* outputs) {
    return Search(tasks, count, params, outputs, {});
  }

  // nullptr: the host attends what a search has found (cpu::Attend). Lives as long as the backend.
  virtual DeviceAttention* attention() { return nullptr; }

  // Eviction's, on the host's memory, in parallel too: keys are MemorySpace::kStore's, all else is any memory.
  [[nodiscard]] virtual Outcome Sum(const SumTask* tasks, int count) = 0;
  [[nodiscard]] virtual Outcome Score(const ScoreTask* tasks, int count) = 0;
  [[nodiscard]] virtual Outcome Select(const SelectTask* tasks, int count) = 0;

  // Subspaces', in parallel too (low_rank.h).
  [[nodiscard]] virtual Outcome Project(const ProjectTask* tasks, int count) = 0;
  [[nodiscard]] virtual Outcome Rebuild(const RebuildTask* tasks, int count) = 0;
  // Bases learn in place (oja.h): what they are where this does not end in kDone is of no use.
  [[nodiscard]] virtual Outcome Learn(const LearnTask* tasks, int count) = 0;

  // fn(i) for i in [0, count), each once, on the host's threads; returns when all have run. For the index's own work:
  // fn must not throw or call the backend. Once the caller's token has stopped, what is not begun is left out, and
  // StopRequested() says so.
  virtual void Run(int count, const std::function<void(int)>& fn) = 0;
};

// `threads` = 0: one per core. 1: everything on the calling thread.
std::unique_ptr<Backend> MakeCpuBackend(int threads);

// "cpu", "cuda" or "cuda:N" of an ordinal, or "auto": cuda where this build and the machine have it and a trial of some
// tenths of a second finds it faster (backends/faster.h), else cpu. *why: under "auto", why it is the CPU; else, with
// nullptr, what is missing.
std::unique_ptr<Backend> MakeBackend(const std::string& name, int threads, std::string* why);
// Whether this build has CUDA, wherever it runs.
bool HasCuda();

}  // namespace seine

#endif  // SEINE_KERNELS_BACKEND_H_
