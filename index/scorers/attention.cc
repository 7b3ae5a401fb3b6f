#include "index/scorers/attention.h"

#include <algorithm>

#include "index/scorers/scorers.h"
#include "kernels/host.h"
#include "kernels/stop.h"
#include "profile/field_error.h"

namespace seine::scorers {

absl::Status CheckQueries(const ScoreInput& input, const char* scorer, int64_t window) {
  const int64_t least = std::min(window, input.length);
  if (input.length == 0) return absl::OkStatus();
  if (input.queries != nullptr && input.num_queries >= (input.queries_kept() ? 1 : least)) return absl::OkStatus();
  return BadField("given.queries", scorer, " needs those of the last ", least, " positions, ",
                  input.queries == nullptr ? 0 : input.num_queries, " given");
}

HeadAttention::HeadAttention(const ScoreInput& input, int kv_head)
    : input_(input), head_(input.heads[kv_head]), kv_head_(kv_head), logits_(input.group * head_.count) {}

void HeadAttention::Add(int64_t query, float share, float* out) {
  if (StopRequested()) return;
  const int64_t n = CountUpTo(head_, input_.query_position(query));
  if (n == 0) return;
  const float* queries =
      input_.queries + (query * input_.num_q_heads() + int64_t{kv_head_} * input_.group) * input_.head_dim;
  ForEachRun(head_.keys, 0, n, [&](const ConstRows& rows, int64_t first, int64_t count) {
    host::DotRows(rows, count, input_.head_dim, queries, input_.group, logits_.data() + first, n);
  });
  for (int g = 0; g < input_.group; ++g) AddSoftmax(logits_.data() + g * n, n, input_.softmax_scale, share, out);
}

void AddSoftmax(float* logits, int64_t n, float scale, float share, float* out) {
  for (int64_t i = 0; i < n; ++i) logits[i] *= scale;
  float low, high;
  host::Range(logits, n, &low, &high);
  float lanes[16] = {0};
  host::SumExp(logits, n, 1.0f, high, lanes);
  for (int h = 8; h >= 1; h /= 2) {
    for (int i = 0; i < h; ++i) lanes[i] += lanes[i + h];
  }
  host::AddExp(logits, n, high, share / lanes[0], out);
}

}  // namespace seine::scorers
