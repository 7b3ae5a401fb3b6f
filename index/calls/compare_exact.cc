// Queries that were asked lately, asked once more and answered exactly besides.
#include "index/calls/compare_exact.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "index/quality/compare.h"
#include "index/quality/sample.h"
#include "index/stop_status.h"
#include "profile/field_error.h"

namespace seine {

namespace {

// Steps that a layer of a sequence was asked, and how many of them are to be asked again.
struct AskedLayer {
  std::weak_ptr<Sequence> sequence;
  int layer = 0;
  int held = 0, wanted = 0;
};

// Spreads `samples` over the layers: as many each, or one each of some of them, evenly.
void SpreadSamples(int samples, std::vector<AskedLayer>* asked) {
  const auto count = static_cast<int64_t>(asked->size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t share = (i + 1) * samples / count - i * samples / count;
    (*asked)[i].wanted = static_cast<int>(std::min<int64_t>(share, (*asked)[i].held));
  }
}

// Sums by (layer, KV head).
class Sums {
 public:
  void Add(int layer, const std::vector<HeadQuality>& heads) {
    for (const HeadQuality& head : heads) {
      for (const SetQuality& set : head.sets) AddSet(&sums_[{layer, head.kv_head}], set);
    }
  }
  std::vector<HeadComparison> Means() const {
    std::vector<HeadComparison> heads;
    for (const auto& [place, sum] : sums_) {
      HeadComparison head = sum.head;
      const auto sets = static_cast<double>(head.sets);
      head.layer = place.first;
      head.kv_head = place.second;
      head.recall /= sets;
      head.attention_mass /= sets;
      if (sum.predicted > 0) head.predicted_recall = sum.predicted_recall / static_cast<double>(sum.predicted);
      heads.push_back(head);
    }
    return heads;
  }

 private:
  struct Sum {
    HeadComparison head;
    int64_t predicted = 0;  // sets
    double predicted_recall = 0;
  };
  static void AddSet(Sum* sum, const SetQuality& set) {
    ++sum->head.sets;
    sum->head.recall += set.recall;
    sum->head.least_recall = std::min(sum->head.least_recall, set.recall);
    sum->head.attention_mass += set.attention_mass;
    if (!set.predicted_recall) return;
    ++sum->predicted;
    sum->predicted_recall += *set.predicted_recall;
  }
  std::map<std::pair<int, int>, Sum> sums_;
};

// One step of a layer. nullopt: there is nothing to search, or to compare with any more.
absl::StatusOr<std::optional<std::vector<HeadQuality>>> CompareStep(const Context& context, const AskedLayer& asked,
                                                                    const std::vector<float>& queries,
                                                                    const SearchParams& params) {
  std::shared_ptr<Sequence> sequence = asked.sequence.lock();
  if (sequence == nullptr) return std::nullopt;
  const RetrieveItem item = {{}, asked.layer, queries.data()};
  QualitySample sample;
  {
    SearchBatch batch(&context, /*counted=*/false);
    batch.Add(std::move(sequence), &item, 0);
    if (absl::Status s = batch.Search(params, {}); !s.ok()) return s;
    sample = SampleOf(batch, 0);
  }
  if (sample.heads.empty()) return std::nullopt;
  std::vector<HeadQuality> heads;
  const Compared compared = Compare(
      sample, [] {}, &heads);
  if (compared == Compared::kStopped) return StopStatus();
  if (compared == Compared::kNoMemory) return absl::ResourceExhaustedError("no memory for the exact answer");
  if (compared != Compared::kDone) return std::nullopt;
  return heads;
}

}  // namespace

absl::StatusOr<ComparisonReport> CompareSequences(const Context& context, const Checks& checks,
                                                  const Sequences& sequences, Reencoder* reencoder,
                                                  absl::Span<const SequenceHandle> handles,
                                                  const ComparisonParams& params) {
  if (context.config.kv_store == KvStore::kNone) {
    return FieldError(absl::StatusCode::kFailedPrecondition, "index", "it keeps no keys to answer exactly from");
  }
  if (params.samples < 1 || params.samples > kMostComparisons) {
    return BadField("samples", params.samples, " is not in [1, ", kMostComparisons, "]");
  }
  if (params.search.method == Method::kExact) return BadField("exact", "is what the answers are compared with");
  if (auto s = Validate(params.search, context.config); !s.ok()) return s;
  std::vector<int> layers = params.layers;
  if (layers.empty()) {
    layers.resize(context.config.geometry.num_layers);
    std::iota(layers.begin(), layers.end(), 0);
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    if (auto s = checks.CheckLayer(layers[i]); !s.ok()) return WithField(s, absl::StrCat("layers[", i, "]"));
  }
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  std::vector<AskedLayer> asked;
  {
    const auto found = sequences.FindAll(handles);
    if (!found.ok()) return found.status();
    for (const SequenceRef& sequence : *found) {
      for (const int layer : layers) {
        const int held = sequence->layers[layer]->queries().held();
        if (held > 0) asked.push_back({sequence, layer, held, 0});
      }
    }
  }
  if (asked.empty()) {
    return FieldError(
        absl::StatusCode::kFailedPrecondition, "sequence",
        "no query of these layers was seen; of what is asked of a zone a sample is kept, and a fork begins without");
  }
  SpreadSamples(params.samples, &asked);
  ComparisonReport report;
  Sums sums;
  for (const AskedLayer& layer : asked) {
    for (int i = 0; i < layer.wanted; ++i) {
      const std::shared_ptr<Sequence> sequence = layer.sequence.lock();
      if (sequence == nullptr) break;
      if (auto s = reencoder->FinishDue(sequence, layer.layer); !s.ok()) return s;
      const auto step = static_cast<int>(int64_t{i} * layer.held / layer.wanted);
      const auto heads =
          CompareStep(context, layer, sequence->layers[layer.layer]->queries().Step(step), params.search);
      if (!heads.ok()) return heads.status();
      if (*heads) sums.Add(layer.layer, **heads);
      ++(*heads ? report.compared : report.dropped);
    }
  }
  report.heads = sums.Means();
  return report;
}

}  // namespace seine
