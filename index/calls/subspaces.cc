// The bases of a sequence's layer, read and replaced, and what is said about them.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "index/index_impl.h"
#include "index/sequence/layer_lock.h"
#include "index/subspace/basis.h"
#include "profile/field_error.h"

namespace seine {

namespace {

constexpr double kOrthonormal = 1e-3;

absl::Status CheckBases(const char* field, const std::vector<Basis>& bases, const Geometry& g, int rank) {
  if (static_cast<int>(bases.size()) != g.num_kv_heads) {
    return BadField(field, "of ", bases.size(), " heads where the index has ", g.num_kv_heads);
  }
  for (size_t h = 0; h < bases.size(); ++h) {
    const Basis& basis = bases[h];
    if (basis.head_dim != g.head_dim || basis.rank != rank) {
      return BadField(field, "KV head ", h, " is [", basis.head_dim, ", ", basis.rank, "] where the index has [",
                      g.head_dim, ", ", rank, "]");
    }
    if (!std::all_of(basis.u.begin(), basis.u.end(), [](float x) { return std::isfinite(x); })) {
      return BadField(field, "KV head ", h, " holds NaN or infinity");
    }
    if (OrthonormalityError(basis) > kOrthonormal) {
      return BadField(field, "columns of KV head ", h, " are not orthonormal");
    }
  }
  return absl::OkStatus();
}

SubspaceInfo::Learning LearningOf(const OjaStats& stats) {
  return {stats.rows, stats.updates, stats.energy > 0 ? stats.residual_energy / stats.energy : 0, stats.last_ratio};
}

}  // namespace

absl::StatusOr<LayerBases> Layer::Bases() const {
  LayerBases bases;
  for (int h = 0; h < num_heads(); ++h) {
    const LowRankStore& low = *cache(h).low_rank(h - cache(h).first_head());
    std::optional<Basis> keys = low.key_basis(), values = low.value_basis();
    if (!keys || !values) {
      return FieldError(
          absl::StatusCode::kFailedPrecondition, "layer",
          absl::StrCat(layer_, " has no basis yet; it begins with the first tokens that become low-rank"));
    }
    bases.keys.push_back(*std::move(keys));
    bases.values.push_back(*std::move(values));
  }
  return bases;
}

absl::Status Layer::SetBases(const LayerBases& bases) {
  std::vector<std::vector<LowRankStore>> next(caches_.size());  // of every head, so that all change or none does
  for (int h = 0; h < num_heads(); ++h) {
    std::vector<LowRankStore>& of_strip = next[evicted() ? h : 0];
    of_strip.push_back(*cache(h).low_rank(h - cache(h).first_head()));
    if (absl::Status s = of_strip.back().SetBases(bases.keys[h], bases.values[h]); !s.ok()) return s;
  }
  for (size_t i = 0; i < caches_.size(); ++i) caches_[i]->SetLowRank(std::move(next[i]));
  return absl::OkStatus();
}

std::optional<SubspaceInfo> DescribeSubspace(const IndexConfig& config, const LowRankStore* low) {
  if (low == nullptr) return std::nullopt;
  const LowRankBytes bytes = low->bytes();
  const LowRankMetrics metrics = low->metrics();
  SubspaceInfo info;
  info.key_rank = low->options().key_rank;
  info.value_rank = low->options().value_rank;
  info.frame = Name(config.subspace->frame);
  info.profile = config.subspace->profile_name;
  info.low_rank_tokens = low->size();
  info.full_rank_tokens = metrics.num_full_rank;
  info.code_bytes = bytes.codes;
  info.full_rank_bytes = bytes.full_rank;
  info.basis_bytes = bytes.bases;
  info.versions = metrics.num_versions;
  info.keys = LearningOf(metrics.keys);
  info.values = LearningOf(metrics.values);
  info.angle = metrics.angle;
  info.overlap = metrics.overlap;
  info.blocks_without_queries = metrics.blocks_without_queries;
  return info;
}

absl::Status IndexImpl::Reconstruct(const SequenceHandle& handle, int layer, int kv_head, int64_t begin, int64_t end,
                                    std::vector<int32_t>* positions, std::string* keys, std::string* values) const {
  auto target = SubspaceLayer(handle, layer);
  if (!target.ok()) return target.status();
  if (absl::Status s = CheckHead(kv_head); !s.ok()) return s;
  const Layer& held = *(*target)->layers[layer];
  const auto lock = ReadLock::Of(held);
  if (!lock.ok()) return lock.status();
  if (begin < 0 || begin > end)
    return FieldError(absl::StatusCode::kOutOfRange, "begin", absl::StrCat(begin, " is not in [0, end]"));
  if (end > held.length()) {
    return FieldError(absl::StatusCode::kOutOfRange, "end",
                      absl::StrCat(end, " is beyond the layer, which holds ", held.length(), " tokens"));
  }
  const HeadGroupCache& cache = held.cache(kv_head);
  std::vector<int64_t> places;
  positions->clear();
  for (int64_t place = cache.PlaceOf(begin); place < cache.PlaceOf(end); ++place) {
    places.push_back(place);
    positions->push_back(cache.position(place));
  }
  cache.Gather(kv_head - cache.first_head(), places, keys, values);
  return StopStatus();
}

absl::StatusOr<LayerBases> IndexImpl::GetBases(const SequenceHandle& handle, int layer) const {
  auto target = SubspaceLayer(handle, layer);
  if (!target.ok()) return target.status();
  const Layer& held = *(*target)->layers[layer];
  const auto lock = ReadLock::Of(held);
  if (!lock.ok()) return lock.status();
  return held.Bases();
}

absl::Status IndexImpl::SetBases(const SequenceHandle& handle, int layer, const LayerBases& bases) {
  auto target = SubspaceLayer(handle, layer);
  if (!target.ok()) return target.status();
  const SubspaceConfig& s = *context_.config.subspace;
  absl::Status status = CheckBases("bases.keys", bases.keys, context_.config.geometry, s.key_rank_of(layer));
  status.Update(CheckBases("bases.values", bases.values, context_.config.geometry, s.value_rank_of(layer)));
  if (!status.ok()) return status;
  Layer& held = *(*target)->layers[layer];
  const auto lock = WriteLock::Of(&held);
  if (!lock.ok()) return lock.status();
  return held.SetBases(bases);
}

absl::StatusOr<IndexImpl::SequenceRef> IndexImpl::SubspaceLayer(const SequenceHandle& handle, int layer) const {
  absl::StatusOr<SequenceRef> sequence = Find(handle);
  if (!sequence.ok()) return sequence.status();
  if (absl::Status s = CheckLayer(layer); !s.ok()) return s;
  if (!context_.config.subspace)
    return FieldError(absl::StatusCode::kFailedPrecondition, "handle", "the index keeps nothing low-rank");
  return sequence;
}

}  // namespace seine
