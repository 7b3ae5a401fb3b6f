// How tokens become low-rank: memory for all of an append first; then, block by block and for all heads together, the
// trackers learn from the block, a version is made of them where one is due, and the block is projected on its version.
// Those of its tokens stay full-rank whose keys lose most to attention.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "index/subspace/low_rank.h"
#include "index/subspace/low_rank_store.h"
#include "kernels/host.h"
#include "profile/field_error.h"

namespace seine {

namespace {

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

int64_t LowRankStore::TrackerBytes(int64_t waiting) const {
  const LowRankOptions& o = shape_->options;
  const int64_t rest = waiting % o.oja.interval;
  return PackedTracker::Bytes(o.head_dim, o.key_rank, rest) + PackedTracker::Bytes(o.head_dim, o.value_rank, rest);
}

// Tokens that a version lasts which began with `before` tokens stored: bases turn most in the beginning.
int64_t LowRankStore::VersionTokens(int64_t before) const {
  constexpr int64_t kFirst = 512, kGrowth = 7;
  return std::min(shape_->options.version_tokens, std::max(kFirst, kGrowth * before));
}

// All memory of an append, or none.
absl::StatusOr<LowRankStore::Planned> LowRankStore::Plan(int64_t count, int64_t first, bool prompt) const {
  const LowRankOptions& o = shape_->options;
  Planned planned;
  const bool at_once = LearnsAtOnce(prompt);
  const int64_t waiting = trackers_ == nullptr ? 0 : trackers_->keys.waiting();
  const int64_t tracker_bytes = TrackerBytes(waiting + (at_once ? 0 : count));
  const bool apart = ledger_->backend()->codes_on_device();
  int64_t bytes = tracker_bytes, device_bytes = 0, in_version = 0;
  for (const Run& run : runs_) {
    in_version += run.block->version == runs_.back().block->version ? run.block->tokens : 0;
  }
  int64_t before = std::max<int64_t>(0, size_ - in_version);
  for (int64_t done = 0; done < count;) {
    auto block = std::make_shared<Block>();
    block->tokens = std::min<int64_t>(done == 0 ? first : o.block_tokens, count - done);
    block->kept = KeptOf(block->tokens);
    bytes += OffsetsOf(block->tokens, block->kept).end;
    const bool first_of_all = (runs_.empty() || given_ != nullptr) && done == 0;
    const bool fresh = first_of_all || (in_version >= VersionTokens(before) && (done == 0 || !at_once));
    if (fresh) before = size_ + done;
    if (fresh) bytes += VersionBytes();
    if (fresh && apart) device_bytes += VersionBytes();
    in_version = (fresh ? 0 : in_version) + block->tokens;
    done += block->tokens;
    planned.fresh.push_back(fresh ? std::make_shared<Version>() : nullptr);
    planned.blocks.push_back(std::move(block));
  }
  Reservation reservation(ledger_);
  const auto allocate = [&](MemoryKind kind, int64_t size, Memory* out) {
    return reservation.Allocate(kind, size, ledger_->pool(kind), out);
  };
  absl::Status s = reservation.Reserve(MemoryKind::kSubspace, bytes);
  if (s.ok()) s = reservation.Reserve(MemoryKind::kCode, device_bytes);
  for (size_t b = 0; b < planned.blocks.size() && s.ok(); ++b) {
    Block& block = *planned.blocks[b];
    s = allocate(MemoryKind::kSubspace, OffsetsOf(block.tokens, block.kept).end, &block.memory);
    Version* fresh = planned.fresh[b].get();
    if (s.ok() && fresh != nullptr) {
      s = allocate(MemoryKind::kSubspace, VersionBytes(), &fresh->memory);
      if (s.ok() && apart) s = allocate(MemoryKind::kCode, VersionBytes(), &fresh->device);
    }
  }
  if (!s.ok()) return s;
  planned.trackers = reservation.Charge(MemoryKind::kSubspace, tracker_bytes);
  return planned;
}

// Those held; before the first block those of the bases given or calibrated, without them of its own moments (zeros:
// the first axes).
absl::StatusOr<std::shared_ptr<LowRankStore::TrackerSet>> LowRankStore::NextTrackers(const HeadRows& rows,
                                                                                     const int32_t* positions,
                                                                                     int64_t first_block) const {
  const LowRankOptions& o = shape_->options;
  if (trackers_ != nullptr) {
    return std::make_shared<TrackerSet>(
        TrackerSet{trackers_->keys, trackers_->values, Memory(), trackers_->blocks_without_queries});
  }
  const auto start = [&](const ConstRows& view, int rank) -> absl::StatusOr<Basis> {
    const Eigen::MatrixXd moment = MomentOfRows(view, first_block, o.head_dim);
    if (moment.trace() == 0) return FromEigen(Eigen::MatrixXd::Identity(o.head_dim, rank), 0);
    return BasisOfMoment(moment, rank);
  };
  std::optional<Basis> key_start = key_basis(), value_start = value_basis();
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
  return std::make_shared<TrackerSet>(TrackerSet{PackedTracker(OjaTracker(*std::move(key_start), o.oja)),
                                                 PackedTracker(OjaTracker(*std::move(value_start), o.oja)), Memory()});
}

std::vector<float> LowRankStore::KeysInFrame(const ConstRows& keys, const int32_t* positions, int64_t count) const {
  const LowRankOptions& o = shape_->options;
  std::vector<float> rows(count * o.head_dim);
  host::ToFloat(keys, static_cast<int>(count), o.head_dim, rows.data());
  if (o.frame == KeyFrame::kPreRope) UndoRopeOfRows(o.rope, positions, count, rows.data());
  return rows;
}

// One step with the moment of all rows of a prompt, which are read a part at a time.
absl::Status LowRankStore::LearnPrompt(const HeadRows& rows, const int32_t* positions, int64_t count,
                                       TrackerSet* trackers) const {
  constexpr int64_t kPartTokens = 4096;
  const LowRankOptions& o = shape_->options;
  PooledMoment keys(o.head_dim, o.prompt.pool), values(o.head_dim, o.prompt.pool);
  const int64_t part = (kPartTokens + o.prompt.pool - 1) / o.prompt.pool * o.prompt.pool;
  for (int64_t done = 0; done < count; done += part) {
    const int64_t n = std::min(part, count - done);
    const ConstRows key_rows = {rows.keys.row(done), rows.keys.stride_bytes, rows.keys.dtype};
    const std::vector<float> in_frame = KeysInFrame(key_rows, positions + done, n);
    keys.Add({in_frame.data(), o.head_dim * sizeof(float), DType::kFloat32}, n);
    values.Add({rows.values.row(done), rows.values.stride_bytes, rows.values.dtype}, n);
  }
  if (keys.count() == 0) return absl::OkStatus();  // fewer rows than are averaged
  OjaTracker of_keys = trackers->keys.Wake(), of_values = trackers->values.Wake();
  absl::Status s = WithField(of_keys.AddMoment(keys.mean(), o.prompt.learning_rate), "keys");
  if (s.ok()) s = WithField(of_values.AddMoment(values.mean(), o.prompt.learning_rate), "values");
  if (!s.ok()) return s;
  trackers->keys.Rest(of_keys);
  trackers->values.Rest(of_values);
  return absl::OkStatus();
}

// One store's part of an append.
struct LowRankStore::Appending {
  const LowRankStore* store;
  bool at_once;  // what it brings has been learnt already
  HeadRows rows;
  Planned planned;
  std::shared_ptr<TrackerSet> trackers;
  std::shared_ptr<const Version> version;
  // The block at hand: rows in their frames, the version's bases, and what the keys' basis leaves out.
  std::vector<float> keys, values, residuals;
  Basis key_basis, value_basis;
};

absl::StatusOr<LowRankStore::Appending> LowRankStore::Begin(const HeadRows& rows, const int32_t* positions,
                                                            int64_t count, int64_t first, bool prompt) const {
  absl::StatusOr<Planned> planned = Plan(count, first, prompt);
  if (!planned.ok()) return planned.status();
  auto trackers = NextTrackers(rows, positions, planned->blocks[0]->tokens);
  if (!trackers.ok()) return trackers.status();
  (*trackers)->charge = std::move(planned->trackers);
  if (LearnsAtOnce(prompt)) {
    if (absl::Status s = LearnPrompt(rows, positions, count, trackers->get()); !s.ok()) return s;
  }
  return Appending{this,
                   LearnsAtOnce(prompt),
                   rows,
                   *std::move(planned),
                   *std::move(trackers),
                   runs_.empty() ? nullptr : runs_.back().block->version,
                   {},
                   {},
                   {},
                   {},
                   {}};
}

absl::StatusOr<LowRankStore::Staged> LowRankStore::Stage(const HeadRows& rows, const int32_t* positions, int64_t count,
                                                         int64_t first, bool prompt) const {
  auto staged = StageAll({this, 1}, {&rows, 1}, positions, count, first, prompt);
  if (!staged.ok()) return staged.status();
  return std::move((*staged)[0]);
}

absl::StatusOr<std::vector<LowRankStore::Staged>> LowRankStore::StageAll(absl::Span<const LowRankStore> stores,
                                                                         absl::Span<const HeadRows> rows,
                                                                         const int32_t* positions, int64_t count,
                                                                         int64_t first, bool prompt) {
  std::vector<Staged> staged(stores.size());
  for (size_t h = 0; h < stores.size(); ++h) staged[h].trackers_ = stores[h].trackers_;
  if (count == 0) return staged;
  std::vector<Appending> heads;
  for (size_t h = 0; h < stores.size(); ++h) {
    auto begun = stores[h].Begin(rows[h], positions, count, first, prompt);
    if (!begun.ok()) return begun.status();
    heads.push_back(*std::move(begun));
  }
  int64_t done = 0;
  for (size_t b = 0; b < heads[0].planned.blocks.size(); ++b) {
    const int64_t tokens = heads[0].planned.blocks[b]->tokens;
    if (absl::Status s = FillBlocks(&heads, b, positions + done, done); !s.ok()) return s;
    done += tokens;
  }
  for (size_t h = 0; h < heads.size(); ++h) {
    for (std::shared_ptr<Block>& block : heads[h].planned.blocks) staged[h].blocks_.push_back(std::move(block));
    staged[h].trackers_ = std::move(heads[h].trackers);
  }
  return staged;
}

// Block b of every head, its first token being number `done` of the append.
absl::Status LowRankStore::FillBlocks(std::vector<Appending>* heads, size_t b, const int32_t* positions, int64_t done) {
  Backend* const backend = (*heads)[0].store->ledger_->backend();
  const auto rows_of = [done](const Appending& head) {
    const auto from = [done](const ConstRows& view) {
      return ConstRows{view.row(done), view.stride_bytes, view.dtype};
    };
    return HeadRows{from(head.rows.keys), from(head.rows.values), head.rows.queries};
  };
  for (Appending& head : *heads) {
    const int64_t n = head.planned.blocks[b]->tokens;
    if (absl::Status s = head.store->TakeRows(rows_of(head), positions, n, &head); !s.ok()) return s;
  }
  if (!(*heads)[0].at_once) {
    if (absl::Status s = LearnBlock(heads, b); !s.ok()) return s;
  }
  std::vector<ProjectTask> projecting;
  for (Appending& head : *heads) {
    if (absl::Status packed = head.store->ChooseVersion(b, &head); !packed.ok()) return packed;
    head.store->PlanProjection(b, &head, &projecting);
  }
  absl::Status s = StatusOf(*backend, backend->Project(projecting.data(), static_cast<int>(projecting.size())));
  if (!s.ok()) return s;
  for (Appending& head : *heads) {
    Block* const block = head.planned.blocks[b].get();
    if (block->kept == 0) continue;
    const HeadRows rows = rows_of(head);
    head.store->KeepFullRank(rows, head.store->ErrorsOf(rows.queries, positions, &head.residuals, head.trackers.get()),
                             block);
  }
  return absl::OkStatus();
}

// The trackers of all heads see block b in one call of the backend.
absl::Status LowRankStore::LearnBlock(std::vector<Appending>* heads, size_t b) {
  Backend* const backend = (*heads)[0].store->ledger_->backend();
  std::vector<OjaTracker> awake;  // of keys and of values, head by head
  for (const Appending& head : *heads) {
    awake.push_back(head.trackers->keys.Wake());
    awake.push_back(head.trackers->values.Wake());
  }
  std::vector<LearnTask> learning;
  for (size_t h = 0; h < heads->size(); ++h) {
    const Appending& head = (*heads)[h];
    const int64_t n = head.planned.blocks[b]->tokens;
    learning.push_back(awake[2 * h].Begin(head.keys.data(), n));
    learning.push_back(awake[2 * h + 1].Begin(head.values.data(), n));
  }
  absl::Status s = StatusOf(*backend, backend->Learn(learning.data(), static_cast<int>(learning.size())));
  if (!s.ok()) return s;
  for (size_t h = 0; h < heads->size(); ++h) {
    for (OjaTracker* tracker : {&awake[2 * h], &awake[2 * h + 1]}) tracker->End();
    (*heads)[h].trackers->keys.Rest(awake[2 * h]);
    (*heads)[h].trackers->values.Rest(awake[2 * h + 1]);
  }
  return absl::OkStatus();
}

// A block's rows as the trackers and the projection take them. INVALID_ARGUMENT where they are not finite there.
absl::Status LowRankStore::TakeRows(const HeadRows& rows, const int32_t* positions, int64_t count,
                                    Appending* head) const {
  const int dim = shape_->options.head_dim;
  head->keys = KeysInFrame(rows.keys, positions, count);
  head->values.resize(count * dim);
  host::ToFloat(rows.values, static_cast<int>(count), dim, head->values.data());
  for (const auto& [name, x] : {std::pair{"keys", &head->keys}, std::pair{"values", &head->values}}) {
    const ConstRows view = {x->data(), dim * sizeof(float), DType::kFloat32};
    if (const int64_t bad = host::FirstNonFinite(view, count, dim); bad >= 0) {
      return BadField(name, "row ", bad, " holds NaN or infinity");
    }
  }
  return absl::OkStatus();
}

// A fresh version takes what the trackers hold once they have seen its first block.
absl::Status LowRankStore::ChooseVersion(size_t b, Appending* head) const {
  if (Version* fresh = head->planned.fresh[b].get(); fresh != nullptr) {
    if (absl::Status s = PackVersion(*head->trackers, fresh); !s.ok()) return s;
    head->version = head->planned.fresh[b];
    head->key_basis = Basis();
  }
  if (head->key_basis.rank == 0) {
    head->key_basis = Unpack(*head->version, false);
    head->value_basis = Unpack(*head->version, true);
  }
  head->planned.blocks[b]->version = head->version;
  return absl::OkStatus();
}

void LowRankStore::PlanProjection(size_t b, Appending* head, std::vector<ProjectTask>* tasks) const {
  const LowRankOptions& o = shape_->options;
  Block& block = *head->planned.blocks[b];
  uint8_t* const data = block.memory.data();
  head->residuals.resize(block.kept > 0 ? head->keys.size() : 0);
  float* const residuals = block.kept > 0 ? head->residuals.data() : nullptr;
  tasks->push_back(
      {head->key_basis.u.data(), o.head_dim, o.key_rank, head->keys.data(), block.tokens, o.dtype, data, residuals});
  tasks->push_back({head->value_basis.u.data(), o.head_dim, o.value_rank, head->values.data(), block.tokens, o.dtype,
                    data + OffsetsOf(block.tokens, block.kept).value_codes, nullptr});
}

absl::Status LowRankStore::PackVersion(const TrackerSet& trackers, Version* version) const {
  Pack(trackers.keys.basis(), false, version);
  Pack(trackers.values.basis(), true, version);
  if (version->device.data() == nullptr) return absl::OkStatus();
  Backend* const backend = ledger_->backend();
  const CopyTask copy = {version->device.data(), version->memory.data(), static_cast<size_t>(VersionBytes())};
  return StatusOf(*backend, backend->Copy(&copy, 1));
}

void LowRankStore::Pack(const Basis& basis, bool of_values, Version* version) const {
  const LowRankOptions& o = shape_->options;
  uint8_t* out = version->memory.data() + (of_values ? int64_t{o.head_dim} * o.key_rank * 2 : 0);
  std::vector<float> row(o.head_dim);
  for (int i = 0; i < basis.rank; ++i, out += o.head_dim * 2) {
    for (int j = 0; j < o.head_dim; ++j) row[j] = basis.u[static_cast<size_t>(j) * basis.stride() + i];
    host::Narrow(row.data(), o.head_dim, DType::kFloat16, out);
  }
}

// What a block's tokens lose to attention, whose keys' residuals are in their frame: by queries, or where none sees a
// token of the block by moments, which is counted.
std::vector<float> LowRankStore::ErrorsOf(const RecentQueries& queries, const int32_t* positions,
                                          std::vector<float>* residuals, TrackerSet* trackers) const {
  const LowRankOptions& o = shape_->options;
  const int64_t count = static_cast<int64_t>(residuals->size()) / o.head_dim;
  const Eigen::MatrixXd* moment = shape_->query_moment ? &*shape_->query_moment : nullptr;
  std::vector<float> errors;
  const bool asked = queries.num_positions > 0 && std::any_of(positions, positions + count, [&](int32_t p) {
                       return p <= queries.positions[queries.num_positions - 1];
                     });
  if (o.choice.queries > 0 && asked) {
    if (o.frame == KeyFrame::kPreRope) ApplyRopeToRows(o.rope, positions, count, residuals->data());
    errors = QueryWeightedErrors(residuals->data(), positions, count, o.head_dim, queries);
  } else {
    trackers->blocks_without_queries += o.choice.queries > 0 ? 1 : 0;
    errors = Losses(*residuals, o.head_dim, moment);
  }
  return o.choice.pool > 1 ? PooledErrors(errors, o.choice.pool) : errors;
}

void LowRankStore::KeepFullRank(const HeadRows& rows, const std::vector<float>& errors, Block* block) const {
  const LowRankOptions& o = shape_->options;
  const Offsets at = OffsetsOf(block->tokens, block->kept);
  const std::vector<int32_t> places = FullRankSet(errors, block->kept);
  uint8_t* const data = block->memory.data();
  const auto row = o.head_dim * static_cast<int64_t>(SizeOf(o.dtype));
  for (int64_t i = 0; i < block->kept; ++i) {
    const auto in_block = static_cast<uint16_t>(places[i]);
    std::memcpy(data + at.kept_keys + i * row, rows.keys.row(places[i]), row);
    std::memcpy(data + at.kept_values + i * row, rows.values.row(places[i]), row);
    std::memcpy(data + at.places + i * static_cast<int64_t>(sizeof(in_block)), &in_block, sizeof(in_block));
  }
}

}  // namespace seine
