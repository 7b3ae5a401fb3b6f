#include "index/retrieval/attend_prompt.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "index/prompt/prompt_batch.h"
#include "index/sequence/layer_lock.h"
#include "index/stop_status.h"
#include "profile/field_error.h"

namespace seine {

namespace {

// Counts the places of a head that each of the last `tokens` positions below `length` sees.
std::vector<int64_t> EndsOf(const HeadTokens& head, int64_t length, int64_t tokens) {
  std::vector<int64_t> ends(tokens);
  int64_t place = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    while (place < head.count && head.position(place) <= length - tokens + t) ++place;
    ends[t] = place;
  }
  return ends;
}

}  // namespace

absl::Status CheckPromptItem(const RetrieveItem& item, const AttentionParams& attention, const IndexConfig& config) {
  if (item.positions != nullptr) return BadField("positions", "not with a prompt's queries");
  if (item.dense_from >= 0) return BadField("dense_from", "not with a prompt's queries");
  if (attention.with_positions) return BadField("queries", "a prompt's: attention.with_positions has nothing to tell");
  if (config.subspace.has_value()) return BadField("queries", "a prompt's, and the index keeps rows low-rank");
  return absl::OkStatus();
}

absl::Status AttendPromptItem(const Context& context, const Layer& layer, const RetrieveItem& item, float scale,
                              const AttentionParams& attention, AttendAnswer* answer) {
  const Geometry& g = context.config.geometry;
  const bool of_prompt = item.prompt_tokens > 0;
  const int64_t tokens = of_prompt ? item.prompt_tokens : 1, row = int64_t{g.num_q_heads} * g.head_dim;
  const absl::StatusOr<ReadLock> lock = ReadLock::Of(layer);
  if (!lock.ok()) return lock.status();
  const int64_t length = layer.length();
  if (tokens > length) {
    answer->status = BadField("queries", "of ", tokens, " tokens, and the layer holds ", length);
    return absl::OkStatus();
  }
  std::vector<HeadStorage> storage(g.num_kv_heads);
  std::vector<HeadTokens> heads;
  std::vector<std::vector<int64_t>> ends;  // of one head, where all see the same
  int64_t places = 0;
  for (int h = 0; h < g.num_kv_heads; ++h) {
    const HeadGroupCache& held = layer.cache(h);
    const absl::StatusOr<HeadTokens> of_head = held.Tokens(h - held.first_head(), &storage[h]);
    if (!of_head.ok()) return of_head.status();
    heads.push_back(*of_head);
    places = std::max(places, of_head->count);
    if (h == 0 || layer.evicted()) ends.push_back(EndsOf(*of_head, length, tokens));
  }
  const auto run = OnThreadsOf(context.backend);
  const PromptMask mask(ends, places, g.group(), run);
  const auto rows_of = [&](int64_t, int head) {
    PromptBatch::Rows rows;
    rows.keys = heads[head].keys, rows.values = heads[head].values, rows.num_places = heads[head].count;
    return rows;
  };
  PromptBatch batch{.rows_of = rows_of};
  batch.mask = &mask, batch.num_kv_heads = g.num_kv_heads, batch.head_dim = g.head_dim;
  batch.scale = scale, batch.softcap = attention.softcap;
  answer->output.resize(tokens * row);
  answer->log_sum_exp.resize(tokens * g.num_q_heads);
  batch.queries = item.queries, batch.query_strides = {0, row, g.head_dim};
  batch.outputs = answer->output.data(), batch.output_strides = {0, row, g.head_dim};
  batch.log_sum_exp = answer->log_sum_exp.data();
  PromptParams params;
  if (of_prompt) params.mass = attention.prompt_mass;
  const PromptCounts counts = AttendPromptBatch(batch, params, run);
  answer->num_tokens = length;
  answer->prompt_tokens = item.prompt_tokens;
  answer->path = !of_prompt ? SearchMode::kGate : counts.taken < counts.seen ? SearchMode::kIndex : SearchMode::kDense;
  int64_t seen = 0;
  for (const std::vector<int64_t>& of_head : ends) seen = std::accumulate(of_head.begin(), of_head.end(), seen);
  const double share = counts.seen == 0 ? 1 : static_cast<double>(counts.taken) / static_cast<double>(counts.seen);
  const int64_t heads_alike = g.num_kv_heads / static_cast<int64_t>(ends.size());
  answer->attended_tokens = std::llround(static_cast<double>(seen * heads_alike * g.group()) * share);
  return StopStatus();
}

}  // namespace seine
