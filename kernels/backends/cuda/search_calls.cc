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
        queries(t.device_queries ? 0 : static_cast<size_t>(t.group) * t.codec->layout().head_dim) {}
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
  item.usual_share = t.codec->DefaultCandidateFraction(t.num_keys);
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
  item.queries = t.device_queries ? t.queries : views->Put(t.queries, sizes.queries);
  item.group = t.group;
  item.refine_all = t.refine_all;
  return item;
}

}  // namespace

Device::Error SearchCall::Begin(CodecCache* cache, StreamContext* context) {
  codecs_.resize(batch_.size());
  size_t queries = 0;
  for (size_t i = 0; i < batch_.size(); ++i) {
    const SearchTask& task = tasks_[batch_[i]];
    if (const Device::Error error = cache->Get(*task.codec, context, &codecs_[i]); error != Device::kNoError)
      return error;
    view_bytes_ += TaskSizes(task).Bytes(task);
    queries += task.group;
  }
  view_bytes_ += ViewWriter::Room(batch_.size() * sizeof(SearchItem)) + ViewWriter::Room(queries * sizeof(QueryPlan)) +
                 ViewWriter::Room(queries * sizeof(SetPlan));
  return Device::kNoError;
}

Device::Error SearchCall::Launch(StreamContext* context) const {
  std::vector<void*> streams;
  for (const int place : batch_) {
    if (tasks_[place].device_queries) streams.push_back(tasks_[place].stream);
  }
  if (const Device::Error error = context->Await(std::move(streams)); error != Device::kNoError) return error;
  return context->device->Launch(SearchLaunch{&*plan_, args_}, context->stream);
}

void SearchCall::Put(const SearchParams& params, ViewWriter* views) {
  std::vector<SearchItem> items;
  for (size_t i = 0; i < batch_.size(); ++i) items.push_back(ItemOf(tasks_[batch_[i]], codecs_[i], views));
  plan_.emplace(params, std::move(items));
}

void SearchCall::Place(uint8_t* workspace, uint8_t* answers, ViewWriter* views) {
  workspace_ = workspace;
  plan_->Place(workspace, answers);
  args_.params = plan_->params();
  args_.items = views->Put(plan_->items().data(), plan_->items().size());
  args_.queries = views->Put(plan_->queries().data(), plan_->queries().size());
  args_.sets = views->Put(plan_->sets().data(), plan_->sets().size());
}

void SearchCall::Read(uint8_t* answers, SearchOutput* outputs) {
  plan_->Place(workspace_, answers);
  for (size_t i = 0; i < batch_.size(); ++i) plan_->Read(static_cast<int>(i), &outputs[batch_[i]]);
}

Device::Error SearchOnDevice(const SearchTask* tasks, const std::vector<int>& batch, const SearchParams& params,
                             CodecCache* cache, SearchOutput* outputs, StreamContext* context) {
  SearchCall call(tasks, batch);
  if (const Device::Error error = call.Begin(cache, context); error != Device::kNoError) return error;
  ViewWriter views(context);
  if (const Device::Error error = views.Reserve(call.view_bytes()); error != Device::kNoError) return error;
  call.Put(params, &views);
  Device::Error error = context->workspace.Reserve(call.plan().workspace_bytes());
  if (error == Device::kNoError) error = context->answers.Reserve(call.plan().answer_bytes());
  if (error != Device::kNoError) return error;
  call.Place(context->workspace.data(), context->answers.data(), &views);
  error = views.Send();
  if (error == Device::kNoError) error = call.Launch(context);
  error = context->Finish(error);
  if (error == Device::kNoError) call.Read(context->answers.data(), outputs);
  return error;
}

}  // namespace seine::cuda
