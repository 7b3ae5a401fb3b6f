// What the latest step that a layer keeps finds, and where its exact attention lies.
#include "index/calls/describe_step.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "index/quality/compare.h"
#include "index/quality/sample.h"
#include "index/stop_status.h"
#include "profile/field_error.h"

namespace seine {

namespace {

StepSet SetOf(const QualitySample& sample, size_t head, size_t set, int group, std::vector<int32_t> positions,
              const HeadQuality& quality) {
  const auto sets = static_cast<int>(quality.sets.size());
  StepSet out;
  out.kv_head = sample.heads[head].kv_head;
  out.q_head = out.kv_head * group + static_cast<int>(set) * (group / sets);
  out.positions = std::move(positions);
  out.weights = quality.weights[set].found;
  out.sink = quality.weights[set].sink;
  out.local = quality.weights[set].local;
  for (const float weight : out.weights) out.found += static_cast<double>(weight);
  out.tail = std::max(0.0, 1 - out.sink - out.local - out.found);
  out.recall = quality.sets[set].recall;
  return out;
}

}  // namespace

absl::StatusOr<StepInfo> DescribeLatestStep(const Context& context, const Checks& checks, const Sequences& sequences,
                                            Reencoder* reencoder, const SequenceHandle& handle, int layer) {
  if (context.config.kv_store == KvStore::kNone) {
    return FieldError(absl::StatusCode::kFailedPrecondition, "handle.index", "it keeps no keys to attend exactly");
  }
  if (absl::Status s = checks.CheckLayer(layer); !s.ok()) return s;
  absl::StatusOr<SequenceRef> sequence = sequences.Find(handle);
  if (!sequence.ok()) return sequence.status();
  const auto [queries, position] = (*sequence)->layers[layer]->queries().Latest();
  if (position < 0) {
    return FieldError(absl::StatusCode::kFailedPrecondition, "layer", "no query of it was seen that searched a zone");
  }
  if (absl::Status s = reencoder->FinishDue(*sequence, layer); !s.ok()) return s;
  const RetrieveItem item = {{}, layer, queries.data()};
  StepInfo info;
  info.position = position;
  QualitySample sample;
  ItemAnswer answer;
  {
    SearchBatch batch(&context, /*counted=*/false);
    batch.Add(*sequence, &item, 0);
    if (absl::Status s = batch.Search(context.config.search, {}); !s.ok()) return s;
    sample = SampleOf(batch, 0);
    batch.ReadAnswer(0, &answer);
  }
  info.num_tokens = answer.num_tokens;
  std::vector<HeadQuality> heads;
  const Compared compared = Compare(
      sample, [] {}, &heads, /*with_weights=*/true);
  if (compared == Compared::kStopped) return StopStatus();
  if (compared == Compared::kNoMemory) return absl::ResourceExhaustedError("no memory for the exact attention");
  if (compared != Compared::kDone) {
    return FieldError(absl::StatusCode::kFailedPrecondition, "handle", "its layer changed meanwhile; ask again");
  }
  const int group = context.config.geometry.group();
  for (size_t h = 0; h < heads.size(); ++h) {
    const size_t sets = heads[h].sets.size();
    for (size_t s = 0; s < sets; ++s) {
      std::vector<int32_t>& positions = answer.positions[static_cast<size_t>(heads[h].kv_head) * sets + s];
      info.sets.push_back(SetOf(sample, h, s, group, std::move(positions), heads[h]));
    }
  }
  return info;
}

}  // namespace seine
