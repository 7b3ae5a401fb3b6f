// A device without a GPU: the kernels' bodies run on the host in shuffled orders, and the device's memory cannot be
// read or written but while one of the device's own calls is under way; rows that kernels are pointed to must lie in
// page-locked memory or on the device. Each call can be made to fail.
#ifndef SEINE_TESTS_KERNELS_CUDA_HOST_DEVICE_H_
#define SEINE_TESTS_KERNELS_CUDA_HOST_DEVICE_H_

#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/backends/cuda/cuda_backend.h"
#include "kernels/device/device.h"
#include "kernels/device/launch_cache.h"
#include "kernels/ops/attend/window_means.h"
#include "kernels/ops/search/search_plan.h"
#include "tests/kernels/cuda/host_launcher.h"

namespace seine::cuda {

// What a test plants and reads, beside the device that a backend owns.
struct HostDeviceControl {
  std::atomic<int> calls{0};        // so far
  std::atomic<int> fail_call{-1};   // the call of this number fails; -1: none
  Device::Error error = 719;        // with which: cudaErrorLaunchFailure, which sticks, or Device::kOutOfMemory
  std::atomic<bool> broken{false};  // an error that sticks has come
  std::atomic<int64_t> device_bytes{0}, host_bytes{0};  // allocated and not freed
  std::atomic<int> page_locked{0};                      // calls of AllocateHost so far
  int64_t device_limit = int64_t{1} << 30, host_limit = int64_t{16} << 30;
  std::mutex mutex;
  std::vector<LaunchKey> searches;       // so far; guarded by mutex
  std::atomic<void*> captured{nullptr};  // a caller's stream that cannot be waited for
  std::vector<void*> awaited;            // callers' streams; guarded by mutex
};

class HostDevice final : public Device {
 public:
  explicit HostDevice(std::shared_ptr<HostDeviceControl> control) : control_(std::move(control)) {
    arena_ = static_cast<uint8_t*>(
        mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    free_[0] = kArenaBytes;
  }
  ~HostDevice() override {
    munmap(arena_, kArenaBytes);
    for (size_t* memory : host_) std::free(memory);
  }

  std::string name() const override { return "host"; }
  std::string Describe(Error error) const override { return "planted error " + std::to_string(error); }

  Error Allocate(size_t bytes, void** out) override {
    if (const Error error = Next(); error != kNoError) return error;
    bytes = Rounded(bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (control_->device_bytes + static_cast<int64_t>(bytes) > control_->device_limit) return kOutOfMemory;
    for (auto [at, size] : free_) {
      if (size < bytes) continue;
      free_.erase(at);
      if (size > bytes) free_[at + bytes] = size - bytes;
      used_[at] = bytes;
      control_->device_bytes += static_cast<int64_t>(bytes);
      *out = arena_ + at;
      return kNoError;
    }
    return kOutOfMemory;
  }
  Error Free(void* data) override {
    if (const Error error = Next(); error != kNoError) return error;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = used_.find(static_cast<uint8_t*>(data) - arena_);
    if (found == used_.end()) abort();
    control_->device_bytes -= static_cast<int64_t>(found->second);
    free_[found->first] = found->second;
    used_.erase(found);
    for (auto i = free_.begin(); std::next(i) != free_.end();) {  // neighbours become one
      const auto next = std::next(i);
      if (i->first + i->second != next->first) {
        ++i;
        continue;
      }
      i->second += next->second;
      free_.erase(next);
    }
    return kNoError;
  }
  Error AllocateHost(size_t bytes, void** out) override {
    if (const Error error = Next(); error != kNoError) return error;
    bytes = Rounded(bytes);
    if (control_->host_bytes + static_cast<int64_t>(bytes) > control_->host_limit) return kOutOfMemory;
    ++control_->page_locked;
    auto* memory = static_cast<size_t*>(std::aligned_alloc(256, bytes + 256));
    memory[0] = bytes;
    memset(memory + 32, 0xA5, bytes);
    control_->host_bytes += static_cast<int64_t>(bytes);
    *out = memory + 32;
    const std::lock_guard<std::mutex> lock(mutex_);
    host_.insert(memory);
    return kNoError;
  }
  Error FreeHost(void* data) override {
    if (const Error error = Next(); error != kNoError) return error;
    size_t* memory = static_cast<size_t*>(data) - 32;
    control_->host_bytes -= static_cast<int64_t>(memory[0]);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      host_.erase(memory);
    }
    std::free(memory);
    return kNoError;
  }

  Error MakeStream(Stream* out) override {
    *out = this;
    return Next();
  }
  Error DropStream(Stream) override { return Next(); }
  bool CanAwait(void* theirs) override { return theirs == nullptr || theirs != control_->captured; }
  bool Holds(const void* theirs) override {
    const auto* byte = static_cast<const uint8_t*>(theirs);
    if (byte < arena_ || byte >= arena_ + kArenaBytes) return false;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto after = used_.upper_bound(static_cast<size_t>(byte - arena_));
    if (after == used_.begin()) return false;
    const auto [at, size] = *std::prev(after);
    return static_cast<size_t>(byte - arena_) < at + size;
  }
  Error Await(void* theirs, Stream) override {
    const std::lock_guard<std::mutex> lock(control_->mutex);
    control_->awaited.push_back(theirs);
    return Next();
  }
  Error Finish(Stream) override { return Next(); }
  Error Copy(void* to, const void* from, size_t bytes, Stream) override {
    return Open([&] { memcpy(to, from, bytes); });
  }
  Error Zero(void* data, size_t bytes, Stream) override {
    return Open([&] { memset(data, 0, bytes); });
  }
  Error Launch(const Work& work, Stream) override {
    if (const auto* search = std::get_if<SearchLaunch>(&work)) {
      const std::lock_guard<std::mutex> lock(control_->mutex);
      control_->searches.emplace_back(search->plan->params(), search->plan->grids(), search->args);
    }
    return Open([&] {
      std::visit([&](const auto& args) { Check(args); }, work);
      RunOnHost(work, ++seed_ << 8);
    });
  }

 private:
  static constexpr size_t kArenaBytes = size_t{2} << 30;
  static size_t Rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

  // A kernel that reads any other memory would fail.
  void MustReach(const void* at) {
    const auto* byte = static_cast<const uint8_t*>(at);
    if (byte >= arena_ && byte < arena_ + kArenaBytes) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    auto after = host_.upper_bound(const_cast<size_t*>(reinterpret_cast<const size_t*>(byte)));
    if (after != host_.begin()) {
      const size_t* memory = *std::prev(after);
      if (byte < reinterpret_cast<const uint8_t*>(memory + 32) + memory[0]) return;
    }
    fprintf(stderr, "a kernel was pointed to memory that a device cannot reach\n");
    abort();
  }
  template <typename Item>
  void CheckChunks(const Item& item, int count) {
    for (int key = 0; key < count; key += item.chunk_tokens) MustReach(item.chunks[key / item.chunk_tokens]);
  }
  void CheckRuns(const LowRankRows& rows) {
    for (int r = 0; r < rows.num_runs; ++r) {
      const LowRankRun& run = rows.runs[r];
      if (run.basis == nullptr || run.num_full > 0) MustReach(run.full);
      if (run.basis == nullptr) continue;
      MustReach(run.codes);
      MustReach(run.basis);
    }
  }
  void CheckRows(const SearchItem& item) {
    for (int i = 0; i < item.num_dense; ++i) MustReach(item.dense[i].data);
    CheckRuns(item.low_rank);
    const int64_t end = item.zone_begin + item.num_keys;
    for (int64_t place = item.zone_begin; place < end && item.chunks != nullptr; place += item.chunk_tokens) {
      MustReach(item.chunks[place / item.chunk_tokens]);
    }
    for (int64_t place = item.zone_begin; place < end && item.position_chunks != nullptr;
         place += item.position_chunk_tokens) {
      MustReach(item.position_chunks[place / item.position_chunk_tokens]);
    }
  }

  template <typename Args>
  void Check(const Args&) {}
  void Check(const SearchLaunch& search) {
    for (size_t i = 0; i < search.plan->items().size(); ++i) CheckRows(search.args.items[i]);
  }
  void Check(const CopyArgs& args) {
    for (int i = 0; i < args.num_items; ++i) {
      MustReach(args.items[i].from);
      MustReach(args.items[i].to + args.items[i].bytes - 1);
    }
  }
  void Check(const SumArgs& args) {
    for (int i = 0; i < args.num_items; ++i) CheckChunks(args.items[i], args.items[i].key_begins[args.items[i].groups]);
  }
  void Check(const ScoreArgs& args) {
    for (int i = 0; i < args.num_items; ++i) CheckChunks(args.items[i], args.items[i].count);
  }
  void CheckPlaces(const AttendItem& item, const AttendRows& rows, int32_t place) {
    const size_t row = BytesOf(rows.dtype, item.head_dim);
    const uint8_t* at = rows.chunks[place / rows.chunk_tokens] + place % rows.chunk_tokens * row;
    MustReach(at);
    MustReach(at + row - 1);
  }
  void Check(const AttendArgs& args) {
    for (int i = 0; i < args.num_items; ++i) {
      const AttendItem& item = args.items[i];
      for (const void* at : {static_cast<const void*>(item.queries), static_cast<const void*>(item.output),
                             static_cast<const void*>(item.log_sum_exp)}) {
        MustReach(at);
      }
      for (int r = 0; r < item.num_dense; ++r) {
        for (int32_t place = item.dense[r].begin; place < item.dense[r].end; ++place) {
          CheckPlaces(item, item.keys, place);
          CheckPlaces(item, item.values, place);
        }
      }
      for (int s = 0; s < item.num_sets; ++s) {
        MustReach(item.sets[s].count);
        for (int32_t r = 0; r < *item.sets[s].count; ++r) CheckPlaces(item, item.values, item.sets[s].places[r]);
      }
      for (int w = 0; w < item.num_windows; ++w) {
        const uint8_t* record =
            item.windows[w / item.chunk_windows] + w % item.chunk_windows * WindowMeansBytes(item.head_dim);
        MustReach(record);
        MustReach(record + WindowMeansBytes(item.head_dim) - 1);
      }
    }
  }
  void Check(const RebuildArgs& args) {
    for (int i = 0; i < args.num_items; ++i) CheckRuns(args.items[i].rows);
  }

  Error Next() {
    const int call = control_->calls++;
    if (control_->broken) return control_->error;
    if (call != control_->fail_call) return kNoError;
    control_->broken = control_->error != kOutOfMemory;
    return control_->error;
  }

  template <typename Fn>
  Error Open(Fn fn) {
    if (const Error error = Next(); error != kNoError) return error;
    Guard(1, PROT_READ | PROT_WRITE);
    fn();
    Guard(-1, PROT_NONE);
    return kNoError;
  }
  void Guard(int change, int protection) {
    const std::lock_guard<std::mutex> lock(open_mutex_);
    open_ += change;
    if (open_ == (change > 0 ? 1 : 0)) mprotect(arena_, kArenaBytes, protection);
  }

  const std::shared_ptr<HostDeviceControl> control_;
  uint8_t* arena_ = nullptr;
  std::mutex mutex_;
  std::map<size_t, size_t> free_, used_;  // sizes by offset; guarded by mutex_
  std::set<size_t*> host_;                // guarded by mutex_; what a lost device did not free goes with it
  std::mutex open_mutex_;
  int open_ = 0;  // calls under way; guarded by open_mutex_
  std::atomic<uint64_t> seed_{0};
};

// nullptr where a call that `control` lets fail keeps the backend from being made.
inline std::unique_ptr<Backend> BackendOn(std::shared_ptr<HostDeviceControl> control, int threads = 1) {
  std::string why;
  return MakeCudaBackend(std::make_unique<HostDevice>(std::move(control)), threads, &why);
}

}  // namespace seine::cuda

#endif  // SEINE_TESTS_KERNELS_CUDA_HOST_DEVICE_H_
