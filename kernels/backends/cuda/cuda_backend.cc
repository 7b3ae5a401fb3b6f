#include "kernels/backends/cuda/cuda_backend.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/backends/cuda/attend_calls.h"
#include "kernels/backends/cuda/encode_calls.h"
#include "kernels/backends/cuda/evict_calls.h"
#include "kernels/backends/cuda/low_rank_calls.h"
#include "kernels/backends/cuda/search_calls.h"
#include "kernels/device/codec_cache.h"
#include "kernels/device/stream_context.h"
#include "kernels/machine/limits.h"
#include "kernels/ops/search/search_plan.h"
#include "kernels/stop.h"
#include "kernels/thread_pool.h"

namespace seine::cuda {
namespace {

// A grid's second dimension is 65,535 at most, and a batch's workspace should stay small beside the codes.
constexpr int kMostQueries = 4096;
static_assert(kMostQueries <= kMostGridRows);
// A query's splits take up to 150 KB of the workspace.
constexpr int kMostAttended = 1024;

class CudaBackend final : public Backend, public DeviceAttention {
 public:
  CudaBackend(std::unique_ptr<Device> device, int threads, size_t workspace_bytes)
      : device_(std::move(device)),
        pool_(threads),
        workspace_bytes_(workspace_bytes),
        contexts_(device_.get()),
        codecs_(device_.get()) {}
  Device::Error Open() { return contexts_.Open(); }

  std::string name() const override { return "cuda"; }
  std::string simd_target() const override { return device_->name(); }
  int num_threads() const override { return pool_.size(); }
  bool codes_on_device() const override { return true; }
  std::string loss() const override {
    if (!lost_) return {};
    const std::lock_guard<std::mutex> lock(mutex_);
    return loss_;
  }

  Buffer Allocate(size_t bytes, MemorySpace space) override {
    if (bytes == 0 || lost_) return Buffer();
    void* data = nullptr;
    const Device::Error error =
        space == MemorySpace::kCodes ? device_->Allocate(bytes, &data) : device_->AllocateHost(bytes, &data);
    if (OutcomeOf(error, "allocation") != Outcome::kDone) return Buffer();
    return Buffer(this, space, static_cast<uint8_t*>(data), bytes);
  }
  // A device that cannot take memory back is lost.
  void Free(uint8_t* data, size_t, MemorySpace space) override {
    Must(space == MemorySpace::kCodes ? device_->Free(data) : device_->FreeHost(data), "freeing");
  }

  Outcome Copy(const CopyTask* tasks, int count) override {
    if (lost_) return Outcome::kLost;
    const StreamPool::Handle context = contexts_.Acquire();
    if (AreSmall(tasks, count)) return Must(CopyByKernel(tasks, count, context.get()), "copy");
    Device::Error error = Device::kNoError;
    for (int i = 0; i < count && error == Device::kNoError; ++i) {
      error = device_->Copy(tasks[i].to, tasks[i].from, tasks[i].bytes, context->stream);
    }
    return Must(Finish(error, context.get()), "copy");
  }

  Outcome Zero(uint8_t* data, size_t bytes) override {
    if (lost_) return Outcome::kLost;
    const StreamPool::Handle context = contexts_.Acquire();
    return Must(Finish(device_->Zero(data, bytes, context->stream), context.get()), "zeroing");
  }

  // Items are read from page-locked memory: the context's views hold them without growing.
  Outcome CountCodes(const CountTask* tasks, int count) override {
    constexpr int kMost = static_cast<int>(StreamContext::kViewBytes / sizeof(CountItem));
    if (lost_) return Outcome::kLost;
    const StreamPool::Handle context = contexts_.Acquire();
    Device::Error error = Device::kNoError;
    for (int first = 0; first < count && error == Device::kNoError; first += kMost) {
      auto* items = reinterpret_cast<CountItem*>(context->views.data());
      const int now = std::min(kMost, count - first);
      for (int i = 0; i < now; ++i) {
        const CountTask& t = tasks[first + i];
        items[i] = {t.planes.coarse, t.layout->coarse_bytes, t.layout->head_dim, t.begin, t.end, t.sign, t.counts};
      }
      error = Finish(device_->Launch(CountArgs{items, now}, context->stream), context.get());
    }
    return Must(error, "counting");
  }

  Outcome Encode(const EncodeTask* tasks, int count) override;
  Outcome Search(const SearchTask* tasks, int count, const SearchParams& params, SearchOutput* outputs,
                 const ProgressCallback& progress) override;

  DeviceAttention* attention() override { return this; }
  Outcome Attend(const SearchTask* searches, int num_searches, const SearchParams& params, SearchOutput* found,
                 AttendTask* tasks, int count) override;
  Outcome CopyAfter(void* stream, const CopyTask* tasks, int count) override {
    if (lost_) return Outcome::kLost;
    const StreamPool::Handle context = contexts_.Acquire();
    Device::Error error = context->Await({stream});
    for (int i = 0; i < count && error == Device::kNoError; ++i) {
      error = context->Receive(tasks[i].to, tasks[i].from, tasks[i].bytes);
    }
    return Must(Finish(error, context.get()), "copy");
  }
  bool CanAwait(void* stream) override { return device_->CanAwait(stream); }
  bool Holds(const void* data, size_t bytes) override {
    return bytes > 0 && device_->Holds(data) && device_->Holds(static_cast<const uint8_t*>(data) + bytes - 1);
  }
  Copied copied() override {
    const auto [sent, received] = contexts_.Copied();
    return {sent, received};
  }

  Outcome Sum(const SumTask* tasks, int count) override {
    if (lost_) return Outcome::kLost;
    if (StopRequested()) return Outcome::kStopped;
    return OutcomeOf(SumOnDevice(tasks, count, contexts_.Acquire().get()), "summing");
  }
  Outcome Score(const ScoreTask* tasks, int count) override {
    if (lost_) return Outcome::kLost;
    if (StopRequested()) return Outcome::kStopped;
    return OutcomeOf(ScoreOnDevice(tasks, count, contexts_.Acquire().get()), "scoring");
  }
  Outcome Select(const SelectTask* tasks, int count) override {
    if (lost_) return Outcome::kLost;
    if (StopRequested()) return Outcome::kStopped;
    return OutcomeOf(SelectOnDevice(tasks, count, contexts_.Acquire().get()), "selection");
  }
  Outcome Project(const ProjectTask* tasks, int count) override {
    if (lost_) return Outcome::kLost;
    if (StopRequested()) return Outcome::kStopped;
    return OutcomeOf(ProjectOnDevice(tasks, count, contexts_.Acquire().get()), "projection");
  }
  Outcome Rebuild(const RebuildTask* tasks, int count) override {
    if (lost_) return Outcome::kLost;
    if (StopRequested()) return Outcome::kStopped;
    return OutcomeOf(RebuildOnDevice(tasks, count, contexts_.Acquire().get()), "reconstruction");
  }
  Outcome Learn(const LearnTask* tasks, int count) override {
    if (lost_) return Outcome::kLost;
    if (StopRequested()) return Outcome::kStopped;
    return OutcomeOf(LearnOnDevice(tasks, count, contexts_.Acquire().get()), "learning");
  }

  void Run(int count, const std::function<void(int)>& fn) override { pool_.Run(count, fn); }

 private:
  // Whether a launch is sooner done than so many calls of the driver, a microsecond or two each.
  static bool AreSmall(const CopyTask* tasks, int count) {
    constexpr int kFew = 4;
    constexpr size_t kSmall = size_t{64} << 10;
    return count > kFew && std::all_of(tasks, tasks + count, [](const CopyTask& t) { return t.bytes <= kSmall; });
  }
  // As CountCodes: the context's views hold the items without growing.
  Device::Error CopyByKernel(const CopyTask* tasks, int count, StreamContext* context) {
    constexpr int kMost = static_cast<int>(StreamContext::kViewBytes / sizeof(CopyItem));
    Device::Error error = Device::kNoError;
    for (int first = 0; first < count && error == Device::kNoError; first += kMost) {
      auto* items = reinterpret_cast<CopyItem*>(context->views.data());
      const int now = std::min(kMost, count - first);
      for (int i = 0; i < now; ++i) {
        const CopyTask& t = tasks[first + i];
        items[i] = {static_cast<uint8_t*>(t.to), static_cast<const uint8_t*>(t.from), static_cast<int64_t>(t.bytes)};
      }
      error = Finish(device_->Launch(CopyArgs{items, now}, context->stream), context);
    }
    return error;
  }

  // Waits for what was enqueued, also behind a call that failed, for it may still be reading the context's memory.
  Device::Error Finish(Device::Error error, StreamContext* context) {
    const Device::Error ended = device_->Finish(context->stream);
    return error != Device::kNoError ? error : ended;
  }

  Outcome OutcomeOf(Device::Error error, const char* what) {
    if (error == Device::kNoError) return Outcome::kDone;
    if (error == Device::kOutOfMemory) return Outcome::kNoMemory;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!lost_) loss_ = std::string(what) + " on " + device_->name() + ": " + device_->Describe(error);
    lost_ = true;
    return Outcome::kLost;
  }
  // The outcome of an operation that needs no memory: to be short of it there is a loss, too.
  Outcome Must(Device::Error error, const char* what) {
    const Outcome outcome = OutcomeOf(error, what);
    if (outcome != Outcome::kNoMemory) return outcome;
    return OutcomeOf(-error, what);
  }

  const std::unique_ptr<Device> device_;
  ThreadPool pool_;
  const size_t workspace_bytes_;  // of one launch
  StreamPool contexts_;
  CodecCache codecs_;
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;
  std::string loss_;  // guarded by mutex_
};

Outcome CudaBackend::Encode(const EncodeTask* tasks, int count) {
  if (lost_) return Outcome::kLost;
  if (StopRequested()) return Outcome::kStopped;
  const StreamPool::Handle context = contexts_.Acquire();
  std::vector<const CodecTables*> tables(count);
  Device::Error error = Device::kNoError;
  for (int i = 0; i < count && error == Device::kNoError; ++i) {
    error = codecs_.Get(*tasks[i].codec, context.get(), &tables[i]);
  }
  bool stopped = false;
  if (error == Device::kNoError) error = EncodeOnDevice(tasks, tables.data(), count, context.get(), &stopped);
  return error == Device::kNoError && stopped ? Outcome::kStopped : OutcomeOf(error, "encoding");
}

// Room for a task's answers. Returns whether they are there already, for there is nothing to search.
bool PrepareEmpty(const SearchTask& task, const SearchParams& params, SearchOutput* output) {
  const size_t rows = params.scope == Scope::kPerKvHead ? 1 : task.group;
  output->positions.resize(rows);
  output->scores.resize(rows);
  output->masses.assign(params.mass_p > 0 ? rows : 0, 1.0f);
  output->capped.assign(output->masses.size(), 0);
  if (task.num_keys > 0) return false;
  for (size_t r = 0; r < rows; ++r) output->positions[r].clear(), output->scores[r].clear();
  return true;
}

// Bytes that a task works in on the device, or a little more.
size_t WorkspaceOf(const SearchTask& t, const SearchParams& params) {
  int64_t dense = 0;
  for (const DenseRun& run : t.dense) dense += run.count;
  const double usual = t.codec->DefaultCandidateFraction(t.num_keys);
  return WorkspaceAtMost(params, t.codec->layout(), usual, t.num_keys, t.group, dense, t.refine_all);
}

// Tasks that are read whole are launches of their own: none of their steps is one of a search's.
// No meanwhile: the host works on none of the tasks, and sleeps for less than would be worth it.
Outcome CudaBackend::Search(const SearchTask* tasks, int count, const SearchParams& params, SearchOutput* outputs,
                            const ProgressCallback&) {
  if (lost_) return Outcome::kLost;
  if (StopRequested()) return Outcome::kStopped;
  const StreamPool::Handle context = contexts_.Acquire();
  Device::Error error = Device::kNoError;
  for (const bool whole : {false, true}) {
    SearchParams same = params;  // of a batch's tasks
    if (whole) same.method = Method::kExact;
    std::vector<int> batch;
    int queries = 0;
    size_t bytes = 0;
    for (int i = 0; i < count && error == Device::kNoError; ++i) {
      if (tasks[i].whole != whole || PrepareEmpty(tasks[i], params, &outputs[i])) continue;
      const size_t own = WorkspaceOf(tasks[i], same);
      if (!batch.empty() && (queries + tasks[i].group > kMostQueries || bytes + own > workspace_bytes_)) {
        if (StopRequested()) return Outcome::kStopped;
        error = SearchOnDevice(tasks, batch, same, &codecs_, outputs, context.get());
        batch.clear();
        queries = 0;
        bytes = 0;
      }
      batch.push_back(i);
      queries += tasks[i].group;
      bytes += own;
    }
    if (error == Device::kNoError && !batch.empty())
      error = SearchOnDevice(tasks, batch, same, &codecs_, outputs, context.get());
  }
  return OutcomeOf(error, "search");
}

// Searches and tasks that are launched together, by their places.
struct AttendBatch {
  bool whole = false;
  std::vector<int> searches, tasks;
  int queries = 0;
  size_t bytes = 0;  // that its searches work in
};

// Tasks beside their searches, in batches of searches of one kind that work in up to `most_bytes`.
std::vector<AttendBatch> BatchesOf(const SearchTask* searches, int num_searches, const SearchParams& params,
                                   const AttendTask* tasks, int count, size_t most_bytes) {
  std::vector<AttendBatch> batches;
  std::vector<std::vector<int>> of_search(num_searches);
  for (int i = 0; i < count; ++i) {
    if (tasks[i].search >= 0) of_search[tasks[i].search].push_back(i);
  }
  const auto room = [&](bool whole, int queries, size_t bytes) -> AttendBatch& {
    const bool fits = !batches.empty() && batches.back().whole == whole &&
                      batches.back().queries + queries <= kMostAttended && batches.back().bytes + bytes <= most_bytes;
    if (!fits) batches.emplace_back().whole = whole;
    batches.back().queries += queries;
    batches.back().bytes += bytes;
    return batches.back();
  };
  for (int i = 0; i < count; ++i) {  // those that wait for no search come with the first
    if (tasks[i].search < 0) room(false, tasks[i].attention.group, 0).tasks.push_back(i);
  }
  for (const bool whole : {false, true}) {
    SearchParams same = params;
    if (whole) same.method = Method::kExact;
    for (int i = 0; i < num_searches; ++i) {
      if (searches[i].whole != whole) continue;
      AttendBatch& batch = room(whole, searches[i].group, WorkspaceOf(searches[i], same));
      batch.searches.push_back(i);
      batch.tasks.insert(batch.tasks.end(), of_search[i].begin(), of_search[i].end());
    }
  }
  return batches;
}

Outcome CudaBackend::Attend(const SearchTask* searches, int num_searches, const SearchParams& params,
                            SearchOutput* found, AttendTask* tasks, int count) {
  if (lost_) return Outcome::kLost;
  const StreamPool::Handle context = contexts_.Acquire();
  for (int i = 0; i < num_searches; ++i) PrepareEmpty(searches[i], params, &found[i]);
  for (const AttendBatch& batch : BatchesOf(searches, num_searches, params, tasks, count, workspace_bytes_)) {
    if (StopRequested()) return Outcome::kStopped;
    SearchParams same = params;  // of a batch's searches
    if (batch.whole) same.method = Method::kExact;
    const Device::Error error =
        AttendOnDevice({searches, batch.searches, same, found, tasks, batch.tasks}, &codecs_, context.get());
    if (const Outcome outcome = OutcomeOf(error, "attention"); outcome != Outcome::kDone) return outcome;
  }
  return Outcome::kDone;
}

}  // namespace

std::unique_ptr<Backend> MakeCudaBackend(std::unique_ptr<Device> device, int threads, std::string* why,
                                         size_t workspace_bytes) {
  if (threads <= 0) threads = DefaultThreads();
  Device* opened = device.get();
  auto backend = std::make_unique<CudaBackend>(std::move(device), threads, workspace_bytes);
  if (const Device::Error error = backend->Open(); error != Device::kNoError) {
    *why = opened->name() + ": " + opened->Describe(error);
    return nullptr;
  }
  return backend;
}

}  // namespace seine::cuda
