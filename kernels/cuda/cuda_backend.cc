#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/codec_cache.h"
#include "kernels/cuda/stream_context.h"
#include "kernels/ops/low_rank/low_rank_calls.h"
#include "kernels/ops/score_keys/evict_calls.h"
#include "kernels/stop.h"
#include "kernels/thread_pool.h"

namespace seine::cuda {
namespace {

// A grid's second dimension is 65,535 at most, and a batch's workspace should stay small beside the codes.
constexpr int kMostQueries = 4096;
static_assert(kMostQueries <= kMostGridRows);

class CudaBackend final : public Backend {
 public:
  CudaBackend(std::unique_ptr<Device> device, int threads)
      : device_(std::move(device)), pool_(threads), contexts_(device_.get()), codecs_(device_.get()) {}
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
  class EncodeBatch;

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
  // Of operations that need no memory: that it is short there, too, is a loss.
  Outcome Must(Device::Error error, const char* what) {
    const Outcome outcome = OutcomeOf(error, what);
    if (outcome != Outcome::kNoMemory) return outcome;
    return OutcomeOf(-error, what);
  }

  // The tasks at the places that `batch` lists.
  Device::Error SearchBatch(const SearchTask* tasks, const std::vector<int>& batch, const SearchParams& params,
                            SearchOutput* outputs, StreamContext* context);

  const std::unique_ptr<Device> device_;
  ThreadPool pool_;
  StreamPool contexts_;
  CodecCache codecs_;
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;
  std::string loss_;  // guarded by mutex_
};

// Units of keys gathered in a context's rows until they are full, then encoded together.
class CudaBackend::EncodeBatch {
 public:
  EncodeBatch(Device* device, StreamContext* context) : device_(*device), context_(*context) {}

  Device::Error Add(const EncodeTask& task, const CodecTables* tables) {
    const CodeLayout& layout = task.codec->layout();
    const int unit = UnitKeys(layout);
    const size_t row_bytes = layout.head_dim * SizeOf(task.keys.dtype);
    if (!items_.empty() && (kind_ != KindOf(task) || head_dim_ != layout.head_dim)) {
      if (const Device::Error error = Flush(); error != Device::kNoError) return error;
    }
    kind_ = KindOf(task);
    head_dim_ = layout.head_dim;
    for (int first = 0; first < task.num_keys;) {
      int now = static_cast<int>((context_.rows.size() - used_) / (row_bytes * unit)) * unit;
      if (now == 0 || items_.size() == kMostItems) {
        if (const Device::Error error = Flush(); error != Device::kNoError) return error;
        continue;
      }
      now = std::min(now, task.num_keys - first);
      AddKeys(task, tables, first, now, row_bytes);
      first += now;
    }
    return Device::kNoError;
  }

  Device::Error Flush() {
    if (items_.empty()) return Device::kNoError;
    ViewWriter views(&context_);
    Device::Error error =
        views.Reserve(ViewWriter::Room(items_.size() * sizeof(EncodeItem)) +
                      ViewWriter::Room(units_.size() * sizeof(EncodeUnit)) + ViewWriter::Room(centres_.size()));
    if (error != Device::kNoError) return error;
    const int8_t* centres = views.Put(centres_.data(), centres_.size());
    for (size_t i = 0; i < items_.size(); ++i) {
      if (centre_at_[i] >= 0) items_[i].shared_centre = centres + centre_at_[i];
    }
    EncodeArgs args;
    args.items = views.Put(items_.data(), items_.size());
    args.units = views.Put(units_.data(), units_.size());
    args.num_units = Fit<int32_t>(units_.size());
    args.head_dim = head_dim_;
    args.kind = kind_;
    error = views.Send();
    if (error == Device::kNoError) error = device_.Launch(args, context_.stream);
    const Device::Error ended = device_.Finish(context_.stream);
    items_.clear(), units_.clear(), centres_.clear(), centre_at_.clear();
    used_ = 0;
    return error != Device::kNoError ? error : ended;
  }

 private:
  static constexpr size_t kMostItems = 4096;
  static CodecKind KindOf(const EncodeTask& task) { return task.codec->Tables().kind; }

  void AddKeys(const EncodeTask& task, const CodecTables* tables, int first, int count, size_t row_bytes) {
    const CodeLayout& layout = task.codec->layout();
    EncodeItem item;
    item.codec = tables;
    item.rows = context_.rows.data() + used_;
    item.stride_bytes = row_bytes;
    item.dtype = task.keys.dtype;
    item.out = PlanesFrom(layout, task.out, first);
    for (int i = 0; i < count; ++i, used_ += row_bytes) {
      memcpy(context_.rows.data() + used_, task.keys.row(first + i), row_bytes);
    }
    centre_at_.push_back(-1);
    if (task.shared_centre != nullptr) {
      centre_at_.back() = static_cast<int64_t>(centres_.size());
      const std::vector<int8_t>& values = task.shared_centre->values;
      centres_.insert(centres_.end(), values.begin(), values.end());
      item.shared_scale = task.shared_centre->scale;
    }
    for (int key = 0; key < count; key += UnitKeys(layout)) units_.push_back({static_cast<int>(items_.size()), key});
    items_.push_back(item);
  }

  Device& device_;
  StreamContext& context_;
  size_t used_ = 0;  // of the context's rows
  std::vector<EncodeItem> items_;
  std::vector<EncodeUnit> units_;
  std::vector<int8_t> centres_;     // shared ones, one after another
  std::vector<int64_t> centre_at_;  // of each item's; -1: none
  CodecKind kind_ = CodecKind::kRsq;
  int head_dim_ = 0;
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
  EncodeBatch batch(device_.get(), context.get());
  bool stopped = false;
  for (int i = 0; i < count && error == Device::kNoError && !stopped; ++i) {
    error = batch.Add(tasks[i], tables[i]);
    stopped = StopRequested();
  }
  if (error == Device::kNoError && !stopped) error = batch.Flush();
  return error == Device::kNoError && stopped ? Outcome::kStopped : OutcomeOf(error, "encoding");
}

// What a task's views take in the context.
struct TaskSizes {
  explicit TaskSizes(const SearchTask& t)
      : segments(static_cast<size_t>((t.num_keys + t.segment_keys - 1) / t.segment_keys)),
        chunks(t.keys.chunks == nullptr
                   ? 0
                   : static_cast<size_t>((t.zone_begin + t.num_keys + t.keys.chunk_tokens - 1) / t.keys.chunk_tokens)),
        runs(t.low_rank == nullptr ? 0 : t.low_rank->runs.size()),
        frequencies(runs == 0 || t.low_rank->rows.rope.inv_freq == nullptr ? 0 : t.low_rank->rows.head_dim / 2),
        position_chunks(runs == 0 || t.low_rank->position_chunks == nullptr
                            ? 0
                            : static_cast<size_t>((t.zone_begin + t.num_keys - 1) / t.low_rank->position_chunk_tokens) +
                                  1),
        centre(t.shared_centre == nullptr ? 0 : t.shared_centre->values.size()),
        queries(static_cast<size_t>(t.group) * t.codec->layout().head_dim) {}
  size_t Bytes(const SearchTask& t) const {
    return ViewWriter::Room(segments * sizeof(ConstCodePlanes)) + ViewWriter::Room(chunks * sizeof(uint8_t*)) +
           ViewWriter::Room(runs * sizeof(LowRankRun)) + ViewWriter::Room(frequencies * sizeof(double)) +
           ViewWriter::Room(position_chunks * sizeof(uint8_t*)) + ViewWriter::Room(centre) +
           ViewWriter::Room(queries * sizeof(float)) + ViewWriter::Room(t.dense.size() * sizeof(DenseRows));
  }
  const size_t segments, chunks, runs, frequencies, position_chunks, centre, queries;
};

SearchItem ItemOf(const SearchTask& t, const CodecTables* codec, ViewWriter* views) {
  const TaskSizes sizes(t);
  SearchItem item;
  item.codec = codec;
  item.layout = t.codec->layout();
  item.kind = t.codec->Tables().kind;
  item.segments = views->Put(t.segments, sizes.segments);
  item.segment_keys = t.segment_keys;
  item.num_keys = t.num_keys;
  item.zone_begin = t.zone_begin;
  if (t.shared_centre != nullptr) {
    item.shared_centre = views->Put(t.shared_centre->values.data(), sizes.centre);
    item.shared_scale = t.shared_centre->scale;
  }
  item.collision_counts = t.collision_counts;
  if (t.keys.chunks != nullptr) {
    item.chunks = views->Put(t.keys.chunks, sizes.chunks);
    item.chunk_tokens = t.keys.chunk_tokens;
    item.key_dtype = t.keys.dtype;
  }
  if (sizes.runs > 0) {
    item.low_rank = t.low_rank->rows;
    item.low_rank.runs = views->Put(t.low_rank->runs.data(), sizes.runs);
    item.low_rank.num_runs = Fit<int32_t>(sizes.runs);
    if (sizes.frequencies > 0) {
      item.low_rank.rope.inv_freq = views->Put(t.low_rank->rows.rope.inv_freq, sizes.frequencies);
    }
    if (sizes.position_chunks > 0) {
      item.position_chunks = views->Put(t.low_rank->position_chunks, sizes.position_chunks);
      item.position_chunk_tokens = t.low_rank->position_chunk_tokens;
    }
  }
  std::vector<DenseRows> dense;
  for (const DenseRun& run : t.dense) {
    dense.push_back({static_cast<const uint8_t*>(run.keys.data), run.keys.stride_bytes, run.count, run.keys.dtype});
    item.dense_tokens += run.count;
  }
  item.dense = views->Put(dense.data(), dense.size());
  item.num_dense = Fit<int32_t>(dense.size());
  item.queries = views->Put(t.queries, sizes.queries);
  item.group = t.group;
  return item;
}

// No meanwhile: the host works on none of the tasks, and sleeps for less than would be worth it.
Outcome CudaBackend::Search(const SearchTask* tasks, int count, const SearchParams& params, SearchOutput* outputs,
                            const ProgressCallback&) {
  if (lost_) return Outcome::kLost;
  if (StopRequested()) return Outcome::kStopped;
  const StreamPool::Handle context = contexts_.Acquire();
  Device::Error error = Device::kNoError;
  std::vector<int> batch;
  int queries = 0;
  for (int i = 0; i < count && error == Device::kNoError; ++i) {
    const size_t rows = params.scope == Scope::kPerKvHead ? 1 : tasks[i].group;
    outputs[i].positions.resize(rows);
    outputs[i].scores.resize(rows);
    outputs[i].masses.assign(params.mass_p > 0 ? rows : 0, 1.0f);
    outputs[i].capped.assign(outputs[i].masses.size(), 0);
    if (tasks[i].num_keys == 0) {
      for (size_t r = 0; r < rows; ++r) outputs[i].positions[r].clear(), outputs[i].scores[r].clear();
      continue;
    }
    if (queries + tasks[i].group > kMostQueries) {
      if (StopRequested()) return Outcome::kStopped;
      error = SearchBatch(tasks, batch, params, outputs, context.get());
      batch.clear();
      queries = 0;
    }
    batch.push_back(i);
    queries += tasks[i].group;
  }
  if (error == Device::kNoError && !batch.empty()) error = SearchBatch(tasks, batch, params, outputs, context.get());
  return OutcomeOf(error, "search");
}

Device::Error CudaBackend::SearchBatch(const SearchTask* tasks, const std::vector<int>& batch,
                                       const SearchParams& params, SearchOutput* outputs, StreamContext* context) {
  std::vector<const CodecTables*> codecs(batch.size());
  size_t bytes = 0, queries = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    const SearchTask& task = tasks[batch[i]];
    if (const Device::Error error = codecs_.Get(*task.codec, context, &codecs[i]); error != Device::kNoError)
      return error;
    bytes += TaskSizes(task).Bytes(task);
    queries += task.group;
  }
  bytes += ViewWriter::Room(batch.size() * sizeof(SearchItem)) + ViewWriter::Room(queries * sizeof(QueryPlan)) +
           ViewWriter::Room(queries * sizeof(SetPlan));
  ViewWriter views(context);
  if (const Device::Error error = views.Reserve(bytes); error != Device::kNoError) return error;
  std::vector<SearchItem> items;
  for (size_t i = 0; i < batch.size(); ++i) items.push_back(ItemOf(tasks[batch[i]], codecs[i], &views));

  SearchPlan plan(params, std::move(items));
  Device::Error error = context->workspace.Reserve(plan.workspace_bytes());
  if (error == Device::kNoError) error = context->answers.Reserve(plan.answer_bytes());
  if (error != Device::kNoError) return error;
  plan.Place(context->workspace.data(), context->answers.data());
  SearchArgs args;
  args.params = plan.params();
  args.items = views.Put(plan.items().data(), plan.items().size());
  args.queries = views.Put(plan.queries().data(), plan.queries().size());
  args.sets = views.Put(plan.sets().data(), plan.sets().size());
  error = views.Send();
  if (error == Device::kNoError) error = device_->Launch(SearchLaunch{&plan, args}, context->stream);
  error = Finish(error, context);
  if (error != Device::kNoError) return error;
  for (size_t i = 0; i < batch.size(); ++i) plan.Read(static_cast<int>(i), &outputs[batch[i]]);
  return Device::kNoError;
}

}  // namespace

std::unique_ptr<Backend> MakeCudaBackend(std::unique_ptr<Device> device, int threads, std::string* why) {
  if (threads <= 0) threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  Device* opened = device.get();
  auto backend = std::make_unique<CudaBackend>(std::move(device), threads);
  if (const Device::Error error = backend->Open(); error != Device::kNoError) {
    *why = opened->name() + ": " + opened->Describe(error);
    return nullptr;
  }
  return backend;
}

}  // namespace seine::cuda
