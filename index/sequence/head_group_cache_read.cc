// How a cache begins, and what others read of it: its sizes and positions, the parts of a search, of attention and of
// scoring, stored rows, and what snapshots hold.
#include <algorithm>
#include <cstring>
#include <utility>

#include "index/bytes/state_reader.h"
#include "index/bytes/state_writer.h"
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

int64_t HeadGroupCache::code_bytes() const {
  return codes_.bytes() + keys_.mirror_bytes() + values_.mirror_bytes() + windows_.mirror_bytes() + low_code_bytes_;
}

void HeadGroupCache::FillFacts(HeadGroupFacts* facts) const {
  facts->size = size_;
  facts->zone_keys = codes_.visible();
  facts->segments = codes_.num_segments();
  facts->head_code_bytes = codes_.head_bytes(0);
  facts->head_store_bytes = store_bytes() / num_heads();
  if (facts->codecs != codes_.codecs()) facts->codecs = codes_.codecs();
  if (facts->low != published_low_) facts->low = published_low_;
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
  const int64_t unit = codec.centre == Centre::kWindow ? codec.centre_window : kWindowTokens;
  const int64_t before = std::max<int64_t>(PlaceOf(dense_from) - context_->config.zones.sink, 0);
  return std::min(codes_.visible(), before / unit * unit);
}

absl::Status HeadGroupCache::PrepareSearch(int head, const SearchParams& params, int64_t zone_keys,
                                           SearchTask* task) const {
  codes_.PrepareSearch(head, task);
  task->num_keys = zone_keys;
  const int64_t zone_begin = context_->config.zones.sink;
  task->zone_begin = zone_begin;
  const bool with_dense = params.scope == Scope::kPerKvHead && params.gqa_reduce == GqaReduce::kSoftmaxSum;
  if (!low_.empty()) return FillLowSearch(head, with_dense, task);
  if (keeps_all_keys()) {
    task->keys = {keys_.DeviceChunks(head), keys_.chunk_tokens(), context_->config.geometry.head_dim,
                  context_->config.geometry.dtype};
  }
  if (with_dense) {
    AddDense(head, 0, zone_begin, /*for_backend=*/true, &task->dense);
    // Under kNone, after a cut far back, some dense tokens have no keys; their mass is left out.
    AddDense(head, std::max(zone_begin + zone_keys, raw_begin_), size_, /*for_backend=*/true, &task->dense);
  }
  return absl::OkStatus();
}

void HeadGroupCache::AddDense(int head, int64_t begin, int64_t end, bool for_backend,
                              std::vector<DenseRun>* dense) const {
  while (begin < end) {
    const int64_t stop = std::min<int64_t>(end, (begin / keys_.chunk_tokens() + 1) * keys_.chunk_tokens());
    const uint8_t* const first = for_backend ? keys_.DeviceRow(head, begin) : keys_.Row(head, begin);
    const ConstRows rows = {first, static_cast<size_t>(context_->row_bytes()), context_->config.geometry.dtype};
    dense->push_back({rows, static_cast<int>(stop - begin)});
    begin = stop;
  }
}

void HeadGroupCache::FillAttention(int head, int64_t zone_keys, bool tail, bool on_device,
                                   host::AttentionTask* task) const {
  const Geometry& g = context_->config.geometry;
  const auto chunks = [&](const RowStore& rows) { return on_device ? rows.DeviceChunks(head) : rows.HeadChunks(head); };
  task->keys = {chunks(keys_), keys_.chunk_tokens(), g.head_dim, g.dtype};
  task->values = {chunks(values_), values_.chunk_tokens(), g.head_dim, g.dtype};
  const int64_t zone_begin = zone_keys > 0 ? context_->config.zones.sink : size_;
  const int64_t zone_end = zone_begin + zone_keys;
  task->dense = {{0, zone_begin}, {zone_end, size_}};
  if (!low_.empty()) FillLowAttention(head, task);
  if (zone_keys == 0 || !tail) return;
  task->zone_begin = zone_begin;
  task->num_windows = zone_keys / kWindowTokens;
  task->windows = {chunks(windows_), windows_.chunk_tokens()};
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
  AddDense(head, begin, end, /*for_backend=*/false, &runs);
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

void HeadGroupCache::PlanOwnTail(Staging* staging) {
  for (RowStore* store : {&keys_, &values_, &checksums_, &positions_}) store->PlanOwnTail(size_, staging);
  windows_.PlanOwnTail(WindowsAt(size_), staging);
  codes_.PlanOwnTail(staging);
}

// Keys and values are missing where they have been encoded (kNone), or are low-rank.
PieceList::Extent HeadGroupCache::RowExtent() const {
  if (!keeps_all_keys()) return {size_, std::min<int64_t>(context_->config.zones.sink, raw_begin_), raw_begin_};
  if (!low_.empty()) return {size_, low_begin_, low_end()};
  return {.end = size_};
}

void HeadGroupCache::Save(StateWriter* writer) const {
  writer->Put(size_);
  writer->Put(raw_begin_);
  SaveLow(writer);
  keys_.Save(RowExtent(), writer);
  if (keeps_values()) values_.Save(RowExtent(), writer);
  if (keeps_checksums()) checksums_.Save({.end = size_}, writer);
  if (!whole_) positions_.Save({.end = size_}, writer);
  if (keeps_values()) SaveWindows(writer);
  for (const KeySums& sums : sums_) sums.Save(writer);
  context_->transforms.Save(codes_.encoded() > 0 ? codes_.codecs() : nullptr, writer);
  codes_.Save(writer);
}

void HeadGroupCache::Load(int64_t length, StateReader* reader) {
  size_ = reader->GetWithin(whole_ ? length : 0, length, "a head holds more than its layer");
  raw_begin_ = reader->GetWithin(0, keeps_all_keys() ? 0 : size_, "stored keys begin behind the last");
  LoadLow(reader);
  const DType* const dtype = &context_->config.geometry.dtype;
  if (reader->ok()) keys_.Load(RowExtent(), dtype, reader);
  if (keeps_values() && reader->ok()) values_.Load(RowExtent(), dtype, reader);
  if (keeps_checksums()) checksums_.Load({.end = size_}, nullptr, reader);
  if (!whole_) positions_.Load({.end = size_}, nullptr, reader);
  if (keeps_values()) LoadWindows(reader);
  for (KeySums& sums : sums_) sums.Load(size_, reader);
  codes_.Choose(context_->transforms.Load(reader));
  codes_.Load(context_->ZoneKeys(size_), std::max<int64_t>(0, size_ - context_->config.zones.sink), reader);
}

void HeadGroupCache::SaveWindows(StateWriter* writer) const {
  writer->Put<int32_t>(windows_.chunk_tokens());
  windows_.Save({.end = WindowsAt(size_)}, writer);
}

// Pieces stay as long as they were written, so that sequences go on to share them.
void HeadGroupCache::LoadWindows(StateReader* reader) {
  const PieceList::Shape& earlier = whole_ ? context_->earlier_window_shape : context_->earlier_head_window_shape;
  const int32_t length = reader->version() == 1 ? earlier.length : reader->Get<int32_t>();
  if (length == earlier.length) windows_ = RowStore(whole_ ? &context_->windows : &context_->head_windows, &earlier);
  reader->Check(length == windows_.chunk_tokens(), "a piece holds another number of windows");
  if (reader->ok()) windows_.Load({.end = WindowsAt(size_)}, nullptr, reader);
}

void HeadGroupCache::SaveLow(StateWriter* writer) const {
  if (low_.empty()) return;
  writer->Put(low_begin_);
  for (const LowRankStore& low : low_) low.Save(writer);
}

void HeadGroupCache::LoadLow(StateReader* reader) {
  if (low_.empty()) return;
  low_begin_ = reader->GetWithin(0, size_, "low-rank tokens begin behind the last");
  for (LowRankStore& low : low_) {
    low.Load(size_ - low_begin_, reader);
    reader->Check(low.size() == low_[0].size(), "heads differ in low-rank tokens");
  }
  if (reader->ok()) LowRankChanged();
}

bool HeadGroupCache::IsRight(int64_t length) const {
  int32_t last = -1;
  for (int64_t place = 0; place < size_ && !whole_; ++place) {
    if (position(place) <= last) return false;
    last = position(place);
  }
  return last < length;
}

}  // namespace seine
