// Append, truncate and selection of one cache.
#include "index/sequence/head_group_cache.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "index/stop_status.h"
#include "kernels/host.h"
#include "kernels/stop.h"
#include "profile/field_error.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace seine {

namespace {

// A window takes 1-2 us to read and sum; below this many, a wake-up of other threads costs more than it saves.
constexpr int kWindowsWorthSharing = 40;

constexpr int64_t kRowsWritten = 2048;  // between looks at the caller's token: a millisecond of fresh pages

// Checksums of `count` tokens of `token_bytes` each.
std::vector<uint64_t> Checksums(const uint8_t* rows, int64_t count, int64_t token_bytes) {
  std::vector<uint64_t> sums(count);
  for (int64_t i = 0; i < count; ++i) sums[i] = XXH3_64bits(rows + i * token_bytes, token_bytes);
  return sums;
}

const uint8_t* Bytes(const std::vector<uint64_t>& sums) { return reinterpret_cast<const uint8_t*>(sums.data()); }

// Checksums cover the keys and values of tokens of the whole layer: heads that part keep the same.
std::vector<uint32_t> RowChecksums(const uint8_t* keys, const uint8_t* values, int64_t count, int64_t token_bytes) {
  std::vector<uint32_t> sums(count);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t of_value = XXH3_64bits(values + i * token_bytes, token_bytes);
    sums[i] = static_cast<uint32_t>(XXH3_64bits_withSeed(keys + i * token_bytes, token_bytes, of_value));
  }
  return sums;
}

const uint8_t* Bytes(const std::vector<uint32_t>& sums) { return reinterpret_cast<const uint8_t*>(sums.data()); }

}  // namespace

// Zone keys of a cache that is being extended: stored rows up to its old size, then the rows just given.
class HeadGroupCache::AppendedKeys : public KeySource {
 public:
  // `input`: of the whole layer's heads. `zone`: all keys of the zone, of a cache of one head, where they have been
  // rebuilt already; else nullptr.
  AppendedKeys(const HeadGroupCache* cache, const uint8_t* input, int64_t new_size, const uint8_t* zone = nullptr)
      : cache_(*cache), input_(input), new_size_(new_size), zone_(zone) {}

  ConstRows Rows(int head, int64_t key, int64_t* count) const override {
    const Context& context = *cache_.context_;
    const int64_t place = context.config.zones.sink + key;
    const DType dtype = context.config.geometry.dtype;
    if (zone_ != nullptr) {
      *count = context.ZoneKeys(new_size_) - key;
      return {zone_ + key * context.row_bytes(), static_cast<size_t>(context.row_bytes()), dtype};
    }
    if (place >= cache_.size_) {
      *count = new_size_ - place;
      const uint8_t* token = input_ + (place - cache_.size_) * context.token_bytes() + cache_.head_offset();
      return {token + int64_t{head} * context.row_bytes(), static_cast<size_t>(context.token_bytes()), dtype};
    }
    if (cache_.IsLow(place)) {
      *count = std::min<int64_t>(kRebuiltKeys, cache_.low_end() - place);
      return Rebuilt(head, place, *count);
    }
    const int64_t chunk_end = (place / cache_.keys_.chunk_tokens() + 1) * cache_.keys_.chunk_tokens();
    const int64_t full_end = !cache_.low_.empty() && place < cache_.low_begin_ ? cache_.low_begin_ : cache_.size_;
    *count = std::min(chunk_end, full_end) - place;
    return {cache_.keys_.Row(head, place), static_cast<size_t>(context.row_bytes()), dtype};
  }

 private:
  static constexpr int64_t kRebuiltKeys = 512;

  // In the dtype of the rows that may lie beside them.
  ConstRows Rebuilt(int head, int64_t place, int64_t count) const {
    const Context& context = *cache_.context_;
    const DType dtype = context.config.geometry.dtype;
    const int64_t floats = count * context.config.geometry.head_dim;
    std::vector<float> rows(floats);
    cache_.ReadRange(head, place, place + count, rows.data(), nullptr);
    rebuilt_.push_back(std::make_unique<uint8_t[]>(count * context.row_bytes()));
    Narrow(rows.data(), floats, dtype, rebuilt_.back().get());
    return {rebuilt_.back().get(), static_cast<size_t>(context.row_bytes()), dtype};
  }

  const HeadGroupCache& cache_;
  const uint8_t* const input_;
  const int64_t new_size_;
  const uint8_t* const zone_;
  mutable std::vector<std::unique_ptr<uint8_t[]>> rebuilt_;  // for as long as the source lives
};

absl::Status HeadGroupCache::CheckReplay(int64_t first, int64_t count, const uint8_t* keys,
                                         const uint8_t* values) const {
  const int64_t token_bytes = context_->token_bytes();
  const int64_t end = PlaceOf(first + count);
  for (int64_t place = PlaceOf(first); place < end;) {
    const int64_t run = whole_ ? end - place : 1;
    const int64_t offset = (position(place) - first) * token_bytes + head_offset();
    absl::Status s = CheckReplayAt(place, run, keys + offset, keeps_values() ? values + offset : nullptr);
    if (!s.ok()) return s;
    place += run;
  }
  return absl::OkStatus();
}

absl::Status HeadGroupCache::CheckReplayAt(int64_t place, int64_t count, const uint8_t* keys,
                                           const uint8_t* values) const {
  const char* field = "keys";
  const char* bytes = "bytes";
  int64_t different;
  const int64_t token_bytes = context_->token_bytes();
  if (!low_.empty()) {
    bytes = "bytes, of keys or of values";
    const auto sums = RowChecksums(keys - head_offset(), values - head_offset(), count, token_bytes);
    different = checksums_.FirstDifference(place, Bytes(sums), count, sizeof(uint32_t));
  } else if (keeps_all_keys()) {
    different = keys_.FirstDifference(place, keys, count, token_bytes);
  } else {
    different = checksums_.FirstDifference(place, Bytes(Checksums(keys, count, token_bytes)), count, sizeof(uint64_t));
  }
  if (different < 0 && keeps_values() && low_.empty()) {
    field = "values";
    different = values_.FirstDifference(place, values, count, token_bytes);
  }
  if (different < 0) return absl::OkStatus();
  return FieldError(absl::StatusCode::kAlreadyExists, field,
                    absl::StrCat("position ", position(place + different), " already holds other ", bytes,
                                 "; truncate before rewriting it"));
}

bool HeadGroupCache::WantsCodecs(int64_t count) const {
  return codes_.encoded() == 0 && context_->ZoneKeys(size_ + count) > 0;
}

// kNone keeps the sink and the newest keys only; what lies between is encoded straight from the input, as is what
// becomes low-rank at once.
std::pair<int64_t, int64_t> HeadGroupCache::NotStored(int64_t size) const {
  if (!low_.empty()) {
    const int64_t begin = std::min(std::max(LowStart(), size_), size);
    return {begin, std::max(begin, LowEndAt(size))};
  }
  const int64_t first = std::max(std::min<int64_t>(context_->config.zones.sink, size), size_);
  return {first, std::max(first, RawBeginAt(size))};
}

void HeadGroupCache::PlanAppend(int64_t count, Staging* staging) {
  const int64_t new_size = size_ + count;
  const auto [gap_begin, gap_end] = NotStored(new_size);
  for (RowStore* store : {&keys_, &values_}) {
    if (store == &values_ && !keeps_values()) continue;
    MirrorDense(new_size, store);
    if (gap_end > gap_begin) {
      store->Plan(size_, gap_begin, staging);
      store->Plan(gap_end, new_size, staging);
    } else {
      store->Plan(size_, new_size, staging);
    }
  }
  if (keeps_values()) windows_.Plan(WindowsAt(size_), WindowsAt(new_size), staging);
  if (keeps_checksums()) checksums_.Plan(size_, new_size, staging);
  if (!whole_) positions_.Plan(size_, new_size, staging);
  codes_.PlanGrow(context_->ZoneKeys(new_size), staging);
}

// Dense rows lie on the device too, where that attends: every step reads them.
void HeadGroupCache::MirrorDense(int64_t size, RowStore* rows) const {
  rows->MirrorEnds(context_->config.zones.sink, context_->ZoneEnd(size));
}

// A device that does not copy is lost, as every later call on it says.
void HeadGroupCache::CopyToDevice(const std::vector<CopyTask>& copies) const {
  if (!copies.empty()) (void)context_->backend->Copy(copies.data(), static_cast<int>(copies.size()));
}

void HeadGroupCache::Installed() {
  keys_.Refresh();
  values_.Refresh();
  checksums_.Refresh();
  positions_.Refresh();
  windows_.Refresh();
  codes_.Refresh();
}

absl::Status HeadGroupCache::WriteAppend(int64_t first_position, int64_t count, const uint8_t* keys,
                                         const uint8_t* values) {
  const size_t token_bytes = context_->token_bytes();
  const int64_t new_size = size_ + count;
  const auto [gap_begin, gap_end] = NotStored(new_size);
  for (const auto& [store, rows] : {std::pair{&keys_, keys}, std::pair{&values_, values}}) {
    if (store == &values_ && !keeps_values()) continue;
    const uint8_t* own = rows + head_offset();
    for (const auto& [begin, end] : {std::pair{size_, gap_begin}, std::pair{gap_end, new_size}}) {
      for (int64_t place = begin; place < end; place += kRowsWritten) {
        if (StopRequested()) return StopStatus();
        store->Write(place, own + (place - size_) * token_bytes, std::min(kRowsWritten, end - place), token_bytes);
      }
    }
  }
  if (!low_.empty()) {
    const auto sums = RowChecksums(keys, values, count, context_->token_bytes());
    checksums_.Write(size_, Bytes(sums), count, sizeof(uint32_t));
  } else if (keeps_checksums()) {
    checksums_.Write(size_, Bytes(Checksums(keys, count, context_->token_bytes())), count, sizeof(uint64_t));
  }
  if (!whole_) {
    std::vector<int32_t> positions(count);
    for (int64_t i = 0; i < count; ++i) positions[i] = static_cast<int32_t>(first_position + i);
    WritePositions(size_, positions);
  }
  const AppendedKeys source(this, keys, new_size);
  return codes_.Grow(context_->ZoneKeys(new_size), source, context_->config.zones.update_buffer);
}

absl::Status HeadGroupCache::UndoAppend() {
  for (RowStore* store : {&keys_, &values_, &checksums_, &positions_}) store->Truncate(size_);
  windows_.Truncate(WindowsAt(size_));
  return codes_.Shrink(context_->ZoneKeys(size_), EncodedAfterCut(size_));
}

void HeadGroupCache::CommitAppend(int64_t count) {
  const int64_t new_size = size_ + count, raw_begin = RawBeginAt(new_size);
  if (raw_begin > raw_begin_) {
    keys_.Drop(context_->config.zones.sink, raw_begin);
    raw_begin_ = raw_begin;
  }
  const int64_t old_size = size_;
  size_ = new_size;
  std::vector<CopyTask> copies;
  for (RowStore* store : {&keys_, &values_}) {
    store->DropMirrors();
    store->CopyToMirror(old_size, new_size, &copies);
  }
  CopyToDevice(copies);
  InstallLow();
  if (keeps_values()) WriteWindows(WindowsAt(old_size), WindowsAt(new_size));
  AddToSums(old_size);
}

void HeadGroupCache::WritePositions(int64_t place, absl::Span<const int32_t> positions) {
  positions_.Write(place, reinterpret_cast<const uint8_t*>(positions.data()), static_cast<int64_t>(positions.size()),
                   sizeof(int32_t));
}

// From the rows as they read, so that any history of appends gives the same bits.
void HeadGroupCache::WriteWindows(int64_t begin, int64_t end) {
  const int heads = num_heads(), dim = context_->config.geometry.head_dim;
  const size_t record = host::WindowMeansBytes(dim);
  const auto count = static_cast<int>(end - begin) * heads;
  if (count <= 0) return;
  std::vector<uint8_t> records(count * record);
  const auto encode = [&](int i) {
    float rows[2][kWindowTokens * kMaxHeadDim];
    const int64_t place = context_->config.zones.sink + (begin + i / heads) * kWindowTokens;
    CopyFloats(i % heads, place, kWindowTokens, rows[0], rows[1], dim);
    host::EncodeWindowMeans(rows[0], rows[1], dim, records.data() + i * record);
  };
  if (count >= kWindowsWorthSharing) {
    context_->backend->Run(count, encode);
  } else {
    for (int i = 0; i < count; ++i) encode(i);
  }
  windows_.Write(begin, records.data(), end - begin, heads * record);
  std::vector<CopyTask> copies;
  windows_.CopyToMirror(begin, end, &copies);
  CopyToDevice(copies);
}

// Sums of stored keys from place `begin` on: in order, so that any history of appends gives the same bits.
void HeadGroupCache::AddToSums(int64_t begin) {
  const int chunk = keys_.chunk_tokens();
  std::vector<int32_t> positions;
  for (int64_t place = begin; place < size_ && !sums_.empty(); ++place) positions.push_back(position(place));
  for (size_t h = 0; h < sums_.size(); ++h) {
    for (int64_t place = begin; place < size_;) {
      const int64_t stop = std::min<int64_t>(size_, (place / chunk + 1) * chunk);
      sums_[h].Add({keys_.Row(static_cast<int>(h), place), static_cast<size_t>(context_->row_bytes()),
                    context_->config.geometry.dtype},
                   stop - place, positions.data() + (place - begin));
      place = stop;
    }
  }
}

// The first place beyond the sink whose key is held once the cache has grown to `size`: whole chunks are dropped.
int64_t HeadGroupCache::RawBeginAt(int64_t size) const {
  if (keeps_all_keys()) return 0;
  const int64_t wanted = context_->ZoneEnd(size) - context_->config.zones.update_buffer;
  if (wanted <= context_->config.zones.sink) return raw_begin_;
  return std::max(raw_begin_, wanted / keys_.chunk_tokens() * keys_.chunk_tokens());
}

// Zone keys that stay encoded when the cache is cut at `place`: whole units below the cut. Under Centre::kGlobal the
// first update buffer must stay whole, for the centre is made of it.
int64_t HeadGroupCache::EncodedAfterCut(int64_t place) const {
  const int64_t below = std::max<int64_t>(place - context_->config.zones.sink, 0);
  const int64_t whole = std::min(below / context_->codes.unit_keys * context_->codes.unit_keys, codes_.encoded());
  if (context_->config.codec.centre == Centre::kGlobal && whole < context_->config.zones.update_buffer) return 0;
  return whole;
}

// True where the keys of all tokens below the cut that lose their codes are held.
bool HeadGroupCache::CutWorks(int64_t place) const {
  const int64_t first_raw = context_->config.zones.sink + EncodedAfterCut(place);
  return keeps_all_keys() || first_raw >= std::min(place, raw_begin_);
}

absl::Status HeadGroupCache::PlanTruncate(int64_t position, Staging* staging) {
  const int64_t place = PlaceOf(position);
  if (place >= size_) return absl::OkStatus();
  if (!CutWorks(place)) {
    int64_t below = place, above = place;
    while (!CutWorks(below)) --below;
    while (!CutWorks(above)) ++above;
    return FieldError(absl::StatusCode::kFailedPrecondition, "position",
                      absl::StrCat(position, " lies inside an encoded window whose keys are gone (kv_store none); ",
                                   below, " and ", above, " are the nearest that work"));
  }
  codes_.PlanShrink(context_->ZoneKeys(place), staging);
  return absl::OkStatus();
}

absl::Status HeadGroupCache::CommitTruncate(int64_t position) {
  const int64_t place = PlaceOf(position);
  if (place >= size_) return absl::OkStatus();
  absl::Status status = codes_.Shrink(context_->ZoneKeys(place), EncodedAfterCut(place));
  keys_.Truncate(place);
  values_.Truncate(place);
  checksums_.Truncate(place);
  positions_.Truncate(place);
  for (LowRankStore& low : low_) low.Truncate(place - low_begin_);
  LowRankChanged();
  windows_.Truncate(WindowsAt(place));
  raw_begin_ = std::min(raw_begin_, place);
  size_ = place;
  if (sums_.empty()) return status;
  sums_ = MakeSums(*context_, num_heads());  // summed anew: nothing can be taken off a sum without a trace
  AddToSums(0);
  return status;
}

void HeadGroupCache::PlanKeep(const HeadGroupCache& source, absl::Span<const uint32_t> places, Staging* staging) {
  const auto count = static_cast<int64_t>(places.size());
  const auto [low_begin, low_end] = source.LowAmong(places);
  for (RowStore* store : {&keys_, &values_}) {
    if (store == &values_ && !keeps_values()) continue;
    MirrorDense(count, store);
    if (low_end > low_begin) {
      store->Plan(0, static_cast<int64_t>(low_begin), staging);
      store->Plan(static_cast<int64_t>(low_end), count, staging);
    } else {
      store->Plan(0, count, staging);
    }
  }
  if (keeps_checksums()) checksums_.Plan(0, count, staging);
  if (keeps_values()) windows_.Plan(0, WindowsAt(count), staging);
  positions_.Plan(0, count, staging);
  codes_.PlanGrow(context_->ZoneKeys(count), staging);
}

absl::Status HeadGroupCache::CommitKeep(const HeadGroupCache& source, absl::Span<const uint32_t> places) {
  Installed();
  const int head = first_head_ - source.first_head_;
  const auto row_bytes = static_cast<size_t>(context_->row_bytes());
  std::vector<int32_t> positions(places.size());
  for (size_t i = 0; i < places.size(); ++i) {
    if (i % kRowsWritten == 0 && StopRequested()) return StopStatus();
    const auto to = static_cast<int64_t>(i);
    positions[i] = source.position(places[i]);
    if (keeps_checksums()) {
      checksums_.Write(to, source.checksums_.Row(0, places[i]), 1, sizeof(uint32_t));
    }
    if (source.IsLow(places[i])) continue;
    keys_.Write(to, source.keys_.Row(head, places[i]), 1, row_bytes);
    if (keeps_values()) values_.Write(to, source.values_.Row(head, places[i]), 1, row_bytes);
  }
  WritePositions(0, positions);
  if (absl::Status s = KeepLow(source, places); !s.ok()) return s;
  size_ = static_cast<int64_t>(places.size());
  std::vector<CopyTask> copies;
  for (const RowStore* store : {&keys_, &values_}) store->CopyToMirror(0, size_, &copies);
  CopyToDevice(copies);
  std::vector<uint8_t> zone;
  if (!low_.empty()) {
    zone = RebuildZone();
  } else if (keeps_values()) {
    WriteWindows(0, WindowsAt(size_));
  }
  const AppendedKeys stored(this, nullptr, size_, zone.empty() ? nullptr : zone.data());
  AddToSums(0);
  return codes_.Grow(context_->ZoneKeys(size_), stored, context_->config.zones.update_buffer);
}

// All of the memory is asked for at the first step: a re-encoding that cannot end is better not begun.
absl::Status HeadGroupCache::GrowFromStored(int64_t most, CodeStore* next) const {
  Staging staging;
  next->PlanGrow(codes_.visible(), &staging);
  if (absl::Status s = staging.Allocate(&context_->ledger); !s.ok()) return s;
  staging.Install();
  const AppendedKeys stored(this, nullptr, size_);
  return next->Grow(std::min(codes_.visible(), next->visible() + most), stored, 0);
}

}  // namespace seine
