// See subspace_storage.h.
#include "bench/measures/subspaces/subspace_storage.h"

#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/inputs/head_profile.h"
#include "bench/measures/attention_probe.h"
#include "bench/report/progress.h"
#include "index/index.h"
#include "kernels/ops/rows/rows.h"
#include "profile/profile.h"

namespace seine::bench {
namespace {

constexpr int kUpdateBuffer = 64;  // the smallest: little is full-rank besides sink and local

struct Arm {
  std::optional<KeyFrame> frame;
  bool evicted = false;
};

IndexConfig ConfigOf(const DatasetInfo& info, const SubspaceOptions& o, const Head& head, const Arm& arm) {
  IndexConfig config;
  config.name = "storage";
  config.geometry = {1, info.group, 1, info.head_dim, info.dtype, o.rope};
  config.zones = {static_cast<int>(info.zone_begin), static_cast<int>(info.num_tokens - info.zone_end), kUpdateBuffer,
                  0};
  config.kv_store = KvStore::kKeysValues;
  if (!arm.frame) return config;
  SubspaceConfig& subspace = config.subspace.emplace();
  subspace.frame = *arm.frame;
  subspace.key_rank = *arm.frame == KeyFrame::kPreRope ? o.pre_rope_rank : o.rank;
  subspace.value_rank = o.rank;
  subspace.oja = o.oja;
  subspace.full_rank = o.full_rank;
  subspace.carried_to = static_cast<int64_t>(o.carried_to);
  subspace.profile = ProfileOfHead(*o.profile, head.layer, head.kv_head);
  return config;
}

// Appends the head to an index of its own, evicting on the way, and measures what is there at the end.
absl::StatusOr<StorageRow> MeasureArm(const DatasetInfo& info, const SubspaceOptions& o, const Head& head,
                                      const std::vector<uint8_t>& values, const AttentionProbe& probe, const Arm& arm,
                                      const std::string& scorer, int64_t kept, Backend* backend) {
  auto index = Index::Create(ConfigOf(info, o, head, arm), backend);
  if (!index.ok()) return index.status();
  const auto sequence = (*index)->CreateSequence("");
  if (!sequence.ok()) return sequence.status();
  const size_t row = info.head_dim * SizeOf(info.dtype);
  const auto append = [&](int64_t begin, int64_t end) {
    const auto view = [&](const std::vector<uint8_t>& rows) {
      return TensorView{rows.data() + begin * row, end - begin, (end - begin) * row};
    };
    return (*index)->Append(*sequence, 0, begin, view(head.tokens), view(values)).status();
  };
  const int64_t prefill = head.num_tokens - info.num_positions;
  if (absl::Status s = append(0, prefill); !s.ok()) return s;
  if (arm.evicted) {
    EvictParams params;
    params.scorer.name = scorer;
    params.budget.tokens = kept - info.num_positions;
    if (auto evicted = (*index)->Evict(*sequence, 0, params, {}); !evicted.ok()) return evicted.status();
  }
  if (absl::Status s = append(prefill, head.num_tokens); !s.ok()) return s;
  const auto described = (*index)->DescribeHead(*sequence, 0, 0);
  if (!described.ok()) return described.status();
  LayerScores held;  // where the tokens are that are left
  if (auto scores = (*index)->Score(*sequence, 0, {.name = "knorm"}, {}); scores.ok()) {
    held = *std::move(scores);
  } else {
    return scores.status();
  }
  std::string keys, rows;
  if (absl::Status s = (*index)->Gather(*sequence, 0, 0, held.positions[0], &keys, &rows); !s.ok()) return s;
  const auto floats = [&](const std::string& bytes) {
    const auto count = static_cast<int>(held.positions[0].size());
    std::vector<float> out(static_cast<size_t>(count) * info.head_dim);
    cpu::ToFloat({bytes.data(), row, info.dtype}, count, info.head_dim, out.data());
    return out;
  };
  const double full = static_cast<double>(head.num_tokens) * 2 * static_cast<double>(row);
  StorageRow result;
  if (arm.frame) result.frame = Name(*arm.frame);
  result.evicted = arm.evicted;
  result.kept = static_cast<double>(held.positions[0].size()) / static_cast<double>(head.num_tokens);
  result.bytes = static_cast<double>((*index)->stats().store_bytes) / full;
  if (const auto& low = described->subspace) {
    result.key_rank = low->key_rank;
    result.low_rank_bytes = static_cast<double>(low->code_bytes + low->full_rank_bytes + low->basis_bytes) / full;
  }
  result.attention_error = probe.Error(held.positions[0], floats(keys), floats(rows));
  return result;
}

}  // namespace

absl::StatusOr<std::vector<StorageRow>> MeasureStorage(const Dataset& dataset, const SubspaceOptions& options,
                                                       const std::string& scorer, double keep, Backend* backend) {
  const DatasetInfo& info = dataset.info();
  std::vector<Arm> arms = {
      {std::nullopt, false}, {std::nullopt, true}, {KeyFrame::kPostRope, false}, {KeyFrame::kPostRope, true}};
  if (options.rope.stated()) {
    arms.push_back({KeyFrame::kPreRope, false});
    arms.push_back({KeyFrame::kPreRope, true});
  }
  const auto kept = std::llround(keep * static_cast<double>(info.num_tokens));
  std::vector<StorageRow> mean(arms.size());
  Progress progress(info.num_heads());
  for (int h = 0; h < info.num_heads(); ++h) {
    const auto head = dataset.Load(h);
    if (!head.ok()) return head.status();
    const auto values = dataset.LoadValues(h);
    if (!values.ok()) return values.status();
    std::vector<float> rounded = *values;
    const std::vector<uint8_t> value_rows = ToDType(info.dtype, &rounded);
    const AttentionProbe probe(info, *head, rounded, options.queries);
    for (size_t a = 0; a < arms.size(); ++a) {
      auto row = MeasureArm(info, options, *head, value_rows, probe, arms[a], scorer, kept, backend);
      if (!row.ok()) return row.status();
      const auto share = 1 / static_cast<double>(info.num_heads());
      StorageRow& sum = mean[a];
      sum.frame = row->frame;
      sum.key_rank = row->key_rank;
      sum.evicted = row->evicted;
      sum.kept = (h == 0 ? 0 : sum.kept) + share * row->kept;
      sum.bytes += share * row->bytes;
      sum.low_rank_bytes += share * row->low_rank_bytes;
      sum.attention_error += share * row->attention_error;
    }
    progress.Step(absl::StrCat("storage of head ", h + 1, " of ", info.num_heads()));
  }
  return mean;
}

}  // namespace seine::bench
