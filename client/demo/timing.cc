#include "client/demo/timing.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "client/cli/output.h"

namespace seine::demo {
namespace {

constexpr int64_t kMostSteps = 64;  // timed; their times are alike

// Microseconds in the index of every step and layer.
absl::StatusOr<std::vector<double>> Attend(client::Client* client, const Trace& trace, const ReplayOptions& options,
                                           const client::IndexSpec& spec, bool dense) {
  const absl::StatusOr<client::IndexInfo> index = client->CreateIndex(spec);
  if (!index.ok()) return index.status();
  const absl::Cleanup remove = [&] { client->DeleteIndex(spec.name).IgnoreError(); };
  const absl::StatusOr<client::Sequence> sequence = client->CreateSequence(spec.name, "trace");
  if (!sequence.ok()) return sequence.status();
  std::vector<client::AppendItem> items;
  for (int layer = 0; layer < trace.num_layers(); ++layer) {
    const client::ConstTensor keys = trace.Keys(layer, 0, trace.num_tokens());
    items.push_back({*sequence, trace.model_layers()[layer], 0, keys, keys});
  }
  const absl::StatusOr<client::AppendTotals> totals = client->AppendStream(items);
  if (!totals.ok()) return totals.status();

  client::Selector selector;
  selector.top_k = options.top_k;
  std::vector<double> us;
  const int64_t steps = std::min<int64_t>(options.steps, kMostSteps), first = trace.num_tokens() - steps;
  cli::ProgressBar bar(dense ? "attention over all tokens" : "attention over those found", steps);
  for (int64_t step = 0; step < steps; ++step) {
    for (int layer = 0; layer < trace.num_layers(); ++layer) {
      const client::RetrieveItem item = {*sequence, trace.model_layers()[layer], trace.Query(layer, first + step)};
      const absl::StatusOr<client::AttendResult> result = client->Attend({item}, selector, client::Attention{});
      if (!result.ok()) return result.status();
      if (result->answers.size() != 1) return absl::InternalError("the server did not answer the one item");
      const client::Attended& answer = result->answers[0];
      if (!answer.status.ok()) return answer.status;
      if (dense && answer.attended_tokens != trace.num_tokens() * trace.num_q_heads()) {
        return absl::InternalError(absl::StrCat("the server attended ", answer.attended_tokens, " tokens, not all"));
      }
      us.push_back(static_cast<double>(result->server_us));
    }
    bar.Update(step);
  }
  return us;
}

}  // namespace

absl::StatusOr<AttentionTimes> TimeAttention(client::Client* client, const Trace& trace, const ReplayOptions& options) {
  AttentionTimes times;
  for (const bool dense : {false, true}) {
    client::IndexSpec spec = SpecFor(trace, options);
    spec.kv_store = client::KvStore::kKeysValues;
    if (dense) spec.dense_threshold = std::numeric_limits<int32_t>::max();
    absl::StatusOr<std::vector<double>> us = Attend(client, trace, options, spec, dense);
    if (!us.ok()) return us.status();
    (dense ? times.dense_us : times.seine_us) = PercentilesOf(*std::move(us));
  }
  return times;
}

}  // namespace seine::demo
