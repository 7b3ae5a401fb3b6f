// Softmax attention of one KV head's query group over chosen rows of its stored keys and values: what every head of the
// group sees, and the sets that a search has chosen.
//   p_i = e^(s_i - m),  s_i = scale <q, k_i>, or softcap tanh(scale <q, k_i> / softcap),  m = max s_i
//   output = sum_i p_i v_i / sum_i p_i,  log_sum_exp = m + log sum_i p_i
// The tail (ours; RetroInfer's idea, arXiv 2505.02922, on our windows) lets every window w of the searched zone stand
// for its u rows that a head has not chosen: one row more, of p_w = u e^(scale <q, c_w> - m) and value v_w, the means
// of all its keys and values. Means of the unchosen alone were no better (README.md). Attention over the union of two
// disjoint sets follows from what each gave: with L = log(e^l1 + e^l2), the output is e^(l1 - L) o1 + e^(l2 - L) o2 and
// the log-sum-exp L.
#ifndef SEINE_KERNELS_OPS_ATTEND_ATTENTION_H_
#define SEINE_KERNELS_OPS_ATTEND_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/ops/attend/window_means.h"
#include "kernels/ops/low_rank/low_rank.h"
#include "kernels/ops/query/search.h"
#include "kernels/types.h"

namespace seine::cpu {

// Rows [begin, end) by place.
struct PlaceRun {
  int64_t begin = 0, end = 0;
};

// What rows were attended, and how much. A row comes once, or once for each head that has chosen it.
struct AttendedRows {
  std::vector<int32_t> places;
  std::vector<float> weights;  // beside places: p_i over the sum of all p, divided by the group's size
};

struct AttentionTask {
  const float* queries = nullptr;  // [group, head_dim]
  int group = 1;
  float scale = 1;
  float softcap = 0;         // of logits, also of the tail's; 0: none
  ChunkedRows keys, values;  // by place
  // Where rows are kept low-rank: both hold the sets' rows wherever these lie, and of the dense rows those at places
  // `low`, which are multiplied as codes (low_rank_products.h); `keys` and `values` hold the other dense ones.
  std::shared_ptr<const LowRankTokens> low_keys, low_values;
  PlaceRun low;
  // Seen by every head of the group: a row is read once for up to four of them.
  std::vector<PlaceRun> dense;
  // Seen besides: one set for the group, or one a head; none of it dense. nullptr: nothing.
  const std::vector<std::vector<int32_t>>* sets = nullptr;  // [1 or group] ascending places
  // scale <q, k_i> of the sets, where the search has computed them for each head: then their keys are not read.
  // nullptr: not known.
  const std::vector<std::vector<float>>* logits = nullptr;  // [group] beside sets
  // The tail: windows from place zone_begin on, which hold every row of the sets. 0: none is counted in.
  int64_t num_windows = 0;
  int64_t zone_begin = 0;
  ChunkedWindows windows;
  const std::vector<WindowRun>* window_runs = nullptr;  // those that count in, with every row of the sets; nullptr: all
  AttendedRows* attended = nullptr;  // where given: filled, from empty. The tail's weights belong to no row
};

// output [group, head_dim], log_sum_exp [group]; over nothing they are 0 and -infinity. Adds its times to `times`.
// Returns how many rows were attended, all heads together and without the tail's. What a stopped call (stop.h) gets is
// of no use. `next`: what the thread attends to next; memory is asked for the pages of its dense rows.
int64_t Attend(const AttentionTask& task, float* output, float* log_sum_exp, AttentionTimes* times = nullptr,
               const AttentionTask* next = nullptr);

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_ATTEND_ATTENTION_H_
