// The bases of a layer, read and replaced, and what is said about its low-rank rows.
#include "index/calls/subspaces.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
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

absl::Status ReconstructRows(const Layer& layer, int kv_head, int64_t begin, int64_t end,
                             std::vector<int32_t>* positions, std::string* keys, std::string* values) {
  const auto lock = ReadLock::Of(layer);
  if (!lock.ok()) return lock.status();
  if (begin < 0 || begin > end)
    return FieldError(absl::StatusCode::kOutOfRange, "begin", absl::StrCat(begin, " is not in [0, end]"));
  if (end > layer.length()) {
    return FieldError(absl::StatusCode::kOutOfRange, "end",
                      absl::StrCat(end, " is beyond the layer, which holds ", layer.length(), " tokens"));
  }
  const HeadGroupCache& cache = layer.cache(kv_head);
  std::vector<int64_t> places;
  positions->clear();
  for (int64_t place = cache.PlaceOf(begin); place < cache.PlaceOf(end); ++place) {
    places.push_back(place);
    positions->push_back(cache.position(place));
  }
  cache.Gather(kv_head - cache.first_head(), places, keys, values);
  return StopStatus();
}

absl::StatusOr<LayerBases> BasesOf(const Layer& layer) {
  const auto lock = ReadLock::Of(layer);
  if (!lock.ok()) return lock.status();
  return layer.Bases();
}

absl::Status ReplaceBases(const IndexConfig& config, int layer, const LayerBases& bases, Layer* held) {
  const SubspaceConfig& s = *config.subspace;
  absl::Status status = CheckBases("bases.keys", bases.keys, config.geometry, s.key_rank_of(layer));
  status.Update(CheckBases("bases.values", bases.values, config.geometry, s.value_rank_of(layer)));
  if (!status.ok()) return status;
  const auto lock = WriteLock::Of(held);
  if (!lock.ok()) return lock.status();
  return held->SetBases(bases);
}

}  // namespace seine
