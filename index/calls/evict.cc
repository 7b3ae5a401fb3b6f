// Scoring and eviction of one layer: checks, locks, and what is said about them.
#include "index/calls/evict.h"

#include <optional>
#include <utility>

#include "index/sequence/layer_lock.h"
#include "profile/field_error.h"

namespace seine {

namespace {

std::vector<std::vector<int32_t>> PositionsOf(const Layer& layer, const std::vector<std::vector<uint32_t>>& places) {
  std::vector<std::vector<int32_t>> positions(places.size());
  for (size_t h = 0; h < places.size(); ++h) {
    const HeadGroupCache& cache = layer.cache(static_cast<int>(h));
    positions[h].reserve(places[h].size());
    for (const uint32_t place : places[h]) positions[h].push_back(cache.position(place));
  }
  return positions;
}

}  // namespace

absl::StatusOr<LayerScores> ScoreLayer(const Checks& checks, const Layer& layer, const ScorerConfig& config,
                                       const ScorerInputs& given) {
  auto scorer = checks.CheckScorer(config);
  if (!scorer.ok()) return scorer.status();
  const auto lock = ReadLock::Of(layer);
  if (!lock.ok()) return lock.status();
  if (absl::Status s = checks.CheckScorerInputs(layer, given); !s.ok()) return s;
  LayerScores answer;
  if (absl::Status s = layer.Score(**scorer, given, &answer.scores); !s.ok()) return s;
  answer.positions.resize(answer.scores.size());
  for (size_t h = 0; h < answer.scores.size(); ++h) {
    const HeadGroupCache& cache = layer.cache(static_cast<int>(h));
    for (int64_t place = 0; place < cache.size(); ++place) answer.positions[h].push_back(cache.position(place));
  }
  return answer;
}

absl::StatusOr<EvictAnswer> EvictLayer(const Context& context, const Checks& checks, Layer* layer,
                                       const EvictParams& params, const ScorerInputs& given) {
  if (absl::Status s = Validate(params.budget); !s.ok()) return s;
  if (absl::Status s = Validate(params.keep); !s.ok()) return s;
  auto scorer = checks.CheckScorer(params.scorer);
  if (!scorer.ok()) return scorer.status();
  std::optional<ReadLock> reading;
  std::optional<WriteLock> writing;
  if (params.dry_run) {
    auto lock = ReadLock::Of(*layer);
    if (!lock.ok()) return lock.status();
    reading.emplace(*std::move(lock));
  } else {
    auto lock = WriteLock::Of(layer);
    if (!lock.ok()) return lock.status();
    writing.emplace(*std::move(lock));
  }
  if (absl::Status s = checks.CheckScorerInputs(*layer, given); !s.ok()) return s;
  auto places = layer->Select(params, **scorer, given);
  if (!places.ok()) return places.status();
  EvictAnswer answer;
  answer.kept = PositionsOf(*layer, *places);
  for (size_t h = 0; h < places->size(); ++h) {
    answer.tokens_evicted += layer->cache(static_cast<int>(h)).size() - static_cast<int64_t>((*places)[h].size());
  }
  DroppedPositions dropped;
  layer->BeginReport(params.report, &answer.retained, &dropped);
  if (params.dry_run) {
    layer->EndReport(&dropped, &answer.retained);
    return answer;
  }
  const int64_t before = layer->code_bytes() + layer->store_bytes();
  absl::StatusOr<int64_t> gone = layer->Keep(*places, &dropped);
  if (!gone.ok()) return gone.status();
  context.CountEvicted(params.scorer.name, *gone > 0 ? 1 : 0, *gone);
  answer.bytes_freed = before - layer->code_bytes() - layer->store_bytes();
  layer->EndReport(&dropped, &answer.retained);
  return answer;
}

absl::StatusOr<std::vector<HeadDiagnosis>> DiagnoseLayer(const Context& context, const Checks& checks,
                                                         const Layer& layer, const DiagnoseParams& params,
                                                         const ScorerInputs& given) {
  if (context.config.kv_store == KvStore::kNone) return checks.CheckScorer({}).status();
  std::vector<std::shared_ptr<const Scorer>> scorers;
  for (size_t i = 0; i < params.scorers.size(); ++i) {
    auto scorer = checks.CheckScorer(params.scorers[i]);
    if (!scorer.ok()) return OfScorers(i, scorer.status());
    scorers.push_back(*std::move(scorer));
  }
  const auto lock = ReadLock::Of(layer);
  if (!lock.ok()) return lock.status();
  if (absl::Status s = checks.CheckScorerInputs(layer, given); !s.ok()) return s;
  return layer.Diagnose(params, scorers, given);
}

}  // namespace seine
