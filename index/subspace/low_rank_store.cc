#include "index/subspace/low_rank_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "index/subspace/low_rank.h"
#include "kernels/cpu/ops.h"
#include "kernels/math.h"

namespace seine {

namespace {

constexpr float kLargestHalf = 65504;

void Widen(const uint8_t* x, int64_t count, DType dtype, float* out) {
  if (dtype == DType::kFloat32) {
    std::memcpy(out, x, count * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t half;
    std::memcpy(&half, x + i * sizeof(half), sizeof(half));
    out[i] = dtype == DType::kBFloat16 ? Bf16ToFloat(half) : HalfToFloat(half);
  }
}

absl::Status OutOf(const char* field, int64_t value, int64_t low, int64_t high) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, " is not in [", low, ", ", high, "]"));
}

// sqrt(r^T M r / D) of each residual; M = I without a moment.
std::vector<float> Losses(const std::vector<float>& residuals, int dim, const Eigen::MatrixXd* moment) {
  const auto count = static_cast<int64_t>(residuals.size()) / dim;
  std::vector<float> weighted = residuals, losses(count);
  if (moment != nullptr) {
    const Basis matrix = FromEigen(*moment, 0);  // x M, by the product that projects
    Project(matrix, residuals.data(), count, weighted.data(), dim);
  }
  for (int64_t t = 0; t < count; ++t) {
    double square = 0;
    for (int j = 0; j < dim; ++j) square += double{residuals[t * dim + j]} * weighted[t * dim + j];
    losses[t] = static_cast<float>(std::sqrt(std::max(0.0, square) / dim));
  }
  return losses;
}

}  // namespace

void Narrow(const float* x, int64_t count, DType dtype, uint8_t* out) {
  if (dtype == DType::kFloat32) {
    std::memcpy(out, x, count * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t half =
        dtype == DType::kBFloat16 ? FloatToBf16(x[i]) : FloatToHalf(std::clamp(x[i], -kLargestHalf, kLargestHalf));
    std::memcpy(out + i * sizeof(half), &half, sizeof(half));
  }
}

absl::Status Validate(const LowRankOptions& o) {
  if (o.key_rank < 1 || o.key_rank > o.head_dim) return OutOf("key_rank", o.key_rank, 1, o.head_dim);
  if (o.value_rank < 1 || o.value_rank > o.head_dim) return OutOf("value_rank", o.value_rank, 1, o.head_dim);
  if (o.block_tokens < 1 || o.block_tokens > kMaxBlockTokens)
    return OutOf("block_tokens", o.block_tokens, 1, kMaxBlockTokens);
  if (o.version_tokens < 1) {
    return absl::InvalidArgumentError(absl::StrCat("version_tokens: ", o.version_tokens, " is not positive"));
  }
  if (!(o.full_rank >= 0 && o.full_rank < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("full_rank: ", o.full_rank, " is not in [0, 1)"));
  }
  if (o.frame == KeyFrame::kPreRope && !o.rope.stated()) {
    return absl::InvalidArgumentError("frame: pre_rope needs the model's RoPE stated");
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

int64_t LowRankStore::TrackerBytes(int64_t waiting) const {
  const LowRankOptions& o = shape_->options;
  const bool rows_wait = waiting % o.oja.interval != 0;
  return OjaTracker::Bytes(o.head_dim, o.key_rank, o.oja, rows_wait) +
         OjaTracker::Bytes(o.head_dim, o.value_rank, o.oja, rows_wait);
}

// Tokens that a version lasts which began with `before` tokens stored: bases turn most in the beginning.
int64_t LowRankStore::VersionTokens(int64_t before) const {
  constexpr int64_t kFirst = 512, kGrowth = 7;
  return std::min(shape_->options.version_tokens, std::max(kFirst, kGrowth * before));
}

// All memory of an append, or none.
absl::StatusOr<LowRankStore::Planned> LowRankStore::Plan(int64_t count, int64_t first) const {
  const LowRankOptions& o = shape_->options;
  Planned planned;
  const int64_t tracker_bytes = TrackerBytes((trackers_ == nullptr ? 0 : trackers_->keys.waiting()) + count);
  int64_t bytes = tracker_bytes, in_version = 0;
  for (const Run& run : runs_) {
    in_version += run.block->version == runs_.back().block->version ? run.block->tokens : 0;
  }
  int64_t before = std::max<int64_t>(0, size_ - in_version);
  for (int64_t done = 0; done < count;) {
    auto block = std::make_shared<Block>();
    block->tokens = std::min<int64_t>(done == 0 ? first : o.block_tokens, count - done);
    block->kept = KeptOf(block->tokens);
    bytes += OffsetsOf(block->tokens, block->kept).end;
    const bool fresh = ((runs_.empty() || bases_set_) && done == 0) || in_version >= VersionTokens(before);
    if (fresh) before = size_ + done;
    if (fresh) bytes += VersionBytes();
    in_version = (fresh ? 0 : in_version) + block->tokens;
    done += block->tokens;
    planned.fresh.push_back(fresh ? std::make_shared<Version>() : nullptr);
    planned.blocks.push_back(std::move(block));
  }
  Reservation reservation(ledger_);
  absl::Status s = reservation.Reserve(MemoryKind::kStore, bytes);
  for (size_t b = 0; b < planned.blocks.size() && s.ok(); ++b) {
    Block& block = *planned.blocks[b];
    s = reservation.Allocate(MemoryKind::kStore, OffsetsOf(block.tokens, block.kept).end, nullptr, &block.memory);
    Version* fresh = planned.fresh[b].get();
    if (s.ok() && fresh != nullptr) {
      s = reservation.Allocate(MemoryKind::kStore, VersionBytes(), nullptr, &fresh->memory);
    }
  }
  if (!s.ok()) return s;
  planned.trackers = reservation.Charge(MemoryKind::kStore, tracker_bytes);
  return planned;
}

// Those held; before the first block the calibrated bases', without them those of its own moments (zeros: the first
// axes).
absl::StatusOr<std::shared_ptr<LowRankStore::TrackerSet>> LowRankStore::NextTrackers(const HeadRows& rows,
                                                                                     const int32_t* positions,
                                                                                     int64_t first_block) const {
  const LowRankOptions& o = shape_->options;
  if (trackers_ != nullptr) {
    return std::make_shared<TrackerSet>(TrackerSet{trackers_->keys, trackers_->values, Memory()});
  }
  const auto start = [&](const ConstRows& view, int rank) -> absl::StatusOr<Basis> {
    const Eigen::MatrixXd moment = MomentOfRows(view, first_block, o.head_dim);
    if (moment.trace() == 0) return FromEigen(Eigen::MatrixXd::Identity(o.head_dim, rank), 0);
    return BasisOfMoment(moment, rank);
  };
  std::optional<Basis> key_start = shape_->key_start, value_start = shape_->value_start;
  if (!key_start) {
    const std::vector<float> keys = KeysInFrame(rows.keys, positions, first_block);
    auto made = start({keys.data(), o.head_dim * sizeof(float), DType::kFloat32}, o.key_rank);
    if (!made.ok()) return made.status();
    key_start = *std::move(made);
  }
  if (!value_start) {
    auto made = start(rows.values, o.value_rank);
    if (!made.ok()) return made.status();
    value_start = *std::move(made);
  }
  return std::make_shared<TrackerSet>(
      TrackerSet{OjaTracker(*std::move(key_start), o.oja), OjaTracker(*std::move(value_start), o.oja), Memory()});
}

std::vector<float> LowRankStore::KeysInFrame(const ConstRows& keys, const int32_t* positions, int64_t count) const {
  const LowRankOptions& o = shape_->options;
  std::vector<float> rows(count * o.head_dim);
  cpu::ToFloat(keys, static_cast<int>(count), o.head_dim, rows.data());
  if (o.frame == KeyFrame::kPreRope) UndoRopeOfRows(o.rope, positions, count, rows.data());
  return rows;
}

absl::StatusOr<LowRankStore::Staged> LowRankStore::Stage(const HeadRows& rows, const int32_t* positions, int64_t count,
                                                         int64_t first) const {
  Staged staged;
  staged.trackers_ = trackers_;
  if (count == 0) return staged;
  absl::StatusOr<Planned> planned = Plan(count, first);
  if (!planned.ok()) return planned.status();
  auto trackers = NextTrackers(rows, positions, planned->blocks[0]->tokens);
  if (!trackers.ok()) return trackers.status();
  (*trackers)->charge = std::move(planned->trackers);
  std::shared_ptr<const Version> version = runs_.empty() ? nullptr : runs_.back().block->version;
  int64_t done = 0;
  for (size_t b = 0; b < planned->blocks.size(); ++b) {
    Block& block = *planned->blocks[b];
    if (planned->fresh[b] != nullptr) version = planned->fresh[b];
    block.version = version;
    const auto from = [&](const ConstRows& view) { return ConstRows{view.row(done), view.stride_bytes, view.dtype}; };
    absl::Status s = FillBlock({from(rows.keys), from(rows.values)}, positions + done, planned->fresh[b].get(),
                               trackers->get(), &block);
    if (!s.ok()) return s;
    done += block.tokens;
    staged.blocks_.push_back(std::move(planned->blocks[b]));
  }
  staged.trackers_ = *std::move(trackers);
  return staged;
}

void LowRankStore::Install(Staged staged) {
  for (std::shared_ptr<const Block>& block : staged.blocks_) {
    const int64_t tokens = block->tokens;
    runs_.push_back({std::move(block), size_});
    size_ += tokens;
  }
  bases_set_ = bases_set_ && staged.blocks_.empty();
  trackers_ = std::move(staged.trackers_);
}

const Basis* LowRankStore::key_basis() const {
  if (trackers_ != nullptr) return &trackers_->keys.basis();
  return shape_->key_start ? &*shape_->key_start : nullptr;
}

const Basis* LowRankStore::value_basis() const {
  if (trackers_ != nullptr) return &trackers_->values.basis();
  return shape_->value_start ? &*shape_->value_start : nullptr;
}

absl::Status LowRankStore::SetBases(Basis keys, Basis values) {
  const OjaOptions& oja = shape_->options.oja;
  Reservation reservation(ledger_);
  if (absl::Status s = reservation.Reserve(MemoryKind::kStore, TrackerBytes(0)); !s.ok()) return s;
  trackers_ =
      std::make_shared<TrackerSet>(TrackerSet{OjaTracker(std::move(keys), oja), OjaTracker(std::move(values), oja),
                                              reservation.Charge(MemoryKind::kStore, TrackerBytes(0))});
  bases_set_ = true;
  return absl::OkStatus();
}

// A fresh version takes what the trackers hold once they have seen the block.
absl::Status LowRankStore::FillBlock(const HeadRows& rows, const int32_t* positions, Version* fresh,
                                     TrackerSet* trackers, Block* block) const {
  const LowRankOptions& o = shape_->options;
  const int64_t n = block->tokens;
  const auto size = static_cast<int64_t>(SizeOf(o.dtype));
  std::vector<float> keys = KeysInFrame(rows.keys, positions, n), values(n * o.head_dim);
  cpu::ToFloat(rows.values, static_cast<int>(n), o.head_dim, values.data());
  const auto view = [&o](const std::vector<float>& x) {
    return ConstRows{x.data(), o.head_dim * sizeof(float), DType::kFloat32};
  };
  if (absl::Status s = trackers->keys.Add(view(keys), n); !s.ok()) return s;
  if (absl::Status s = trackers->values.Add(view(values), n); !s.ok()) return s;
  if (fresh != nullptr) {
    Pack(trackers->keys.basis(), false, fresh);
    Pack(trackers->values.basis(), true, fresh);
  }
  const auto store = [&](const std::vector<float>& x, bool of_values, int64_t offset) {
    const Basis basis = Unpack(*block->version, of_values);
    std::vector<float> codes(n * basis.stride()), back(x.size());
    Project(basis, x.data(), n, codes.data(), basis.stride());
    uint8_t* const out = block->memory.data() + offset;
    for (int64_t t = 0; t < n; ++t) {
      Narrow(&codes[t * basis.stride()], basis.rank, o.dtype, out + t * basis.rank * size);
    }
    Reconstruct(basis, codes.data(), basis.stride(), n, back.data());
    return back;
  };
  std::vector<float> residuals = store(keys, false, 0);
  store(values, true, OffsetsOf(n, block->kept).value_codes);
  for (size_t i = 0; i < residuals.size(); ++i) residuals[i] = keys[i] - residuals[i];
  KeepFullRank(rows, residuals, block);
  return absl::OkStatus();
}

void LowRankStore::KeepFullRank(const HeadRows& rows, const std::vector<float>& residuals, Block* block) const {
  if (block->kept == 0) return;
  const LowRankOptions& o = shape_->options;
  const Offsets at = OffsetsOf(block->tokens, block->kept);
  const Eigen::MatrixXd* moment = shape_->query_moment ? &*shape_->query_moment : nullptr;
  const std::vector<int32_t> places = FullRankSet(Losses(residuals, o.head_dim, moment), block->kept);
  uint8_t* const data = block->memory.data();
  const auto row = o.head_dim * static_cast<int64_t>(SizeOf(o.dtype));
  for (int64_t i = 0; i < block->kept; ++i) {
    const auto in_block = static_cast<uint16_t>(places[i]);
    std::memcpy(data + at.kept_keys + i * row, rows.keys.row(places[i]), row);
    std::memcpy(data + at.kept_values + i * row, rows.values.row(places[i]), row);
    std::memcpy(data + at.places + i * static_cast<int64_t>(sizeof(in_block)), &in_block, sizeof(in_block));
  }
}

void LowRankStore::Pack(const Basis& basis, bool of_values, Version* version) const {
  const LowRankOptions& o = shape_->options;
  uint8_t* out = version->memory.data() + (of_values ? int64_t{o.head_dim} * o.key_rank * 2 : 0);
  for (int i = 0; i < o.head_dim; ++i, out += basis.rank * 2) {
    Narrow(&basis.u[static_cast<size_t>(i) * basis.stride()], basis.rank, DType::kFloat16, out);
  }
}

Basis LowRankStore::Unpack(const Version& version, bool of_values) const {
  const LowRankOptions& o = shape_->options;
  Basis basis;
  basis.head_dim = o.head_dim;
  basis.rank = of_values ? o.value_rank : o.key_rank;
  basis.u.assign(static_cast<size_t>(o.head_dim) * basis.stride(), 0.0f);
  const uint8_t* in = version.memory.data() + (of_values ? int64_t{o.head_dim} * o.key_rank * 2 : 0);
  for (int i = 0; i < o.head_dim; ++i, in += basis.rank * 2) {
    Widen(in, basis.rank, DType::kFloat16, &basis.u[static_cast<size_t>(i) * basis.stride()]);
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
  kept.bases_set_ = bases_set_;
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
  if (absl::Status s = reservation->Reserve(MemoryKind::kStore, to.end); !s.ok()) return s;
  if (absl::Status s = reservation->Allocate(MemoryKind::kStore, to.end, nullptr, &block->memory); !s.ok()) return s;
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

void LowRankStore::Read(absl::Span<const int64_t> places, const int32_t* positions, float* keys, float* values) const {
  const LowRankOptions& o = shape_->options;
  if (keys != nullptr) {
    ReadCodes(places, false, keys);
    if (o.frame == KeyFrame::kPreRope) {
      ApplyRopeToRows(o.rope, positions, static_cast<int64_t>(places.size()), keys);
    }
    ReadFullRank(places, false, keys);
  }
  if (values == nullptr) return;
  ReadCodes(places, true, values);
  ReadFullRank(places, true, values);
}

// Rebuilds tokens of one version together, as far as they follow each other.
void LowRankStore::ReadCodes(absl::Span<const int64_t> places, bool of_values, float* out) const {
  const LowRankOptions& o = shape_->options;
  const auto size = static_cast<int64_t>(SizeOf(o.dtype));
  std::vector<float> codes;
  for (size_t begin = 0; begin < places.size();) {
    const std::shared_ptr<const Version>& version = runs_[RunOf(places[begin])].block->version;
    const Basis basis = Unpack(*version, of_values);
    codes.assign((places.size() - begin) * basis.stride(), 0.0f);
    size_t end = begin;
    for (; end < places.size(); ++end) {
      const Run& run = runs_[RunOf(places[end])];
      if (run.block->version != version) break;
      const int64_t plane = of_values ? OffsetsOf(run.block->tokens, run.block->kept).value_codes : 0;
      Widen(run.block->memory.data() + plane + (places[end] - run.begin) * basis.rank * size, basis.rank, o.dtype,
            &codes[(end - begin) * basis.stride()]);
    }
    Reconstruct(basis, codes.data(), basis.stride(), static_cast<int64_t>(end - begin),
                out + static_cast<int64_t>(begin) * o.head_dim);
    begin = end;
  }
}

void LowRankStore::ReadFullRank(absl::Span<const int64_t> places, bool of_values, float* out) const {
  const LowRankOptions& o = shape_->options;
  const auto row_bytes = o.head_dim * static_cast<int64_t>(SizeOf(o.dtype));
  for (size_t i = 0; i < places.size(); ++i) {
    const Run& run = runs_[RunOf(places[i])];
    const int64_t row = FullRankRow(*run.block, places[i] - run.begin);
    if (row < 0) continue;
    const Offsets at = OffsetsOf(run.block->tokens, run.block->kept);
    const int64_t plane = of_values ? at.kept_values : at.kept_keys;
    Widen(run.block->memory.data() + plane + row * row_bytes, o.head_dim, o.dtype,
          out + static_cast<int64_t>(i) * o.head_dim);
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
  if (trackers_ != nullptr) bytes.bases += trackers_->charge.bytes();
  return bytes;
}

LowRankMetrics LowRankStore::metrics() const {
  LowRankMetrics metrics;
  if (trackers_ == nullptr) return metrics;
  metrics.keys = trackers_->keys.stats();
  metrics.values = trackers_->values.stats();
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
  const Basis first = Unpack(*runs_[0].block->version, false);
  metrics.angle = PrincipalAngle(first, trackers_->keys.basis());
  metrics.overlap = Overlap(first, trackers_->keys.basis());
  return metrics;
}

}  // namespace seine
