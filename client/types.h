// What travels between an engine and a Seine server: handles, tensors and answers as plain C++ values, so that tensors
// are views of the caller's memory; settings as the contract's messages (proto/seine/v1). client.h has the calls.
#ifndef SEINE_CLIENT_TYPES_H_
#define SEINE_CLIENT_TYPES_H_

#include <array>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/eviction_types.h"
#include "client/subspace_types.h"
#include "seine/v1/retrieval_service.pb.h"

// A namespace of its own: a program may link index/ (whose types bear the same names) and this client.
namespace seine::client {

enum class DType : uint8_t { kFloat32 = 1, kFloat16 = 2, kBFloat16 = 3, kInt32 = 4 };
// kIndex: from the codes. kDense: all is visible. kExact: by the exact scores of every stored key, as the selector asks
// or because the zone is short, or with given positions. kGate: of Attend, every token, for the layer's codes lose too
// much (RetrievalSettings.gate).
enum class SearchMode : uint8_t { kUnknown = 0, kIndex = 1, kDense = 2, kExact = 3, kGate = 4 };

constexpr size_t SizeOf(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kInt32 ? 4 : 2; }

// Up to three dimensions, in place, written as a list: {tokens, heads, head_dim}.
class Shape {
 public:
  template <std::convertible_to<int64_t>... Dims>
  Shape(Dims... dims)  // NOLINT(google-explicit-constructor)
      : dims_{static_cast<int64_t>(dims)...}, size_(sizeof...(Dims)) {
    static_assert(sizeof...(Dims) <= 3);
  }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t& operator[](size_t i) { return dims_[i]; }
  int64_t operator[](size_t i) const { return dims_[i]; }
  const int64_t* begin() const { return dims_.data(); }
  const int64_t* end() const { return dims_.data() + size_; }
  bool operator==(const Shape&) const = default;

 private:
  std::array<int64_t, 3> dims_;
  uint8_t size_;
};

// A dense row-major little-endian array that the caller owns; read during the call it is given to, never kept.
struct ConstTensor {
  const void* data = nullptr;
  DType dtype = DType::kFloat16;
  Shape shape;
  // In the memory of a device, as work enqueued so far on its default stream leaves it. An index in the caller's own
  // process may take it (engines/python); a server has the host's memory alone: INVALID_ARGUMENT.
  bool on_device = false;
};

// The same, on a device, to be written.
struct DeviceTensor {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  Shape shape;
};

// Names a sequence. Generation 0 means any; a stale one (the id was deleted and made again) is FAILED_PRECONDITION.
struct Sequence {
  std::string index;
  std::string id;
  uint64_t generation = 0;
};

struct SequenceInfo {
  Sequence handle;
  std::vector<int64_t> layer_tokens;  // [num_layers]
  int64_t code_bytes = 0;
  int64_t store_bytes = 0;
  bool on_disk = false;  // written out while idle; the next call on it brings it back
};

// What a snapshot holds: a sequence with its forks and those that it was forked from, or the sequence alone.
enum class SnapshotScope : uint8_t { kFamily = 1, kSequence = 2 };

// How a snapshot is written. `base`: of an earlier answer, what that snapshot holds is left out. `keep_seconds`: so
// long this one is kept as a base for later ones; 0: it is not.
struct SnapshotParams {
  SnapshotScope scope = SnapshotScope::kFamily;
  std::string base = {};
  int keep_seconds = 0;
};

// How a snapshot is read. `id`, which may be empty: in place of the one of its only sequence. `generation`: how often
// the family has moved, which the server compares with what it knows; 0: it compares nothing. `base`: of an earlier
// answer, what the snapshot adds to; without a file, what is to be there. `hold_seconds`: so long the sequences are
// held and are not there; 0: they are there.
struct RestoreParams {
  std::string id = {};
  uint64_t generation = 0;
  std::string base = {};
  int hold_seconds = 0;
};

// A snapshot that was written or restored.
struct SnapshotResult {
  int64_t bytes = 0;                    // of the file
  std::vector<SequenceInfo> sequences;  // in the file's order
  std::string base;                     // names what the server keeps or holds; empty: nothing
};

struct AppendItem {
  Sequence sequence;
  int layer = 0;
  int64_t position = 0;  // of the first token
  ConstTensor keys;      // [tokens, num_kv_heads, head_dim] in the index's dtype, post-RoPE
  ConstTensor values;    // the same shape; given exactly when the index stores values
  // The last tokens' queries, [at most tokens, num_q_heads, head_dim] in any float type: for an index that keeps
  // queries to evict by (EvictionSettings.keep_queries) or to choose full-rank tokens by
  // (SubspaceSettings.full_rank_queries), which may do without; any other refuses them.
  ConstTensor queries = {};
  RetainedReport report = RetainedReport::kNone;  // what the answer says of the retained positions
};

// A report on one layer.
struct LayerRetained {
  Sequence sequence;
  int layer = 0;
  Retained retained = {};
};

struct AppendTotals {
  int64_t pieces = 0;
  int64_t tokens = 0;
  // Reports of items that ask, in order: one an item, or one for items of a layer and report that follow each other.
  std::vector<LayerRetained> retained = {};
};

struct RetrieveItem {
  Sequence sequence;
  int layer = 0;
  // [num_q_heads, head_dim], fp32, fp16 or bf16, post-RoPE. Attended items alone: also [tokens, num_q_heads, head_dim],
  // a prompt's, of the layer's last tokens, each of which sees what the layer holds up to its own token.
  ConstTensor queries;
  // Tokens at and after this position are dense for this item, besides those that are by the index's zones. What is
  // searched ends a multiple of 64 keys after the sink, at the last one before it.
  std::optional<int64_t> dense_from = {};
  // Attended items alone, in place of a search: what is attended besides the dense. int32 [sets, width], a set as the
  // selector's scope has it, each row ascending positions of the zone, padded with -1. The usual is no tail then.
  ConstTensor positions = {};
  // Attended items with fp32 queries on a device alone: [num_q_heads, head_dim] and [num_q_heads], fp32, both or
  // neither. They take what the answer would, which has none then.
  std::optional<DeviceTensor> output = {}, log_sum_exp = {};
};

// What one RetrieveItem got. Tokens [0, zone_begin) and [zone_end, num_tokens) are visible besides the sets; under
// SearchMode::kDense everything is, and there are no sets. A set belongs to a KV head or to a query head
// (Selector.scope). Once tokens of the layer were evicted, heads hold different ones: both ranges are empty, and
// dense_positions says for each KV head what is visible besides.
struct Answer {
  absl::Status status;
  SearchMode path = SearchMode::kUnknown;
  int64_t num_tokens = 0;
  int64_t zone_begin = 0, zone_end = 0;
  bool all_returned = false;  // top_k covers the whole zone
  // The codes searched are made for other positions than the layer has reached: recall may be lower.
  bool codes_stale = false;
  bool capped = false;  // under mass_p: its cap ended some set before the mass reached p
  int num_sets = 0;
  int width = 0;                   // of a row of positions
  std::vector<int32_t> positions;  // [num_sets, width], each row ascending, padded with -1
  std::vector<int32_t> counts;     // [num_sets]
  std::vector<float> scores;       // [num_sets, width] if asked for
  std::vector<float> masses;       // [num_sets] under mass_p: estimated softmax mass of the zone in each set
  std::vector<std::vector<int32_t>> dense_positions;  // [num_kv_heads] ascending; empty while nothing was evicted
  absl::Span<const int32_t> set(int i) const { return absl::MakeConstSpan(positions).subspan(i * width, counts[i]); }
  absl::Span<const float> set_scores(int i) const { return absl::MakeConstSpan(scores).subspan(i * width, counts[i]); }
};

struct RetrieveResult {
  std::vector<Answer> answers;  // one an item, in order
  int64_t server_us = 0;        // time in the index
};

// What one item got: softmax attention of every query head over its set and all that is dense. Answers over disjoint
// sets of tokens merge: with L = log(e^l1 + e^l2) a head's output over both is e^(l1 - L) o1 + e^(l2 - L) o2, and its
// log-sum-exp L. Over no token the output is 0 and the log-sum-exp -infinity.
struct Attended {
  absl::Status status;
  SearchMode path = SearchMode::kUnknown;
  int64_t num_tokens = 0;
  int num_q_heads = 0, head_dim = 0;
  int64_t prompt_tokens = 0;       // of a prompt's item
  std::vector<float> output;       // [num_q_heads, head_dim], a prompt's [prompt_tokens, num_q_heads, head_dim]
  std::vector<float> log_sum_exp;  // [num_q_heads], a prompt's [prompt_tokens, num_q_heads]
  int64_t attended_tokens = 0;     // of all query heads and a prompt's tokens together, the tail's not counted
  bool tail = false;               // whether it was counted in
  bool codes_stale = false;        // as Answer's
  Answer selected;                 // if asked for
  absl::Span<const float> head(int i) const { return absl::MakeConstSpan(output).subspan(i * head_dim, head_dim); }
};

struct AttendResult {
  std::vector<Attended> answers;  // one an item, in order
  int64_t server_us = 0;          // time in the index
};

// One layer of one decode step for a whole batch: appends are applied first, then the items are retrieved or attended.
// Either may be empty.
struct DecodeStep {
  uint64_t step = 0;  // echoed
  std::vector<AppendItem> appends;
  std::vector<RetrieveItem> items;
  v1::Selector selector;
  std::optional<v1::Attention> attention = {};  // absent: items are retrieved
};

struct DecodeAnswer {
  uint64_t step = 0;
  absl::Status status;                      // not OK: the whole step was refused; the stream goes on
  std::vector<absl::Status> append_status;  // one an append, in order
  std::vector<Answer> answers;              // one an item, in order
  std::vector<Attended> attended;           // in place of answers, where the step has an attention
  std::vector<Retained> retained = {};      // one an append, in order, where any asks; empty of one that failed
  int64_t server_us = 0;
  bool announced = false;  // the server said beforehand that it was near: steps of 250 us on, to Transport::kBlocking
};

// Stored rows, [count, head_dim] in `dtype`, in the order that was asked for.
struct Gathered {
  DType dtype = DType::kFloat16;
  int64_t count = 0;
  int head_dim = 0;
  std::string keys;  // raw bytes; empty if not asked for
  std::string values;
};

// Gathered, of what is retained of a range: beside their positions.
struct Reconstructed {
  std::vector<int32_t> positions;
  Gathered rows;
};

// What scorers may need besides the stored keys.
struct ScorerInputs {
  ConstTensor queries = {};                 // [positions, num_q_heads, head_dim] of the last positions, post-RoPE
  ConstTensor filters = {};                 // fp32 [num_kv_heads, head_dim], qfilters: high <k, filter> is kept
  std::vector<ConstTensor> scores = {};     // client: one a KV head, fp32 [tokens held]
  std::optional<float> softmax_scale = {};  // of the attention that scorers compute; absent: the index's
  ConstTensor output_projection = {};       // fp32 [hidden_size, num_q_heads, head_dim], value_weight projected
};

struct EvictRequest {
  Sequence sequence;
  int layer = 0;
  v1::ScorerSettings scorer = {};
  v1::Budget budget = {};
  v1::Keep keep = {};
  ScorerInputs given = {};
  bool dry_run = false;  // nothing changes
  // A dry run drops nothing, and what is kept under it is what the layer retains now.
  RetainedReport report = RetainedReport::kNone;
};

struct Evicted {
  std::vector<std::vector<int32_t>> kept;  // [num_kv_heads] positions, ascending
  int64_t tokens_evicted = 0;              // of all heads together
  int64_t bytes_freed = 0;                 // 0 in a dry run
  Retained retained = {};                  // as EvictRequest::report asks
};

struct HeadScores {
  std::vector<int32_t> positions;  // of the tokens held, ascending
  std::vector<float> scores;       // beside them, higher is kept
};

struct DiagnoseRequest {
  Sequence sequence;
  int layer = 0;
  std::vector<v1::ScorerSettings> scorers = {};  // compared with each other, at most 16
  v1::Budget budget = {};                        // of the sets compared
  std::optional<int> window = {};                // of the dilution, tokens
  ScorerInputs given = {};
};

struct HeadDiagnosis {
  int64_t tokens = 0;
  double two_nn = 0, mle = 0;  // intrinsic dimension: Two-NN; Levina and Bickel
  int pca95 = 0;               // principal components that hold 95 % of the variance
  double cosine_mean = 0, cosine_std = 0;
  double norm_mean = 0, norm_std = 0;
  double dilution = 0;  // how much more windows tell tokens apart than one mean; about 1: no dilution
  std::vector<float> overlap, correlation;   // [scorers, scorers]
  std::vector<float> attention_correlation;  // [scorers], over the tokens that a query saw; empty: fewer than two
  int64_t attention_tokens = 0;              // that were seen
};

struct HeadInfo {
  int64_t num_tokens = 0;
  int64_t zone_begin = 0, zone_end = 0;
  int64_t num_segments = 0;
  int64_t code_bytes = 0, store_bytes = 0;
  double bytes_per_key = 0;
  std::string codec, coarse, centre;
  int coarse_bytes = 0;  // a key, read by every scan
  int fine_bytes = 0;    // a key, read for candidates
  // The balanced code's; nothing under rsq.
  std::string profile;
  std::optional<int64_t> position;         // queries are expected at [position, position + horizon]
  std::optional<int64_t> horizon;          // absent: RoPE is not stated
  double coarse_bits = 0, total_bits = 0;  // a coordinate
  std::vector<float> lambda;               // [head_dim] descending; empty before the first key is encoded
  std::string query_moments;               // that the code was made for: "profile" or "live", the queries asked
  // How much more noise the scanned plane gives the queries asked than those: 0 where it fits. Absent: few have asked.
  std::optional<double> predicted_loss;
  int64_t num_retained = 0;                      // num_tokens less what was evicted; the zone counts among these
  std::optional<SubspaceMetrics> subspace = {};  // absent where the index keeps nothing low-rank
};

}  // namespace seine::client

#endif  // SEINE_CLIENT_TYPES_H_
