#include "kernels/backends/cuda/evict_calls.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/ops/score_keys/evict_items.h"
#include "kernels/ops/score_keys/score_keys_cpu.h"

namespace seine::cuda {
namespace {

using Error = Device::Error;

// A batch has at most so many scores, and groups of keys that are summed apart (8 bytes a coordinate), unless one task
// has more.
constexpr int64_t kMostKeys = int64_t{4} << 20, kMostGroups = int64_t{32} << 10;
constexpr int kMostTasks = 4096;
static_assert(kMostTasks <= kMostGridRows);

// batch(first, count, size) for runs of tasks that are `most` together; size_of(task) tells what one is.
template <typename Task, typename Size, typename Batch>
Error InBatches(const Task* tasks, int count, int64_t most, Size size_of, Batch batch) {
  for (int first = 0; first < count;) {
    int now = 1;
    int64_t size = size_of(tasks[first]);
    while (first + now < count && now < kMostTasks && size + size_of(tasks[first + now]) <= most) {
      size += size_of(tasks[first + now++]);
    }
    if (const Error error = batch(tasks + first, now, size); error != Device::kNoError) return error;
    first += now;
  }
  return Device::kNoError;
}

int64_t ChunksOf(const ChunkedRows& keys, int64_t count) { return (count + keys.chunk_tokens - 1) / keys.chunk_tokens; }

int64_t GroupsOf(const SumTask& t) {
  int64_t groups = 0;
  for (int64_t w = 0; w < t.windows.count; ++w) {
    groups += (t.windows.end(w, t.count) - t.windows.begin(w) + kSumGroup - 1) / kSumGroup;
  }
  return groups;
}

SumItem ItemOf(const SumTask& t, double* sums, double* partial, ViewWriter* views) {
  SumItem item;
  std::vector<int32_t> key_begins, group_begins;
  for (int64_t w = 0; w < t.windows.count; ++w) {
    group_begins.push_back(Fit<int32_t>(key_begins.size()));
    const int64_t end = t.windows.end(w, t.count);
    for (int64_t key = t.windows.begin(w); key < end; key += kSumGroup) {
      key_begins.push_back(Fit<int32_t>(key));
      item.longest = std::max(item.longest, Fit<int32_t>(std::min<int64_t>(kSumGroup, end - key)));
    }
  }
  item.windows = Fit<int32_t>(group_begins.size());
  item.groups = Fit<int32_t>(key_begins.size());
  key_begins.push_back(Fit<int32_t>(t.count));
  group_begins.push_back(item.groups);
  item.chunks = views->Put(t.keys.chunks, ChunksOf(t.keys, t.count));
  item.key_begins = views->Put(key_begins.data(), key_begins.size());
  item.group_begins = views->Put(group_begins.data(), group_begins.size());
  item.chunk_tokens = t.keys.chunk_tokens;
  item.head_dim = t.keys.head_dim;
  item.dtype = t.keys.dtype;
  item.unit = t.unit;
  item.partial = partial;
  item.sums = sums;
  return item;
}

Error SumBatch(const SumTask* tasks, int count, StreamContext* context) {
  size_t bytes = ViewWriter::Room(count * sizeof(SumItem)), sums = 0, partial = 0;
  for (int i = 0; i < count; ++i) {
    const SumTask& t = tasks[i];
    const int64_t groups = GroupsOf(t);
    bytes += ViewWriter::Room(ChunksOf(t.keys, t.count) * sizeof(uint8_t*));
    bytes += ViewWriter::Room((groups + 1) * sizeof(int32_t));
    bytes += ViewWriter::Room((t.windows.count + 1) * sizeof(int32_t));
    sums += t.windows.count * t.keys.head_dim;
    partial += groups * t.keys.head_dim;
  }
  if (sums == 0) return Device::kNoError;
  ViewWriter views(context);
  Error error = views.Reserve(bytes);
  if (error == Device::kNoError) error = context->workspace.Reserve((sums + partial) * sizeof(double));
  if (error == Device::kNoError) error = context->answers.Reserve(sums * sizeof(double));
  if (error != Device::kNoError) return error;
  SumArgs args;
  args.num_items = count;
  std::vector<SumItem> items;
  auto* sums_at = reinterpret_cast<double*>(context->workspace.data());
  double* partial_at = sums_at + sums;
  for (int i = 0; i < count; ++i) {
    const SumItem& item = items.emplace_back(ItemOf(tasks[i], sums_at, partial_at, &views));
    const int slots = SumSlots(item.head_dim);
    args.most_blocks = std::max(args.most_blocks, (item.groups + slots - 1) / slots);
    args.most_windows = std::max(args.most_windows, item.windows);
    sums_at += int64_t{item.windows} * item.head_dim;
    partial_at += int64_t{item.groups} * item.head_dim;
  }
  args.items = views.Put(items.data(), items.size());
  error = views.Send();
  if (error == Device::kNoError) error = context->device->Launch(args, context->stream);
  if (error == Device::kNoError) {
    error = context->Receive(context->answers.data(), context->workspace.data(), sums * sizeof(double));
  }
  error = context->Finish(error);
  if (error != Device::kNoError) return error;
  const auto* answer = reinterpret_cast<const double*>(context->answers.data());
  for (const SumTask* t = tasks; t < tasks + count; ++t) {
    const int64_t size = t->windows.count * t->keys.head_dim;
    std::copy_n(answer, size, t->sums);
    answer += size;
  }
  return Device::kNoError;
}

// What a task's views take in the context.
struct ScoreSizes {
  explicit ScoreSizes(const ScoreTask& t)
      : chunks(ChunksOf(t.keys, t.count)),
        begins(t.windows.begins == nullptr ? 0 : t.windows.count),
        anchors(TakesAnchor(t.kind) && t.count > 0 ? t.windows.count : 0),
        squares(t.kind == KeyScore::kUnitL2 ? anchors : 0) {}
  size_t Bytes(const ScoreTask& t) const {
    return ViewWriter::Room(chunks * sizeof(uint8_t*)) + ViewWriter::Room(begins * sizeof(int32_t)) +
           ViewWriter::Room(squares * sizeof(float)) + ViewWriter::Room(anchors * t.keys.head_dim * sizeof(float));
  }
  const int64_t chunks, begins, anchors, squares;
};

ScoreItem ItemOf(const ScoreTask& t, float* out, ViewWriter* views) {
  const ScoreSizes sizes(t);
  ScoreItem item;
  item.chunks = views->Put(t.keys.chunks, sizes.chunks);
  item.chunk_tokens = t.keys.chunk_tokens;
  item.head_dim = t.keys.head_dim;
  item.dtype = t.keys.dtype;
  item.kind = t.kind;
  item.count = Fit<int32_t>(t.count);
  item.windows = Fit<int32_t>(t.windows.count);
  item.begins = views->Put(t.windows.begins, sizes.begins);
  item.anchors = views->Put(t.anchors, sizes.anchors * t.keys.head_dim);
  std::vector<float> squares;
  for (int64_t a = 0; a < sizes.squares; ++a) {
    squares.push_back(cpu::AnchorSquares(t.anchors + a * t.keys.head_dim, t.keys.head_dim));
  }
  item.anchor_squares = views->Put(squares.data(), squares.size());
  item.out = out;
  return item;
}

Error ScoreBatch(const ScoreTask* tasks, int count, int64_t keys, StreamContext* context) {
  if (keys == 0) return Device::kNoError;
  size_t bytes = ViewWriter::Room(count * sizeof(ScoreItem));
  for (int i = 0; i < count; ++i) bytes += ScoreSizes(tasks[i]).Bytes(tasks[i]);
  ViewWriter views(context);
  const size_t out_bytes = static_cast<size_t>(keys) * sizeof(float);
  Error error = views.Reserve(bytes);
  if (error == Device::kNoError) error = context->workspace.Reserve(out_bytes);
  if (error == Device::kNoError) error = context->answers.Reserve(out_bytes);
  if (error != Device::kNoError) return error;
  ScoreArgs args;
  args.num_items = count;
  std::vector<ScoreItem> items;
  auto* out = reinterpret_cast<float*>(context->workspace.data());
  for (int i = 0; i < count; out += tasks[i++].count) {
    items.push_back(ItemOf(tasks[i], out, &views));
    args.most_keys = std::max(args.most_keys, items.back().count);
  }
  args.items = views.Put(items.data(), items.size());
  error = views.Send();
  if (error == Device::kNoError) error = context->device->Launch(args, context->stream);
  if (error == Device::kNoError) {
    error = context->Receive(context->answers.data(), context->workspace.data(), out_bytes);
  }
  error = context->Finish(error);
  if (error != Device::kNoError) return error;
  const auto* answer = reinterpret_cast<const float*>(context->answers.data());
  for (int i = 0; i < count; answer += tasks[i++].count) {
    std::copy_n(answer, tasks[i].count, tasks[i].out);
  }
  return Device::kNoError;
}

// A task that keeps something, but not everything.
bool Selects(const SelectTask& t) { return t.kept > 0 && t.kept < t.count; }

Error SelectBatch(const SelectTask* tasks, int count, StreamContext* context) {
  size_t items_bytes = ViewWriter::Room(count * sizeof(SelectItem)), score_bytes = 0, kept = 0;
  const size_t states = ViewWriter::Room(count * sizeof(SelectState));
  for (int i = 0; i < count; ++i) {
    if (!Selects(tasks[i])) continue;
    score_bytes += ViewWriter::Room(tasks[i].count * sizeof(float));
    kept += tasks[i].kept;
  }
  if (kept == 0) return Device::kNoError;
  ViewWriter views(context);
  Error error = views.Reserve(items_bytes + score_bytes);
  if (error == Device::kNoError) error = context->workspace.Reserve(states + kept * sizeof(uint32_t));
  if (error == Device::kNoError) error = context->answers.Reserve(kept * sizeof(uint32_t));
  if (error != Device::kNoError) return error;
  auto* state = reinterpret_cast<SelectState*>(context->workspace.data());
  uint8_t* const places = context->workspace.data() + states;
  auto* at = reinterpret_cast<uint32_t*>(places);
  std::vector<SelectItem> items;
  for (int i = 0; i < count; ++i) {
    const SelectTask& t = tasks[i];
    if (!Selects(t)) continue;
    items.push_back({views.Put(t.scores, t.count), Fit<uint32_t>(t.count), Fit<uint32_t>(t.kept), state++, at});
    at += t.kept;
  }
  const SelectArgs args = {views.Put(items.data(), items.size()), Fit<int32_t>(items.size())};
  error = views.Send();
  if (error == Device::kNoError) error = context->device->Launch(args, context->stream);
  if (error == Device::kNoError) {
    error = context->Receive(context->answers.data(), places, kept * sizeof(uint32_t));
  }
  error = context->Finish(error);
  if (error != Device::kNoError) return error;
  const auto* answer = reinterpret_cast<const uint32_t*>(context->answers.data());
  for (int i = 0; i < count; ++i) {
    if (!Selects(tasks[i])) continue;
    tasks[i].places->assign(answer, answer + tasks[i].kept);
    answer += tasks[i].kept;
  }
  return Device::kNoError;
}

}  // namespace

Error SumOnDevice(const SumTask* tasks, int count, StreamContext* context) {
  return InBatches(
      tasks, count, kMostGroups, [](const SumTask& t) { return GroupsOf(t); },
      [&](const SumTask* first, int now, int64_t) { return SumBatch(first, now, context); });
}

Error ScoreOnDevice(const ScoreTask* tasks, int count, StreamContext* context) {
  return InBatches(
      tasks, count, kMostKeys, [](const ScoreTask& t) { return t.count; },
      [&](const ScoreTask* first, int now, int64_t keys) { return ScoreBatch(first, now, keys, context); });
}

Error SelectOnDevice(const SelectTask* tasks, int count, StreamContext* context) {
  for (int i = 0; i < count; ++i) {
    if (Selects(tasks[i])) continue;
    tasks[i].places->resize(std::min(tasks[i].kept, tasks[i].count));
    std::iota(tasks[i].places->begin(), tasks[i].places->end(), 0u);
  }
  return InBatches(
      tasks, count, kMostKeys, [](const SelectTask& t) { return t.count; },
      [&](const SelectTask* first, int now, int64_t) { return SelectBatch(first, now, context); });
}

}  // namespace seine::cuda
