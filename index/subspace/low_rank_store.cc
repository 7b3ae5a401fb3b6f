#include "index/subspace/low_rank_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "index/subspace/low_rank.h"
#include "kernels/cpu/ops.h"
#include "kernels/math.h"

namespace seine {

namespace {

constexpr float kLargestHalf = 65504;

// fp32 to the index's dtype; halves saturate.
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

absl::Status Validate(const LowRankOptions& o) {
  if (o.key_rank < 1 || o.key_rank > o.head_dim) return OutOf("key_rank", o.key_rank, 1, o.head_dim);
  if (o.value_rank < 1 || o.value_rank > o.head_dim) return OutOf("value_rank", o.value_rank, 1, o.head_dim);
  constexpr int kMaxBlock = 65536;
  if (o.block_tokens < 1 || o.block_tokens > kMaxBlock) return OutOf("block_tokens", o.block_tokens, 1, kMaxBlock);
  if (o.version_tokens < 1 || o.version_tokens % o.block_tokens != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("version_tokens: ", o.version_tokens, " is no multiple of ", o.block_tokens));
  }
  if (!(o.full_rank >= 0 && o.full_rank < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("full_rank: ", o.full_rank, " is not in [0, 1)"));
  }
  if (o.frame == KeyFrame::kPreRope && !o.rope.stated()) {
    return absl::InvalidArgumentError("frame: pre_rope needs the model's RoPE stated");
  }
  return Validate(o.oja);
}

int64_t LowRankShape::kept() const { return std::llround(options.full_rank * options.block_tokens); }

LowRankStore::Offsets LowRankStore::BlockOffsets() const {
  const LowRankOptions& o = shape_->options;
  const auto size = static_cast<int64_t>(SizeOf(o.dtype));
  const int64_t kept = shape_->kept();
  Offsets at;
  at.value_codes = int64_t{o.heads} * o.block_tokens * o.key_rank * size;
  at.kept_keys = at.value_codes + int64_t{o.heads} * o.block_tokens * o.value_rank * size;
  at.kept_values = at.kept_keys + o.heads * kept * o.head_dim * size;
  at.places = at.kept_values + o.heads * kept * o.head_dim * size;
  at.end = at.places + o.heads * kept * static_cast<int64_t>(sizeof(uint16_t));
  return at;
}

int64_t LowRankStore::VersionBytes() const {
  const LowRankOptions& o = shape_->options;
  return int64_t{o.heads} * o.head_dim * (o.key_rank + o.value_rank) * static_cast<int64_t>(sizeof(uint16_t));
}

// All memory of an append, or none.
absl::Status LowRankStore::Stage(int64_t num_blocks, Staged* staged) const {
  const LowRankOptions& o = shape_->options;
  const int64_t block_bytes = BlockOffsets().end;
  std::vector<bool> fresh;
  for (int64_t b = 0, held = version_tokens_; b < num_blocks; ++b) {
    fresh.push_back((runs_.empty() && b == 0) || held >= o.version_tokens);
    held = (fresh.back() ? 0 : held) + o.block_tokens;
  }
  const int64_t num_versions = std::count(fresh.begin(), fresh.end(), true);
  const int64_t tracker_bytes = int64_t{o.heads} * (OjaTracker::Bytes(o.head_dim, o.key_rank, o.oja) +
                                                    OjaTracker::Bytes(o.head_dim, o.value_rank, o.oja));
  Reservation reservation(ledger_);
  absl::Status s =
      reservation.Reserve(MemoryKind::kStore, num_blocks * block_bytes + num_versions * VersionBytes() + tracker_bytes);
  if (!s.ok()) return s;
  for (int64_t b = 0; b < num_blocks; ++b) {
    staged->blocks.push_back(std::make_shared<Block>());
    s = reservation.Allocate(MemoryKind::kStore, block_bytes, nullptr, &staged->blocks.back()->memory);
    if (!s.ok()) return s;
    staged->versions.push_back(fresh[b] ? std::make_shared<Version>() : nullptr);
    if (!fresh[b]) continue;
    s = reservation.Allocate(MemoryKind::kStore, VersionBytes(), nullptr, &staged->versions.back()->memory);
    if (!s.ok()) return s;
  }
  staged->trackers = std::make_shared<TrackerSet>();
  staged->trackers->charge = reservation.Charge(MemoryKind::kStore, tracker_bytes);
  return absl::OkStatus();
}

// The calibrated bases; without them, those of the first block's own moments (a head of zeros: the first axes).
absl::Status LowRankStore::StartTrackers(absl::Span<const HeadRows> rows, std::vector<Trackers>* trackers) const {
  const LowRankOptions& o = shape_->options;
  const auto start = [&o](const ConstRows& view, int rank) -> absl::StatusOr<Basis> {
    const Eigen::MatrixXd moment = MomentOfRows(view, o.block_tokens, o.head_dim);
    if (moment.trace() == 0) return FromEigen(Eigen::MatrixXd::Identity(o.head_dim, rank), 0);
    return BasisOfMoment(moment, rank);
  };
  for (int h = 0; h < o.heads; ++h) {
    if (!shape_->start.keys.empty()) {
      trackers->push_back({OjaTracker(shape_->start.keys[h], o.oja), OjaTracker(shape_->start.values[h], o.oja)});
      continue;
    }
    const std::vector<float> keys = KeysInFrame(rows[h].keys, o.block_tokens, 0);
    const auto key_basis = start({keys.data(), o.head_dim * sizeof(float), DType::kFloat32}, o.key_rank);
    if (!key_basis.ok()) return key_basis.status();
    const auto value_basis = start(rows[h].values, o.value_rank);
    if (!value_basis.ok()) return value_basis.status();
    trackers->push_back({OjaTracker(*key_basis, o.oja), OjaTracker(*value_basis, o.oja)});
  }
  return absl::OkStatus();
}

std::vector<float> LowRankStore::KeysInFrame(const ConstRows& keys, int64_t count, int64_t place) const {
  const LowRankOptions& o = shape_->options;
  std::vector<float> rows(count * o.head_dim);
  cpu::ToFloat(keys, static_cast<int>(count), o.head_dim, rows.data());
  if (o.frame == KeyFrame::kPreRope) UndoRopeOfRows(o.rope, o.first_position + place, count, rows.data());
  return rows;
}

absl::Status LowRankStore::Append(absl::Span<const HeadRows> rows, int64_t count) {
  const LowRankOptions& o = shape_->options;
  const int64_t num_blocks = count / o.block_tokens;
  if (num_blocks == 0) return absl::OkStatus();
  Staged staged;
  if (absl::Status s = Stage(num_blocks, &staged); !s.ok()) return s;
  if (trackers_ != nullptr) {
    staged.trackers->heads = trackers_->heads;
  } else if (absl::Status s = StartTrackers(rows, &staged.trackers->heads); !s.ok()) {
    return s;
  }
  std::shared_ptr<const Version> version = runs_.empty() ? nullptr : runs_.back().block->version;
  for (int64_t b = 0; b < num_blocks; ++b) {
    if (staged.versions[b] != nullptr) version = staged.versions[b];
    staged.blocks[b]->version = version;
    for (int h = 0; h < o.heads; ++h) {
      const auto from = [&](const ConstRows& view) {
        return ConstRows{view.row(b * o.block_tokens), view.stride_bytes, view.dtype};
      };
      absl::Status s = FillBlock({from(rows[h].keys), from(rows[h].values)}, h, size_ + b * o.block_tokens,
                                 staged.versions[b].get(), &staged.trackers->heads[h], staged.blocks[b].get());
      if (!s.ok()) return s;
    }
  }
  for (int64_t b = 0; b < num_blocks; ++b) {  // from here on nothing can fail
    runs_.push_back({std::move(staged.blocks[b]), size_});
    size_ += o.block_tokens;
    version_tokens_ = (staged.versions[b] != nullptr ? 0 : version_tokens_) + o.block_tokens;
  }
  trackers_ = std::move(staged.trackers);
  return absl::OkStatus();
}

// One head's part of a block. A fresh version takes what the trackers hold once they have seen the block.
absl::Status LowRankStore::FillBlock(const HeadRows& rows, int head, int64_t place, Version* fresh, Trackers* trackers,
                                     Block* block) const {
  const LowRankOptions& o = shape_->options;
  const int64_t n = o.block_tokens, kept = shape_->kept();
  const auto size = static_cast<int64_t>(SizeOf(o.dtype));
  const Offsets at = BlockOffsets();
  uint8_t* const data = block->memory.data();
  std::vector<float> keys = KeysInFrame(rows.keys, n, place), values(n * o.head_dim);
  cpu::ToFloat(rows.values, static_cast<int>(n), o.head_dim, values.data());
  const auto view = [&o](const std::vector<float>& x) {
    return ConstRows{x.data(), o.head_dim * sizeof(float), DType::kFloat32};
  };
  if (absl::Status s = trackers->keys.Add(view(keys), n); !s.ok()) return s;
  if (absl::Status s = trackers->values.Add(view(values), n); !s.ok()) return s;
  if (fresh != nullptr) {
    Pack(trackers->keys.basis(), head, false, fresh);
    Pack(trackers->values.basis(), head, true, fresh);
  }
  const auto store = [&](const std::vector<float>& x, bool of_values, int64_t offset) {
    const Basis basis = Unpack(*block->version, head, of_values);
    std::vector<float> codes(n * basis.stride()), back(x.size());
    Project(basis, x.data(), n, codes.data(), basis.stride());
    uint8_t* const out = data + offset + head * n * basis.rank * size;
    for (int64_t t = 0; t < n; ++t) {
      Narrow(&codes[t * basis.stride()], basis.rank, o.dtype, out + t * basis.rank * size);
    }
    Reconstruct(basis, codes.data(), basis.stride(), n, back.data());
    return back;
  };
  std::vector<float> residuals = store(keys, false, 0);
  store(values, true, at.value_codes);
  if (kept == 0) return absl::OkStatus();
  for (size_t i = 0; i < residuals.size(); ++i) residuals[i] = keys[i] - residuals[i];
  const Eigen::MatrixXd* moment = shape_->query_moments.empty() ? nullptr : &shape_->query_moments[head];
  const std::vector<int32_t> places = FullRankSet(Losses(residuals, o.head_dim, moment), kept);
  const int64_t row = o.head_dim * size;
  for (int64_t i = 0; i < kept; ++i) {
    const auto in_block = static_cast<uint16_t>(places[i]);
    std::memcpy(data + at.kept_keys + (head * kept + i) * row, rows.keys.row(places[i]), row);
    std::memcpy(data + at.kept_values + (head * kept + i) * row, rows.values.row(places[i]), row);
    std::memcpy(data + at.places + (head * kept + i) * static_cast<int64_t>(sizeof(in_block)), &in_block,
                sizeof(in_block));
  }
  return absl::OkStatus();
}

void LowRankStore::Pack(const Basis& basis, int head, bool of_values, Version* version) const {
  const LowRankOptions& o = shape_->options;
  const int64_t first = of_values ? int64_t{o.heads} * o.head_dim * o.key_rank : 0;
  uint8_t* out = version->memory.data() + (first + int64_t{head} * o.head_dim * basis.rank) * 2;
  for (int i = 0; i < o.head_dim; ++i, out += basis.rank * 2) {
    Narrow(&basis.u[static_cast<size_t>(i) * basis.stride()], basis.rank, DType::kFloat16, out);
  }
}

Basis LowRankStore::Unpack(const Version& version, int head, bool of_values) const {
  const LowRankOptions& o = shape_->options;
  Basis basis;
  basis.head_dim = o.head_dim;
  basis.rank = of_values ? o.value_rank : o.key_rank;
  basis.u.assign(static_cast<size_t>(o.head_dim) * basis.stride(), 0.0f);
  const int64_t first = of_values ? int64_t{o.heads} * o.head_dim * o.key_rank : 0;
  const uint8_t* in = version.memory.data() + (first + int64_t{head} * o.head_dim * basis.rank) * 2;
  for (int i = 0; i < o.head_dim; ++i, in += basis.rank * 2) {
    Widen(in, basis.rank, DType::kFloat16, &basis.u[static_cast<size_t>(i) * basis.stride()]);
  }
  return basis;
}

void LowRankStore::Truncate(int64_t size) {
  if (size >= size_) return;
  size_ = std::max<int64_t>(size, 0);
  while (!runs_.empty() && runs_.back().begin >= size_) runs_.pop_back();
  // The next tokens make blocks and a version of their own only where the version's tokens are used up.
  version_tokens_ = 0;
  if (runs_.empty()) return;
  const auto& version = runs_.back().block->version;
  for (const Run& run : runs_) version_tokens_ += run.block->version == version ? shape_->options.block_tokens : 0;
}

size_t LowRankStore::RunOf(int64_t place) const {
  const auto above = std::upper_bound(runs_.begin(), runs_.end(), place,
                                      [](int64_t value, const Run& run) { return value < run.begin; });
  return static_cast<size_t>(above - runs_.begin()) - 1;
}

Basis LowRankStore::BasisOf(int head, int64_t place, bool of_values) const {
  return Unpack(*runs_[RunOf(place)].block->version, head, of_values);
}

void LowRankStore::Read(int head, int64_t begin, int64_t end, float* keys, float* values) const {
  const int dim = shape_->options.head_dim;
  for (size_t r = begin < end ? RunOf(begin) : runs_.size(); r < runs_.size() && begin < end; ++r) {
    const int64_t run_end = r + 1 < runs_.size() ? runs_[r + 1].begin : size_;
    const int64_t stop = std::min(end, run_end);
    ReadRun(runs_[r], head, begin, stop, keys, values);
    if (keys != nullptr) keys += (stop - begin) * dim;
    if (values != nullptr) values += (stop - begin) * dim;
    begin = stop;
  }
}

void LowRankStore::ReadRun(const Run& run, int head, int64_t begin, int64_t end, float* keys, float* values) const {
  const LowRankOptions& o = shape_->options;
  const Offsets at = BlockOffsets();
  const auto size = static_cast<int64_t>(SizeOf(o.dtype));
  const int64_t n = o.block_tokens, kept = shape_->kept(), first = begin - run.begin, count = end - begin;
  const uint8_t* const data = run.block->memory.data();
  const auto rebuild = [&](bool of_values, int64_t offset, float* out) {
    const Basis basis = Unpack(*run.block->version, head, of_values);
    std::vector<float> codes(count * basis.stride());
    for (int64_t t = 0; t < count; ++t) {
      Widen(data + offset + (head * n + first + t) * basis.rank * size, basis.rank, o.dtype,
            &codes[t * basis.stride()]);
    }
    Reconstruct(basis, codes.data(), basis.stride(), count, out);
  };
  if (keys != nullptr) {
    rebuild(false, 0, keys);
    if (o.frame == KeyFrame::kPreRope) ApplyRopeToRows(o.rope, o.first_position + begin, count, keys);
  }
  if (values != nullptr) rebuild(true, at.value_codes, values);
  for (int64_t i = 0; i < kept; ++i) {
    uint16_t place;
    std::memcpy(&place, data + at.places + (head * kept + i) * static_cast<int64_t>(sizeof(place)), sizeof(place));
    if (place < first || place >= first + count) continue;
    const int64_t row = (head * kept + i) * o.head_dim * size, to = (place - first) * o.head_dim;
    if (keys != nullptr) Widen(data + at.kept_keys + row, o.head_dim, o.dtype, keys + to);
    if (values != nullptr) Widen(data + at.kept_values + row, o.head_dim, o.dtype, values + to);
  }
}

LowRankBytes LowRankStore::bytes() const {
  LowRankBytes bytes;
  const Offsets at = BlockOffsets();
  std::set<const Version*> versions;
  for (const Run& run : runs_) versions.insert(run.block->version.get());
  bytes.codes = static_cast<int64_t>(runs_.size()) * at.kept_keys;
  bytes.full_rank = static_cast<int64_t>(runs_.size()) * (at.end - at.kept_keys);
  bytes.bases = static_cast<int64_t>(versions.size()) * VersionBytes();
  if (trackers_ != nullptr) bytes.bases += trackers_->charge.bytes();
  return bytes;
}

LowRankMetrics LowRankStore::metrics(int head) const {
  LowRankMetrics metrics;
  if (trackers_ == nullptr) return metrics;
  metrics.keys = key_tracker(head).stats();
  metrics.values = value_tracker(head).stats();
  std::set<const Version*> versions;
  for (const Run& run : runs_) versions.insert(run.block->version.get());
  metrics.num_versions = static_cast<int64_t>(versions.size());
  if (runs_.empty()) return metrics;
  const Basis first = Unpack(*runs_[0].block->version, head, false);
  metrics.angle = PrincipalAngle(first, key_tracker(head).basis());
  metrics.overlap = Overlap(first, key_tracker(head).basis());
  return metrics;
}

}  // namespace seine
