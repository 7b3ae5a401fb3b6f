#include "index/subspace/low_rank_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "profile/field_error.h"

namespace seine {

namespace {

absl::Status OutOf(const char* field, int64_t value, int64_t low, int64_t high) {
  return BadField(field, value, " is not in [", low, ", ", high, "]");
}

}  // namespace

absl::Status Validate(const LowRankOptions& o) {
  if (o.key_rank < 1 || o.key_rank > o.head_dim) return OutOf("key_rank", o.key_rank, 1, o.head_dim);
  if (o.value_rank < 1 || o.value_rank > o.head_dim) return OutOf("value_rank", o.value_rank, 1, o.head_dim);
  if (o.block_tokens < 1 || o.block_tokens > kMaxBlockTokens)
    return OutOf("block_tokens", o.block_tokens, 1, kMaxBlockTokens);
  if (o.version_tokens < 1) {
    return BadField("version_tokens", o.version_tokens, " is not positive");
  }
  if (!(o.full_rank >= 0 && o.full_rank < 1)) {
    return BadField("full_rank", o.full_rank, " is not in [0, 1)");
  }
  if (absl::Status s = Validate(o.prompt); !s.ok()) return s;
  if (absl::Status s = Validate(o.choice); !s.ok()) return s;
  if (o.frame == KeyFrame::kPreRope && !o.rope.stated()) {
    return BadField("frame", "pre_rope needs the model's RoPE stated");
  }
  return Validate(o.oja);
}

LowRankStore::Offsets LowRankStore::OffsetsOf(int64_t tokens, int64_t kept) const {
  const LowRankOptions& o = shape_->options;
  const auto size = static_cast<int64_t>(SizeOf(o.dtype));
  Offsets at;
  at.value_codes = tokens * o.key_rank * size;
  at.kept_keys = at.value_codes + tokens * o.value_rank * size;
  at.kept_values = at.kept_keys + kept * o.head_dim * size;
  at.places = at.kept_values + kept * o.head_dim * size;
  at.end = at.places + kept * static_cast<int64_t>(sizeof(uint16_t));
  return at;
}

int64_t LowRankStore::KeptOf(int64_t tokens) const {
  return std::llround(shape_->options.full_rank * static_cast<double>(tokens));
}

int64_t LowRankStore::VersionBytes() const {
  const LowRankOptions& o = shape_->options;
  return int64_t{o.head_dim} * (o.key_rank + o.value_rank) * static_cast<int64_t>(sizeof(uint16_t));
}

void LowRankStore::Install(Staged staged) {
  for (std::shared_ptr<const Block>& block : staged.blocks_) {
    const int64_t tokens = block->tokens;
    runs_.push_back({std::move(block), size_});
    size_ += tokens;
  }
  if (!staged.blocks_.empty()) given_ = nullptr;
  trackers_ = std::move(staged.trackers_);
}

std::optional<Basis> LowRankStore::key_basis() const {
  if (given_ != nullptr) return given_->keys;
  return trackers_ != nullptr ? trackers_->keys.basis() : shape_->key_start;
}

std::optional<Basis> LowRankStore::value_basis() const {
  if (given_ != nullptr) return given_->values;
  return trackers_ != nullptr ? trackers_->values.basis() : shape_->value_start;
}

absl::Status LowRankStore::SetBases(Basis keys, Basis values) {
  const auto bytes = static_cast<int64_t>((keys.u.size() + values.u.size()) * sizeof(float));
  Reservation reservation(ledger_);
  if (absl::Status s = reservation.Reserve(MemoryKind::kSubspace, bytes); !s.ok()) return s;
  given_ = std::make_shared<GivenBases>(
      GivenBases{std::move(keys), std::move(values), reservation.Charge(MemoryKind::kSubspace, bytes)});
  trackers_ = nullptr;
  return absl::OkStatus();
}

Basis LowRankStore::Unpack(const Version& version, bool of_values) const {
  const LowRankOptions& o = shape_->options;
  Basis basis;
  basis.head_dim = o.head_dim;
  basis.rank = of_values ? o.value_rank : o.key_rank;
  basis.u.assign(static_cast<size_t>(o.head_dim) * basis.stride(), 0.0f);
  const uint8_t* in = version.memory.data() + (of_values ? int64_t{o.head_dim} * o.key_rank * 2 : 0);
  std::vector<float> row(o.head_dim);
  for (int i = 0; i < basis.rank; ++i, in += o.head_dim * 2) {
    host::Widen(in, o.head_dim, DType::kFloat16, row.data());
    for (int j = 0; j < o.head_dim; ++j) basis.u[static_cast<size_t>(j) * basis.stride() + i] = row[j];
  }
  return basis;
}

void LowRankStore::Truncate(int64_t size) {
  if (size >= size_) return;
  size_ = std::max<int64_t>(size, 0);
  while (!runs_.empty() && runs_.back().begin >= size_) runs_.pop_back();
}

absl::StatusOr<LowRankStore> LowRankStore::Keep(absl::Span<const int64_t> places) const {
  LowRankStore kept(shape_, ledger_);
  kept.trackers_ = trackers_;
  kept.given_ = given_;
  Reservation reservation(ledger_);
  for (size_t begin = 0; begin < places.size();) {
    const std::shared_ptr<const Version>& version = runs_[RunOf(places[begin])].block->version;
    size_t end = begin;
    while (end < places.size() && end - begin < kMaxBlockTokens && runs_[RunOf(places[end])].block->version == version)
      ++end;
    auto block = std::make_shared<Block>();
    block->version = version;
    if (absl::Status s = CopyTokens(places.subspan(begin, end - begin), &reservation, block.get()); !s.ok()) return s;
    kept.runs_.push_back({std::move(block), kept.size_});
    kept.size_ += static_cast<int64_t>(end - begin);
    begin = end;
  }
  return kept;
}

// Makes a block of tokens that are stored in its version here.
absl::Status LowRankStore::CopyTokens(absl::Span<const int64_t> places, Reservation* reservation, Block* block) const {
  const LowRankOptions& o = shape_->options;
  const auto size = static_cast<int64_t>(SizeOf(o.dtype));
  block->tokens = static_cast<int64_t>(places.size());
  for (const int64_t place : places) {
    const Run& run = runs_[RunOf(place)];
    block->kept += FullRankRow(*run.block, place - run.begin) >= 0 ? 1 : 0;
  }
  const Offsets to = OffsetsOf(block->tokens, block->kept);
  if (absl::Status s = reservation->Reserve(MemoryKind::kSubspace, to.end); !s.ok()) return s;
  if (absl::Status s =
          reservation->Allocate(MemoryKind::kSubspace, to.end, ledger_->pool(MemoryKind::kSubspace), &block->memory);
      !s.ok())
    return s;
  uint8_t* const out = block->memory.data();
  for (int64_t i = 0, kept = 0; i < block->tokens; ++i) {
    const Run& run = runs_[RunOf(places[i])];
    const int64_t in_block = places[i] - run.begin, full = FullRankRow(*run.block, in_block);
    const Offsets at = OffsetsOf(run.block->tokens, run.block->kept);
    const uint8_t* const in = run.block->memory.data();
    const auto copy = [&](int64_t from_plane, int64_t from, int64_t to_plane, int64_t row, int64_t bytes) {
      std::memcpy(out + to_plane + row * bytes, in + from_plane + from * bytes, bytes);
    };
    copy(0, in_block, 0, i, o.key_rank * size);
    copy(at.value_codes, in_block, to.value_codes, i, o.value_rank * size);
    if (full < 0) continue;
    copy(at.kept_keys, full, to.kept_keys, kept, o.head_dim * size);
    copy(at.kept_values, full, to.kept_values, kept, o.head_dim * size);
    const auto place = static_cast<uint16_t>(i);
    std::memcpy(out + to.places + kept++ * static_cast<int64_t>(sizeof(place)), &place, sizeof(place));
  }
  return absl::OkStatus();
}

int64_t LowRankStore::FullRankRow(const Block& block, int64_t in_block) const {
  const auto* places =
      reinterpret_cast<const uint16_t*>(block.memory.data() + OffsetsOf(block.tokens, block.kept).places);
  const auto* found = std::lower_bound(places, places + block.kept, in_block);
  return found < places + block.kept && *found == in_block ? found - places : -1;
}

size_t LowRankStore::RunOf(int64_t place) const {
  const auto above = std::upper_bound(runs_.begin(), runs_.end(), place,
                                      [](int64_t value, const Run& run) { return value < run.begin; });
  return static_cast<size_t>(above - runs_.begin()) - 1;
}

Basis LowRankStore::BasisOf(int64_t place, bool of_values) const {
  return Unpack(*runs_[RunOf(place)].block->version, of_values);
}

LowRankRows LowRankStore::RowsShape(bool of_values) const {
  const LowRankOptions& o = shape_->options;
  LowRankRows rows;
  rows.head_dim = o.head_dim;
  rows.rank = of_values ? o.value_rank : o.key_rank;
  rows.dtype = o.dtype;
  if (!of_values && o.frame == KeyFrame::kPreRope) {
    rows.rope = {o.rope.inv_freq.data(), o.rope.style == Rope::Style::kInterleaved};
  }
  return rows;
}

void LowRankStore::AppendRuns(bool of_values, Reader reader, int64_t begin, std::vector<LowRankRun>* runs) const {
  const LowRankOptions& o = shape_->options;
  for (const Run& run : runs_) {
    const Block& block = *run.block;
    const Offsets at = OffsetsOf(block.tokens, block.kept);
    const uint8_t* const data = block.memory.data();
    const bool on_device = reader == Reader::kBackend && ledger_->backend()->codes_on_device();
    const uint8_t* bases = (on_device ? block.version->device : block.version->memory).data();
    if (of_values) bases += int64_t{o.head_dim} * o.key_rank * 2;
    LowRankRun& made = runs->emplace_back();
    made.begin = begin + run.begin;
    made.codes = data + (of_values ? at.value_codes : 0);
    made.basis = reinterpret_cast<const uint16_t*>(bases);
    made.full = data + (of_values ? at.kept_values : at.kept_keys);
    made.full_places = reinterpret_cast<const uint16_t*>(data + at.places);
    made.num_full = static_cast<int32_t>(block.kept);
  }
}

void LowRankStore::Read(absl::Span<const int64_t> places, const int32_t* positions, float* keys, float* values) const {
  const std::vector<int32_t> wanted(places.begin(), places.end());
  std::vector<LowRankRun> runs;
  for (const bool of_values : {false, true}) {
    float* const out = of_values ? values : keys;
    if (out == nullptr) continue;
    runs.clear();
    AppendRuns(of_values, Reader::kHost, 0, &runs);
    LowRankRows rows = RowsShape(of_values);
    rows.runs = runs.data();
    rows.num_runs = static_cast<int32_t>(runs.size());
    host::Rebuild({rows, wanted.data(), positions, static_cast<int64_t>(wanted.size()), out});
  }
}

LowRankBytes LowRankStore::bytes() const {
  LowRankBytes bytes;
  std::set<const Version*> versions;
  for (const Run& run : runs_) {
    const Offsets at = OffsetsOf(run.block->tokens, run.block->kept);
    bytes.codes += at.kept_keys;
    bytes.full_rank += at.end - at.kept_keys;
    versions.insert(run.block->version.get());
  }
  bytes.bases = static_cast<int64_t>(versions.size()) * VersionBytes();
  for (const Version* version : versions) bytes.device_bases += version->device.bytes();
  if (trackers_ != nullptr) bytes.bases += trackers_->charge.bytes();
  if (given_ != nullptr) bytes.bases += given_->charge.bytes();
  return bytes;
}

LowRankMetrics LowRankStore::metrics() const {
  LowRankMetrics metrics;
  if (trackers_ != nullptr) {
    metrics.keys = trackers_->keys.stats();
    metrics.values = trackers_->values.stats();
    metrics.blocks_without_queries = trackers_->blocks_without_queries;
  }
  std::set<const Version*> versions;
  for (size_t r = 0; r < runs_.size(); ++r) {
    const Block& block = *runs_[r].block;
    const int64_t end = r + 1 < runs_.size() ? runs_[r + 1].begin : size_;
    for (int64_t place = runs_[r].begin; place < end && block.kept > 0; ++place) {
      metrics.num_full_rank += FullRankRow(block, place - runs_[r].begin) >= 0 ? 1 : 0;
    }
    versions.insert(block.version.get());
  }
  metrics.num_versions = static_cast<int64_t>(versions.size());
  if (runs_.empty()) return metrics;
  const Basis first = Unpack(*runs_[0].block->version, false), newest = *key_basis();
  metrics.angle = PrincipalAngle(first, newest);
  metrics.overlap = Overlap(first, newest);
  return metrics;
}

}  // namespace seine
