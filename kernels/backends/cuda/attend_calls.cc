#include "kernels/backends/cuda/attend_calls.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "kernels/backends/cuda/search_calls.h"
#include "kernels/ops/attend/attend_items.h"

namespace seine::cuda {
namespace {

constexpr int64_t kMostPlaces = int64_t{1} << 30;

size_t WholeLines(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Sets that came with a task.
const std::vector<std::vector<int32_t>>* GivenSets(const AttendTask& task) {
  return task.search >= 0 ? nullptr : task.attention.sets;
}

// The place behind the last row that a task may read.
int64_t EndOf(const AttendTask& task, const SearchTask* searches) {
  int64_t end = 0;
  for (const cpu::PlaceRun& run : task.attention.dense) end = std::max(end, run.end);
  if (task.search >= 0) end = std::max(end, searches[task.search].zone_begin + searches[task.search].num_keys);
  if (const auto* sets = GivenSets(task); sets != nullptr) {
    for (const auto& set : *sets) end = std::max(end, set.empty() ? 0 : int64_t{set.back()} + 1);
  }
  return end;
}

// Counts of the parts of a task's views.
struct AttendSizes {
  AttendSizes(const AttendTask& t, const SearchTask* searches) {
    const cpu::AttentionTask& a = t.attention;
    const int64_t end = EndOf(t, searches);
    keys = static_cast<size_t>((end + a.keys.chunk_tokens - 1) / a.keys.chunk_tokens);
    values = static_cast<size_t>((end + a.values.chunk_tokens - 1) / a.values.chunk_tokens);
    windows = static_cast<size_t>((a.num_windows + a.windows.chunk_windows - 1) / a.windows.chunk_windows);
    queries = t.search >= 0 || t.device_queries ? 0 : static_cast<size_t>(a.group) * a.keys.head_dim;
    if (const auto* sets = GivenSets(t); sets != nullptr) {
      num_sets = sets->size();
      for (const auto& set : *sets) places.push_back(set.size());
    } else if (t.search >= 0) {
      num_sets = a.group;  // at most
    }
  }
  size_t Bytes(const AttendTask& t) const {
    size_t bytes = ViewWriter::Room(keys * sizeof(uint8_t*)) + ViewWriter::Room(values * sizeof(uint8_t*)) +
                   ViewWriter::Room(windows * sizeof(uint8_t*)) + ViewWriter::Room(queries * sizeof(float)) +
                   ViewWriter::Room(t.attention.dense.size() * sizeof(AttendRun)) +
                   ViewWriter::Room(num_sets * sizeof(AttendSet)) + ViewWriter::Room(places.size() * sizeof(int32_t));
    const bool logits = t.search < 0 && t.attention.logits != nullptr;
    for (const size_t count : places) {
      bytes += ViewWriter::Room(count * sizeof(int32_t)) * (logits ? 2 : 1);
    }
    return bytes;
  }
  size_t keys, values, windows, queries, num_sets = 0;
  std::vector<size_t> places;  // of given sets
};

AttendRows RowsOf(const ChunkedRows& rows, size_t chunks, ViewWriter* views) {
  assert(!IsQuantised(rows.dtype) && rows.stride() == BytesOf(rows.dtype, rows.head_dim));
  return {views->Put(rows.chunks, chunks), rows.chunk_tokens, rows.dtype};
}

// The sets of a task's search, where its kernels leave them; returns the most rows of one.
int64_t FoundSets(const SearchPlan& plan, int item, bool logits, std::vector<AttendSet>* sets) {
  const SearchItem& searched = plan.items()[item];
  int64_t most = 0;
  for (int s = 0; s < searched.num_sets; ++s) {
    const SetPlan& set = plan.sets()[searched.first_set + s];
    sets->push_back({&set.answer->count, set.positions, logits ? set.scores : nullptr});
    most = std::max<int64_t>(most, set.most);
  }
  return most;
}

int64_t PutSets(const AttendTask& task, ViewWriter* views, std::vector<AttendSet>* sets) {
  const auto* given = GivenSets(task);
  if (given == nullptr) return 0;
  const auto* logits = task.attention.logits;
  std::vector<int32_t> counts;
  for (const auto& set : *given) counts.push_back(Fit<int32_t>(set.size()));
  const int32_t* put = views->Put(counts.data(), counts.size());
  int64_t most = 0;
  for (size_t i = 0; i < given->size(); ++i) {
    const auto& set = (*given)[i];
    AttendSet& to = sets->emplace_back();
    to.count = put + i;
    to.places = views->Put(set.data(), set.size());
    if (logits != nullptr) to.logits = views->Put((*logits)[i].data(), set.size());
    most = std::max<int64_t>(most, counts[i]);
  }
  return most;
}

// Partial results of an item, in the workspace.
size_t PartBytes(const AttendItem& item) {
  const size_t slots = static_cast<size_t>(item.group) * item.splits();
  return WholeLines(slots * sizeof(AttendStats)) + WholeLines(slots * item.head_dim * sizeof(float));
}
// In the results; 0 where the caller's memory on the device takes them.
size_t OutputBytes(const AttendTask& task) {
  if (task.device_output) return 0;
  const auto group = static_cast<size_t>(task.attention.group);
  return WholeLines(group * task.attention.keys.head_dim * sizeof(float)) + WholeLines(group * sizeof(float));
}

// The attention of a batch, beside its searches.
class AttendCall {
 public:
  explicit AttendCall(const AttendWork& work) : work_(work) {
    for (size_t i = 0; i < work.searched.size(); ++i) item_of_[work.searched[i]] = static_cast<int>(i);
    view_bytes_ = ViewWriter::Room(work.attended.size() * sizeof(AttendItem));
    for (const int t : work.attended) {
      view_bytes_ += AttendSizes(work.tasks[t], work.searches).Bytes(work.tasks[t]);
      output_bytes_ += OutputBytes(work.tasks[t]);
    }
  }
  size_t view_bytes() const { return view_bytes_; }
  size_t output_bytes() const { return output_bytes_; }
  size_t part_bytes() const { return part_bytes_; }

  // Lays the tasks out. `plan`: of the searches, placed; nullptr: there are none.
  void Put(const SearchPlan* plan, ViewWriter* views) {
    for (const int t : work_.attended) PutTask(work_.tasks[t], plan, views);
  }
  void Place(uint8_t* parts, uint8_t* outputs, ViewWriter* views) {
    for (size_t i = 0; i < items_.size(); ++i) {
      AttendItem& item = items_[i];
      const AttendTask& task = work_.tasks[work_.attended[i]];
      const size_t slots = static_cast<size_t>(item.group) * item.splits();
      item.stats = reinterpret_cast<AttendStats*>(parts);
      item.sums = reinterpret_cast<float*>(parts + WholeLines(slots * sizeof(AttendStats)));
      parts += PartBytes(item);
      item.output = task.output;
      item.log_sum_exp = task.log_sum_exp;
      if (task.device_output) continue;
      item.output = reinterpret_cast<float*>(outputs);
      outputs += WholeLines(static_cast<size_t>(item.group) * item.head_dim * sizeof(float));
      item.log_sum_exp = reinterpret_cast<float*>(outputs);
      outputs += WholeLines(static_cast<size_t>(item.group) * sizeof(float));
    }
    args_.items = views->Put(items_.data(), items_.size());
    args_.num_items = Fit<int32_t>(items_.size());
  }
  Device::Error Launch(StreamContext* context) const {
    std::vector<void*> streams;
    for (const int t : work_.attended) {
      const AttendTask& task = work_.tasks[t];
      if (task.device_output || (task.search < 0 && task.device_queries)) streams.push_back(task.stream);
    }
    if (const Device::Error error = context->Await(std::move(streams)); error != Device::kNoError) return error;
    return context->device->Launch(args_, context->stream);
  }
  // From where the host reads outputs; searches have been read.
  void Read(const uint8_t* outputs) {
    for (size_t i = 0; i < items_.size(); ++i) {
      AttendTask& task = work_.tasks[work_.attended[i]];
      const size_t group = task.attention.group, bytes = group * task.attention.keys.head_dim * sizeof(float);
      if (!task.device_output) {
        memcpy(task.output, outputs, bytes);
        memcpy(task.log_sum_exp, outputs + WholeLines(bytes), group * sizeof(float));
      }
      outputs += OutputBytes(task);
      const auto* sets = task.search >= 0 ? &work_.found[task.search].positions : task.attention.sets;
      task.attended = int64_t{items_[i].dense_rows} * task.attention.group;
      for (size_t s = 0; sets != nullptr && s < sets->size(); ++s) {
        task.attended += static_cast<int64_t>((*sets)[s].size()) * (sets->size() == 1 ? task.attention.group : 1);
      }
    }
  }

 private:
  void PutTask(const AttendTask& task, const SearchPlan* plan, ViewWriter* views) {
    const cpu::AttentionTask& a = task.attention;
    assert(a.low_keys == nullptr && a.window_runs == nullptr && a.attended == nullptr);
    assert(EndOf(task, work_.searches) < kMostPlaces && a.keys.head_dim <= kMaxHeadDim);
    const AttendSizes sizes(task, work_.searches);
    AttendItem& item = items_.emplace_back();
    item.head_dim = a.keys.head_dim;
    item.group = a.group;
    item.scale = a.scale;
    item.softcap = a.softcap;
    item.keys = RowsOf(a.keys, sizes.keys, views);
    item.values = RowsOf(a.values, sizes.values, views);
    std::vector<AttendRun> dense;
    for (const cpu::PlaceRun& run : a.dense) {
      if (run.begin >= run.end) continue;
      dense.push_back({static_cast<int32_t>(run.begin), static_cast<int32_t>(run.end)});
      item.dense_rows += static_cast<int32_t>(run.end - run.begin);
    }
    item.dense = views->Put(dense.data(), dense.size());
    item.num_dense = Fit<int32_t>(dense.size());
    std::vector<AttendSet> sets;
    int64_t most;
    if (task.search >= 0) {
      const int searched = item_of_.at(task.search);
      item.queries = plan->items()[searched].queries;
      most = FoundSets(*plan, searched, work_.params.scope == Scope::kPerQHead, &sets);
    } else {
      item.queries = task.device_queries ? a.queries : views->Put(a.queries, sizes.queries);
      most = PutSets(task, views, &sets);
    }
    item.sets = views->Put(sets.data(), sets.size());
    item.num_sets = Fit<int32_t>(sets.size());
    item.num_windows = Fit<int32_t>(a.num_windows);
    item.zone_begin = Fit<int32_t>(a.zone_begin);
    item.windows = views->Put(a.windows.chunks, sizes.windows);
    item.chunk_windows = a.windows.chunk_windows;
    SplitAttention(&item, most);
    part_bytes_ += PartBytes(item);
    args_.most_blocks = std::max(args_.most_blocks, BlocksOf(item));
    args_.most_group = std::max(args_.most_group, item.group);
  }

  const AttendWork& work_;
  std::unordered_map<int, int> item_of_;  // of a search, in the plan
  std::vector<AttendItem> items_;
  AttendArgs args_;
  size_t view_bytes_ = 0, output_bytes_ = 0, part_bytes_ = 0;
};

}  // namespace

// Searches' answers lie on the device until all has been read from them there; then they come back with the outputs.
Device::Error AttendOnDevice(const AttendWork& work, CodecCache* cache, StreamContext* context) {
  const bool searches = !work.searched.empty();
  SearchCall search(work.searches, work.searched);
  AttendCall attend(work);
  Device::Error error = search.Begin(cache, context);
  ViewWriter views(context);
  if (error == Device::kNoError) error = views.Reserve(search.view_bytes() + attend.view_bytes());
  if (error != Device::kNoError) return error;
  size_t searched_bytes = 0, answer_bytes = 0;
  if (searches) {
    search.Put(work.params, &views);
    searched_bytes = WholeLines(search.plan().workspace_bytes());
    answer_bytes = WholeLines(search.plan().answer_bytes());
  }
  const size_t result_bytes = answer_bytes + attend.output_bytes();
  error = context->results.Reserve(result_bytes);
  if (error == Device::kNoError) error = context->answers.Reserve(result_bytes);
  if (error == Device::kNoError) error = context->workspace.Reserve(searched_bytes);
  if (error != Device::kNoError) return error;
  if (searches) search.Place(context->workspace.data(), context->results.data(), &views);
  attend.Put(searches ? &search.plan() : nullptr, &views);
  error = context->parts.Reserve(attend.part_bytes());
  if (error != Device::kNoError) return error;
  attend.Place(context->parts.data(), context->results.data() + answer_bytes, &views);
  error = views.Send();
  if (error == Device::kNoError && searches) error = search.Launch(context);
  if (error == Device::kNoError) error = attend.Launch(context);
  if (error == Device::kNoError && result_bytes > 0) {
    error = context->Receive(context->answers.data(), context->results.data(), result_bytes);
  }
  error = context->Finish(error);
  if (error != Device::kNoError) return error;
  if (searches) search.Read(context->answers.data(), work.found);
  attend.Read(context->answers.data() + answer_bytes);
  return Device::kNoError;
}

}  // namespace seine::cuda
