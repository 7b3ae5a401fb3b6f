#include "kernels/backends/cuda/search_calls.h"

#include <algorithm>
#include <utility>

#include "kernels/codecs/kinds/registry.h"
#include "kernels/ops/query/search_items.h"
#include "kernels/ops/search/search_plan.h"

namespace seine::cuda {
namespace {

// Keys whose codes a search reads: where tiers are made, those that are counted too.
int64_t CodedKeys(const SearchTask& t) {
  return t.collision_counts == nullptr ? t.num_keys : std::max(t.num_keys, t.counted_keys);
}

// What a task's views take in the context.
struct TaskSizes {
  explicit TaskSizes(const SearchTask& t)
      : segments(static_cast<size_t>((CodedKeys(t) + t.segment_keys - 1) / t.segment_keys)),
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
  assert(t.runs == nullptr);
  const TaskSizes sizes(t);
  SearchItem item;
  item.codec = codec;
  item.layout = t.codec->layout();
  item.kind = t.codec->Tables().kind;
  item.segments = views->Put(t.segments, sizes.segments);
  item.segment_keys = t.segment_keys;
  item.num_keys = t.num_keys;
  item.usual_share = t.codec->UsualShare(t.num_keys);
  item.zone_begin = t.zone_begin;
  if (t.shared_centre != nullptr) {
    item.shared_centre = views->Put(t.shared_centre->values.data(), sizes.centre);
    item.shared_scale = t.shared_centre->scale;
  }
  item.collision_counts = t.collision_counts;
  item.counted_keys = t.counted_keys;
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
  item.refine_all = t.refine_all;
  return item;
}

}  // namespace

Device::Error SearchOnDevice(const SearchTask* tasks, const std::vector<int>& batch, const SearchParams& params,
                             CodecCache* cache, SearchOutput* outputs, StreamContext* context) {
  std::vector<const CodecTables*> codecs(batch.size());
  size_t bytes = 0, queries = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    const SearchTask& task = tasks[batch[i]];
    if (const Device::Error error = cache->Get(*task.codec, context, &codecs[i]); error != Device::kNoError)
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
  if (error == Device::kNoError) error = context->device->Launch(SearchLaunch{&plan, args}, context->stream);
  error = context->Finish(error);
  if (error != Device::kNoError) return error;
  for (size_t i = 0; i < batch.size(); ++i) plan.Read(static_cast<int>(i), &outputs[batch[i]]);
  return Device::kNoError;
}

}  // namespace seine::cuda
