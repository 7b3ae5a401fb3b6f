#include "kernels/cuda/evict_calls.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/cpu/key_scores.h"
#include "kernels/cuda/evict_items.h"

namespace seine::cuda {
namespace {

using Error = Device::Error;

constexpr int64_t kMostKeys = int64_t{4} << 20;  // of a batch, unless one task has more
constexpr int kMostTasks = 4096;

// batch(first, count) for runs of tasks of at most kMostKeys scores together.
template <typename Task, typename Batch>
Error InBatches(const Task* tasks, int count, Batch batch) {
  for (int first = 0; first < count;) {
    int now = 1;
    int64_t keys = tasks[first].count;
    while (first + now < count && now < kMostTasks && keys + tasks[first + now].count <= kMostKeys) {
      keys += tasks[first + now++].count;
    }
    if (const Error error = batch(tasks + first, now, keys); error != Device::kNoError) return error;
    first += now;
  }
  return Device::kNoError;
}

// What a task's views take in the lane.
struct ScoreSizes {
  explicit ScoreSizes(const ScoreTask& t)
      : chunks((t.count + t.keys.chunk_tokens - 1) / t.keys.chunk_tokens),
        anchors(!TakesAnchor(t.kind) ? 0
                : t.window == 0      ? int64_t{t.count > 0}
                                     : (t.count + t.window - 1) / t.window),
        squares(t.kind == KeyScore::kUnitL2 ? anchors : 0) {}
  size_t Bytes(const ScoreTask& t) const {
    return ViewWriter::Room(chunks * sizeof(uint8_t*)) + ViewWriter::Room(squares * sizeof(float)) +
           ViewWriter::Room(anchors * t.keys.head_dim * sizeof(float));
  }
  const int64_t chunks, anchors, squares;
};

ScoreItem ItemOf(const ScoreTask& t, float* out, ViewWriter* views) {
  const ScoreSizes sizes(t);
  ScoreItem item;
  item.chunks = views->Put(t.keys.chunks, sizes.chunks);
  item.chunk_tokens = t.keys.chunk_tokens;
  item.head_dim = t.keys.head_dim;
  item.dtype = t.keys.dtype;
  item.kind = t.kind;
  item.count = static_cast<int32_t>(t.count);
  item.window = static_cast<int32_t>(t.window == 0 ? std::max<int64_t>(t.count, 1) : t.window);
  item.anchors = views->Put(t.anchors, sizes.anchors * t.keys.head_dim);
  std::vector<float> squares;
  for (int64_t a = 0; a < sizes.squares; ++a) {
    squares.push_back(cpu::AnchorSquares(t.anchors + a * t.keys.head_dim, t.keys.head_dim));
  }
  item.anchor_squares = views->Put(squares.data(), squares.size());
  item.out = out;
  return item;
}

Error ScoreBatch(const ScoreTask* tasks, int count, int64_t keys, Lane* lane) {
  if (keys == 0) return Device::kNoError;
  size_t bytes = ViewWriter::Room(count * sizeof(ScoreItem));
  for (int i = 0; i < count; ++i) bytes += ScoreSizes(tasks[i]).Bytes(tasks[i]);
  ViewWriter views(lane);
  const size_t out_bytes = static_cast<size_t>(keys) * sizeof(float);
  Error error = views.Reserve(bytes);
  if (error == Device::kNoError) error = lane->workspace.Reserve(out_bytes);
  if (error == Device::kNoError) error = lane->answers.Reserve(out_bytes);
  if (error != Device::kNoError) return error;
  ScoreArgs args;
  args.num_items = count;
  std::vector<ScoreItem> items;
  auto* out = reinterpret_cast<float*>(lane->workspace.data());
  for (int i = 0; i < count; out += tasks[i++].count) {
    items.push_back(ItemOf(tasks[i], out, &views));
    args.most_keys = std::max(args.most_keys, items.back().count);
  }
  args.items = views.Put(items.data(), items.size());
  error = views.Send();
  if (error == Device::kNoError) error = lane->device->Score(args, lane->stream);
  if (error == Device::kNoError) {
    error = lane->device->Copy(lane->answers.data(), lane->workspace.data(), out_bytes, lane->stream);
  }
  error = lane->Finish(error);
  if (error != Device::kNoError) return error;
  const auto* answer = reinterpret_cast<const float*>(lane->answers.data());
  for (int i = 0; i < count; answer += tasks[i++].count) {
    std::copy_n(answer, tasks[i].count, tasks[i].out);
  }
  return Device::kNoError;
}

// A task that keeps something, but not everything.
bool Selects(const SelectTask& t) { return t.kept > 0 && t.kept < t.count; }

Error SelectBatch(const SelectTask* tasks, int count, Lane* lane) {
  size_t items_bytes = ViewWriter::Room(count * sizeof(SelectItem)), score_bytes = 0, kept = 0;
  const size_t states = ViewWriter::Room(count * sizeof(SelectState));
  for (int i = 0; i < count; ++i) {
    if (!Selects(tasks[i])) continue;
    score_bytes += ViewWriter::Room(tasks[i].count * sizeof(float));
    kept += tasks[i].kept;
  }
  if (kept == 0) return Device::kNoError;
  ViewWriter views(lane);
  Error error = views.Reserve(items_bytes + score_bytes);
  if (error == Device::kNoError) error = lane->workspace.Reserve(states + kept * sizeof(uint32_t));
  if (error == Device::kNoError) error = lane->answers.Reserve(kept * sizeof(uint32_t));
  if (error != Device::kNoError) return error;
  auto* state = reinterpret_cast<SelectState*>(lane->workspace.data());
  uint8_t* const places = lane->workspace.data() + states;
  auto* at = reinterpret_cast<uint32_t*>(places);
  std::vector<SelectItem> items;
  for (int i = 0; i < count; ++i) {
    const SelectTask& t = tasks[i];
    if (!Selects(t)) continue;
    items.push_back(
        {views.Put(t.scores, t.count), static_cast<uint32_t>(t.count), static_cast<uint32_t>(t.kept), state++, at});
    at += t.kept;
  }
  const SelectArgs args = {views.Put(items.data(), items.size()), static_cast<int32_t>(items.size())};
  error = views.Send();
  if (error == Device::kNoError) error = lane->device->Select(args, lane->stream);
  if (error == Device::kNoError) {
    error = lane->device->Copy(lane->answers.data(), places, kept * sizeof(uint32_t), lane->stream);
  }
  error = lane->Finish(error);
  if (error != Device::kNoError) return error;
  const auto* answer = reinterpret_cast<const uint32_t*>(lane->answers.data());
  for (int i = 0; i < count; ++i) {
    if (!Selects(tasks[i])) continue;
    tasks[i].places->assign(answer, answer + tasks[i].kept);
    answer += tasks[i].kept;
  }
  return Device::kNoError;
}

}  // namespace

Error ScoreOnDevice(const ScoreTask* tasks, int count, Lane* lane) {
  return InBatches(tasks, count,
                   [&](const ScoreTask* first, int now, int64_t keys) { return ScoreBatch(first, now, keys, lane); });
}

Error SelectOnDevice(const SelectTask* tasks, int count, Lane* lane) {
  for (int i = 0; i < count; ++i) {
    if (Selects(tasks[i])) continue;
    tasks[i].places->resize(std::min(tasks[i].kept, tasks[i].count));
    std::iota(tasks[i].places->begin(), tasks[i].places->end(), 0u);
  }
  return InBatches(tasks, count,
                   [&](const SelectTask* first, int now, int64_t) { return SelectBatch(first, now, lane); });
}

}  // namespace seine::cuda
