// What an engine hands to an Index and gets back: handles, tensors, items of a step, answers.
#ifndef SEINE_INDEX_TYPES_H_
#define SEINE_INDEX_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "index/config/budget.h"
#include "index/config/config.h"
#include "index/scorers/scorer.h"
#include "kernels/ops/query/search.h"

namespace seine {

// Ids of sequences: 1 to kMaxIdLength printable ASCII characters without spaces.
inline constexpr size_t kMaxIdLength = 128;
bool IsSequenceId(absl::string_view id);

// Names a sequence. A stale generation (the id was deleted and made again) is FAILED_PRECONDITION.
struct SequenceHandle {
  std::string id;
  uint64_t generation = 0;  // 0: any generation
};

class Index;

// Parameters that an index has checked. That index takes them again and again while it lives, without another check.
template <typename Params>
class Checked {
 public:
  const Params& operator*() const { return params_; }
  const Params* operator->() const { return &params_; }

 private:
  friend class IndexImpl;
  Checked(const Index* index, const Params& params) : index_(index), params_(params) {}
  const Index* index_;
  Params params_;
};

// [num_tokens, num_kv_heads, head_dim] in the index's dtype, row-major, dense. `bytes` is checked against the shape.
// Or in the memory of the device that the backend searches on: as what `stream`, a cudaStream_t, has when the call
// comes leaves it. Without such a device INVALID_ARGUMENT.
struct TensorView {
  const void* data = nullptr;
  int64_t num_tokens = 0;
  size_t bytes = 0;
  bool on_device = false;
  void* stream = nullptr;
};

// [num_tokens, num_q_heads, head_dim] after RoPE, fp32, of the last num_tokens positions of an append.
struct QueryView {
  const float* data = nullptr;
  int64_t num_tokens = 0;
};

// An item's tensors in the memory of the device that the backend searches on; INVALID_ARGUMENT where they are not.
// Queries are not looked at there: NaN gives NaN, and nothing is learnt of them. `stream`: as TensorView's; what a call
// writes is there when it returns.
struct DeviceTensors {
  const float* queries = nullptr;  // as RetrieveItem's
  float* output = nullptr;         // Attend alone, as AttendAnswer's, which stay empty; both, or neither
  float* log_sum_exp = nullptr;
  void* stream = nullptr;
};

struct RetrieveItem {
  SequenceHandle sequence;
  int layer = 0;
  const float* queries = nullptr;  // [num_q_heads, head_dim], post-RoPE, fp32
  // Tokens at and after this position are dense for this item, besides those that are by the index's zones: what is
  // searched ends a multiple of 64 keys after the sink, at the last one before it. Negative: no others are.
  int64_t dense_from = -1;
  // Attend alone: what is attended besides the dense, in place of a search. [sets] of the call's scope, each ascending
  // positions of the zone. It must outlive the call; nullptr: the zone is searched. Without a search the usual is no
  // tail. ItemAnswer::status: INVALID_ARGUMENT, field positions.
  const std::vector<std::vector<int32_t>>* positions = nullptr;
  // Attend alone: a prompt's queries, [prompt_tokens, num_q_heads, head_dim], of the layer's last tokens. Each sees
  // what the layer holds up to its own token, row by row: without a search or tail, or, under
  // AttentionParams::prompt_mass, by chosen runs. Nothing is kept or counted of them for eviction. 0: one query, that
  // sees all. ItemAnswer::status: INVALID_ARGUMENT, field queries: of more tokens than the layer holds, or low-rank
  // rows.
  int64_t prompt_tokens = 0;
  // In place of `queries`. It must outlive the call. ItemAnswer::status: INVALID_ARGUMENT, field device: the backend
  // has no device that attends, the index looks at queries (eviction, subspace), or a prompt's.
  const DeviceTensors* device = nullptr;
};

// How an item was answered: from the codes; everything is dense; by the exact scores of every stored key, as asked for
// (Method::kExact) or because the zone is short (ReadsWhole in kernels/ops/query/search.h), or with given positions;
// kGate: of Attend, every token, since the layer's codes lose too much (IndexConfig::gate).
enum class SearchMode : uint8_t { kIndex = 0, kDense = 1, kExact = 2, kGate = 3 };

// Answer for one item. Sets are per KV head or per query head (params.scope), each ascending by position. Dense tokens
// [0, zone_begin) and [zone_end, num_tokens) are visible besides; under kDense everything is, and sets are empty
// (zone_begin = zone_end = num_tokens). Once tokens of the layer were evicted, heads hold different ones: what is
// visible besides is listed for each in dense_positions, and both ranges are empty (0 and num_tokens). A head may then
// be dense, its set empty, while others are searched; the path is kDense where all of them are.
struct ItemAnswer {
  absl::Status status;
  SearchMode path = SearchMode::kIndex;
  int64_t num_tokens = 0;
  int64_t zone_begin = 0;
  int64_t zone_end = 0;
  bool all_returned = false;  // top_k >= tokens in the zone
  // The codes that were searched are made for other positions than the layer has reached: recall may be lower. So it is
  // while a decoding layer's are made anew, where memory is short for that, or where kv_store keeps no keys.
  bool codes_stale = false;
  bool capped = false;                           // under mass_p: top_k ended some set before its mass reached that
  std::vector<float> masses;                     // [sets] under mass_p: estimated mass of the zone in each; 1 of a
                                                 // head that was not searched. Error: kernels/ops/query/zone_mass.h
  std::vector<std::vector<int32_t>> positions;   // [sets][<= top_k]
  std::vector<std::vector<float>> scores;        // beside positions
  std::vector<std::vector<int32_t>> candidates;  // [num_q_heads], if params.with_candidates
  std::vector<std::vector<int32_t>> dense_positions;  // [num_kv_heads] ascending; empty while nothing was evicted
  SearchStats stats;
};

// Softmax attention of every query head over what is dense and what was selected for it.
// Answers over disjoint sets of tokens merge by their log-sum-exps: with L = log(e^l1 + e^l2) a head's output over both
// sets is e^(l1 - L) o1 + e^(l2 - L) o2, and its log-sum-exp L. Over no token at all the output is 0 and the
// log-sum-exp -infinity, which merges like any other.
struct AttendAnswer {
  absl::Status status;
  SearchMode path = SearchMode::kIndex;  // kDense: everything held was attended
  int64_t num_tokens = 0;
  int64_t prompt_tokens = 0;       // the item's
  std::vector<float> output;       // [num_q_heads, head_dim], a prompt's [prompt_tokens, num_q_heads, head_dim]
  std::vector<float> log_sum_exp;  // [num_q_heads], natural, of the scaled logits; [prompt_tokens, num_q_heads]
  int64_t attended_tokens = 0;     // of all query heads, and a prompt's tokens, together, without what the tail counts
  bool on_device = false;          // attended by the device that searched, and not by the host
  bool tail = false;               // whether it was counted in; with nothing to search there is none
  bool codes_stale = false;        // as ItemAnswer's
  ItemAnswer selected;             // if attention.with_positions
  AttentionTimes times;            // of all KV heads together, without the search
};

// What an append or eviction reports of the positions that the layer's KV heads retain: nothing, what it took out of
// them, or what they are now.
enum class RetainedReport : uint8_t { kNone = 0, kDropped = 1, kKept = 2 };

// For an engine that holds keys and values itself: what each KV head of a layer retains, so that it can follow without
// asking. Who knows the sets as of evictions_before has those of now by the report. Under kDropped it adds the
// positions from the length that it knew to num_tokens, then takes `dropped` out. Under kKept the sets are `kept`.
//
// The sets change by nothing else but truncation, which takes what is at and after its position out of all heads and is
// no eviction. A fork begins with its source's sets and number of evictions. Who has missed a report finds other
// evictions_before, or counts, than its own, and asks for kKept: with the next append, or with a dry run of Evict. The
// replay of an append drops nothing.
struct Retained {
  RetainedReport report = RetainedReport::kNone;
  int64_t evictions_before = 0, evictions = 0;  // of the layer, since its first token: up to the call, and with it
  int64_t num_tokens = 0;                       // the layer's length
  std::vector<int32_t> counts = {};  // [num_kv_heads] tokens retained. Empty: there was no memory to report the rest
  std::vector<std::vector<int32_t>> dropped = {};  // [num_kv_heads] ascending, or empty where nothing was dropped
  std::vector<std::vector<int32_t>> kept = {};     // [num_kv_heads] ascending
};

// The parameters of Evict.
struct EvictParams {
  ScorerConfig scorer;
  BudgetConfig budget;
  KeepConfig keep;
  bool dry_run = false;  // answers alone; nothing changes
  // A dry run drops nothing, and what is kept under it is what the layer retains now.
  RetainedReport report = RetainedReport::kNone;
};

// The data that comes with a call that scores. Q-Filters takes its directions from `filters`, else from `queries`, else
// from the index's profile; expected_attention its moments from `queries`, else from the profile. Where an index keeps
// queries (eviction.keep_queries), these stand in for those that scorers need and the call lacks: FAILED_PRECONDITION
// where none of the last `interval` positions' was seen.
struct ScorerInputs {
  const float* queries = nullptr;  // [num_queries, num_q_heads, head_dim] after RoPE, fp32, of the last positions
  int64_t num_queries = 0;
  const float* filters = nullptr;                    // [num_kv_heads, head_dim]
  std::vector<absl::Span<const float>> scores = {};  // client: [num_kv_heads][tokens held]
  float softmax_scale = 0;  // of the attention that scorers compute; 0: the index's, SearchParams::softmax_scale
  // value_weight projected: the layer's W_O, o_proj.weight seen as [hidden_size, num_q_heads, head_dim].
  const float* output_projection = nullptr;
  int hidden_size = 0;  // at most kMaxHiddenSize
};

inline constexpr int kMaxHiddenSize = 1 << 17;

struct EvictAnswer {
  std::vector<std::vector<int32_t>> kept;  // [num_kv_heads] positions, ascending
  int64_t tokens_evicted = 0;              // of all heads together
  int64_t bytes_freed = 0;                 // codes and stores of this sequence's layer; 0 in a dry run
  Retained retained = {};                  // as EvictParams::report asks
};

}  // namespace seine

#endif  // SEINE_INDEX_TYPES_H_
