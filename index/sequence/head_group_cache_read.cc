// How a cache begins, and what others read of it: its sizes and positions, the parts of a search, of attention and of
// scoring, and stored rows.
#include <algorithm>
#include <cstring>
#include <utility>

#include "index/sequence/head_group_cache.h"
#include "kernels/host.h"
#include "kernels/stop.h"

namespace seine {

namespace {

constexpr size_t kRowsRead = 4096;  // between looks at the caller's token

}  // namespace

std::vector<KeySums> HeadGroupCache::MakeSums(const Context& context, int heads) {
  const SumsWanted wanted = context.eviction.sums();
  if (!wanted.any() || context.config.subspace) return {};
  return std::vector<KeySums>(heads, KeySums(wanted, context.config.geometry.head_dim));
}

int64_t HeadGroupCache::store_bytes() const {
  return keys_.bytes() + values_.bytes() + checksums_.bytes() + positions_.bytes() + windows_.bytes() +
         low_store_bytes_;
}

int64_t HeadGroupCache::code_bytes() const { return codes_.bytes() + low_code_bytes_; }

void HeadGroupCache::Tell(HeadGroupFacts* facts) const {
  facts->size = size_;
  facts->zone_keys = codes_.visible();
  facts->segments = codes_.num_segments();
  facts->head_code_bytes = codes_.head_bytes(0);
  facts->head_store_bytes = store_bytes() / num_heads();
  if (facts->codecs != codes_.codecs()) facts->codecs = codes_.codecs();
  if (facts->low != low_told_) facts->low = low_told_;
}

HeadGroupCache::HeadGroupCache(const Context* context, int layer)
    : context_(context),
      whole_(true),
      first_head_(0),
      keys_(&context->rows, &context->row_shape),
      values_(&context->rows, &context->row_shape),
      checksums_(&context->checksums, &context->checksum_shape),
      positions_(&context->head_positions, &context->head_position_shape),
      windows_(&context->windows, &context->window_shape),
      sums_(MakeSums(*context, context->config.geometry.num_kv_heads)),
      codes_(&context->codes) {
  if (!context->config.subspace) return;
  for (const LowRankShape& shape : context->low_rank[layer]) low_.emplace_back(&shape, &context->ledger);
  LowRankChanged();
}

HeadGroupCache::HeadGroupCache(const Context* context, int layer, int head)
    : context_(context),
      whole_(false),
      first_head_(head),
      keys_(&context->head_rows, &context->head_row_shape),
      values_(&context->head_rows, &context->head_row_shape),
      checksums_(&context->head_checksums, &context->head_checksum_shape),
      positions_(&context->head_positions, &context->head_position_shape),
      windows_(&context->head_windows, &context->head_window_shape),
      sums_(MakeSums(*context, 1)),
      codes_(&context->head_codes, head) {
  if (!context->config.subspace) return;
  low_.emplace_back(&context->low_rank[layer][head], &context->ledger);
  LowRankChanged();
}

int32_t HeadGroupCache::position(int64_t place) const {
  if (whole_) return static_cast<int32_t>(place);
  int32_t position;
  std::memcpy(&position, positions_.Row(0, place), sizeof(position));
  return position;
}

int64_t HeadGroupCache::PlaceOf(int64_t wanted) const {
  if (whole_) return std::clamp<int64_t>(wanted, 0, size_);
  int64_t low = 0, high = size_;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (position(middle) < wanted) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

int64_t HeadGroupCache::ZoneKeys(int64_t dense_from) const {
  if (dense_from < 0) return codes_.visible();
  const CodecConfig& codec = context_->config.codec;
  const int64_t unit = codec.centre == Centre::kWindow ? codec.centre_tokens : kWindowTokens;
  const int64_t before = std::max<int64_t>(PlaceOf(dense_from) - context_->config.zones.sink, 0);
  return std::min(codes_.visible(), before / unit * unit);
}

absl::Status HeadGroupCache::FillTask(int head, const SearchParams& params, int64_t zone_keys, SearchTask* task) const {
  codes_.FillTask(head, task);
  task->num_keys = zone_keys;
  const int64_t zone_begin = context_->config.zones.sink;
  task->zone_begin = zone_begin;
  const bool with_dense = params.scope == Scope::kPerKvHead && params.reduce == GqaReduce::kSoftmaxSum;
  if (!low_.empty()) return FillLowSearch(head, with_dense, task);
  if (keeps_all_keys()) {
    task->keys = {keys_.HeadChunks(head), keys_.chunk_tokens(), context_->config.geometry.head_dim,
                  context_->config.geometry.dtype};
  }
  if (with_dense) {
    AddDense(head, 0, zone_begin, &task->dense);
    // Under kNone, after a cut far back, some dense tokens have no keys; their mass is left out.
    AddDense(head, std::max(zone_begin + zone_keys, raw_begin_), size_, &task->dense);
  }
  return absl::OkStatus();
}

void HeadGroupCache::AddDense(int head, int64_t begin, int64_t end, std::vector<DenseRun>* dense) const {
  while (begin < end) {
    const int64_t stop = std::min<int64_t>(end, (begin / keys_.chunk_tokens() + 1) * keys_.chunk_tokens());
    const ConstRows rows = {keys_.Row(head, begin), static_cast<size_t>(context_->row_bytes()),
                            context_->config.geometry.dtype};
    dense->push_back({rows, static_cast<int>(stop - begin)});
    begin = stop;
  }
}

void HeadGroupCache::FillAttention(int head, int64_t zone_keys, bool tail, host::AttentionTask* task) const {
  const Geometry& g = context_->config.geometry;
  task->keys = {keys_.HeadChunks(head), keys_.chunk_tokens(), g.head_dim, g.dtype};
  task->values = {values_.HeadChunks(head), values_.chunk_tokens(), g.head_dim, g.dtype};
  const int64_t zone_begin = zone_keys > 0 ? context_->config.zones.sink : size_;
  const int64_t zone_end = zone_begin + zone_keys;
  task->dense = {{0, zone_begin}, {zone_end, size_}};
  if (!low_.empty()) FillLowAttention(head, task);
  if (zone_keys == 0 || !tail) return;
  task->zone_begin = zone_begin;
  task->num_windows = zone_keys / kWindowTokens;
  task->windows = {windows_.HeadChunks(head), windows_.chunk_tokens()};
}

absl::StatusOr<HeadTokens> HeadGroupCache::Tokens(int head, HeadStorage* storage) const {
  const Geometry& g = context_->config.geometry;
  HeadTokens tokens;
  tokens.count = size_;
  if (!whole_) {
    storage->positions.resize(size_);
    for (int64_t place = 0; place < size_; ++place) storage->positions[place] = position(place);
    tokens.positions = storage->positions.data();
  }
  if (!low_.empty()) {
    if (absl::Status s = RebuildTokens(head, storage, &tokens); !s.ok()) return s;
    return tokens;
  }
  tokens.keys = {keys_.HeadChunks(head), keys_.chunk_tokens(), g.head_dim, g.dtype};
  if (keeps_values()) tokens.values = {values_.HeadChunks(head), values_.chunk_tokens(), g.head_dim, g.dtype};
  if (!sums_.empty()) tokens.sums = &sums_[head];
  return tokens;
}

void HeadGroupCache::CopyFloats(int head, int64_t place, int64_t count, float* keys, float* values,
                                int64_t stride) const {
  const Geometry& g = context_->config.geometry;
  if (!low_.empty()) {  // all at once: a basis is unpacked for each read
    std::vector<float> rows(count * g.head_dim), of_values(values == nullptr ? 0 : rows.size());
    ReadRange(head, place, place + count, rows.data(), values == nullptr ? nullptr : of_values.data());
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(rows.data() + i * g.head_dim, g.head_dim, keys + i * stride);
      if (values != nullptr) std::copy_n(of_values.data() + i * g.head_dim, g.head_dim, values + i * stride);
    }
    return;
  }
  for (const auto& [store, out] : {std::pair{&keys_, keys}, std::pair{&values_, values}}) {
    for (int64_t i = 0; i < count && out != nullptr; ++i) {
      const ConstRows row = {store->Row(head, place + i), static_cast<size_t>(context_->row_bytes()), g.dtype};
      host::ToFloat(row, 1, g.head_dim, out + i * stride);
    }
  }
}

void HeadGroupCache::DotKeys(int head, int64_t begin, int64_t end, const float* queries, int group, float* out,
                             int64_t stride) const {
  const Geometry& g = context_->config.geometry;
  if (!low_.empty()) {
    std::vector<float> rows((end - begin) * g.head_dim);
    ReadRange(head, begin, end, rows.data(), nullptr);
    const ConstRows read = {rows.data(), g.head_dim * sizeof(float), DType::kFloat32};
    host::DotRows(read, end - begin, g.head_dim, queries, group, out, stride);
    return;
  }
  std::vector<DenseRun> runs;
  AddDense(head, begin, end, &runs);
  for (const DenseRun& run : runs) {
    host::DotRows(run.keys, run.count, g.head_dim, queries, group, out, stride);
    out += run.count;
  }
}

void HeadGroupCache::Gather(int head, absl::Span<const int64_t> places, std::string* keys, std::string* values) const {
  const size_t row_bytes = context_->row_bytes();
  if (!low_.empty()) return GatherRebuilt(head, places, keys, values);
  for (const auto& [store, out] : {std::pair{&keys_, keys}, std::pair{&values_, values}}) {
    if (out == nullptr) continue;
    out->resize(places.size() * row_bytes);
    char* to = out->data();
    for (size_t i = 0; i < places.size(); ++i) {
      if (i % kRowsRead == 0 && StopRequested()) return;
      std::copy_n(reinterpret_cast<const char*>(store->Row(head, places[i])), row_bytes, to);
      to += row_bytes;
    }
  }
}

}  // namespace seine
