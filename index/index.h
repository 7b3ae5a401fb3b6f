// Seine as a library: start here. An Index holds, for every sequence, layer and KV head, the codes (and, if asked, the
// keys and values) of a model's KV cache, and answers a decode step's queries with token positions.
//
//   auto backend = seine::MakeCpuBackend(/*threads=*/0);
//   auto index = seine::Index::Create(config, backend.get()).value();
//   auto seq = index->CreateSequence("").value();
//   index->Append(seq, layer, /*position=*/0, keys, /*values=*/{}).value();  // prefill, then one token a step
//   auto answers = index->Retrieve({{seq, layer, queries}}, config.search).value();  // a step's layer, whole batch
//
// Thread safety: every method may be called from any thread; calls on one sequence's layer are serialised where one
// writes, in the order in which they come. What is only told of sequences (GetSequence, ListSequences, DescribeHead,
// stats) waits for no other call. Errors are absl::Status at every call; nothing throws; a call that fails has changed
// nothing.
//
// A call under a StopScope (kernels/stop.h) ends soon after its token has stopped: CANCELLED, DEADLINE_EXCEEDED or
// UNAVAILABLE, by the token's reason.
#ifndef SEINE_INDEX_INDEX_H_
#define SEINE_INDEX_INDEX_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "index/config.h"
#include "index/eviction/diagnose.h"
#include "index/storage/memory_budget.h"
#include "kernels/backend.h"

namespace seine {

struct LayerBases;  // index/subspace/calibrate.h

// Ids of sequences: 1 to kMaxIdLength printable ASCII characters without spaces.
inline constexpr size_t kMaxIdLength = 128;
bool IsSequenceId(absl::string_view id);

// Names a sequence. A stale generation (the id was deleted and made again) is FAILED_PRECONDITION.
struct SequenceHandle {
  std::string id;
  uint64_t generation = 0;  // 0: any generation
};

// [num_tokens, num_kv_heads, head_dim] in the index's dtype, row-major, dense. `bytes` is checked against the shape.
struct TensorView {
  const void* data = nullptr;
  int64_t num_tokens = 0;
  size_t bytes = 0;
};

// [num_tokens, num_q_heads, head_dim] after RoPE, fp32, of the last num_tokens positions of an append.
struct QueryView {
  const float* data = nullptr;
  int64_t num_tokens = 0;
};

struct RetrieveItem {
  SequenceHandle sequence;
  int layer = 0;
  const float* queries = nullptr;  // [num_q_heads, head_dim], post-RoPE, fp32
};

enum class Path : uint8_t { kIndex = 0, kDense = 1, kExact = 2 };

// Answer for one item. Sets are per KV head or per query head (params.scope), each ascending by position. Dense tokens
// [0, dense_begin) and [dense_end, num_tokens) are visible besides; under kDense everything is, and sets are empty
// (dense_begin = dense_end = num_tokens). Once tokens of the layer were evicted, heads hold different ones: what is
// visible besides is listed for each in dense_positions, and both ranges are empty (0 and num_tokens). A head may then
// be dense, its set empty, while others are searched; the path is kDense where all of them are.
struct ItemAnswer {
  absl::Status status;
  Path path = Path::kIndex;
  int64_t num_tokens = 0;
  int64_t dense_begin = 0;    // = zone begin
  int64_t dense_end = 0;      // = zone end
  bool all_returned = false;  // top_k >= tokens in the zone
  // The codes that were searched are made for other positions than the layer has reached: recall may be lower. So it is
  // while a decoding layer's are made anew, where memory is short for that, or where kv_store keeps no keys.
  bool codes_outgrown = false;
  bool capped = false;                                // under mass_p: top_k ended some set before its mass reached that
  std::vector<float> masses;                          // [sets] under mass_p: estimated mass of the zone in each; 1 of a
                                                      // head that was not searched. Error: kernels/ops/mass/zone_mass.h
  std::vector<std::vector<int32_t>> positions;        // [sets][<= top_k]
  std::vector<std::vector<float>> scores;             // beside positions
  std::vector<std::vector<int32_t>> candidates;       // [num_q_heads], if params.with_candidates
  std::vector<std::vector<int32_t>> dense_positions;  // [num_kv_heads] ascending; empty while nothing was evicted
  SearchStats stats;
};

// Softmax attention of every query head over what is dense and what was selected for it.
// Answers over disjoint sets of tokens merge by their log-sum-exps: with L = log(e^l1 + e^l2) a head's output over both
// sets is e^(l1 - L) o1 + e^(l2 - L) o2, and its log-sum-exp L. Over no token at all the output is 0 and the
// log-sum-exp -infinity, which merges like any other.
struct AttendAnswer {
  absl::Status status;
  Path path = Path::kIndex;  // kDense: everything held was attended
  int64_t num_tokens = 0;
  std::vector<float> output;       // [num_q_heads, head_dim]
  std::vector<float> log_sum_exp;  // [num_q_heads], natural, of the scaled logits
  int64_t attended_tokens = 0;     // of all query heads together, without what the tail counts in
  bool tail = false;               // whether it was counted in; with nothing to search there is none
  bool codes_outgrown = false;     // as ItemAnswer's
  ItemAnswer selected;             // if attention.with_positions
};

struct SequenceInfo {
  SequenceHandle handle;
  std::vector<int64_t> layer_tokens;  // [num_layers]
  int64_t code_bytes = 0;             // capacity held for codes (shared segments counted whole)
  int64_t store_bytes = 0;            // capacity held for keys and values
};

struct IndexStats {
  int64_t num_sequences = 0;
  int64_t code_bytes = 0;  // shared segments counted once
  int64_t store_bytes = 0;
  int64_t query_bytes = 0;  // of queries kept for scorers; shared ones counted once
  // The balanced code's since the index was made: layers that got a new transform in the background, since their
  // sequences outgrew the horizon or, of them, since it did not fit the queries that they were asked; and their keys,
  // each counted once for all heads.
  int64_t reencoded_layers = 0;
  int64_t reencoded_unfit_layers = 0;
  int64_t reencoded_keys = 0;
  int64_t queries_not_kept =
      0;  // times that a step's queries found no memory: in the sample that tells of fit, for scorers
  // Since the index was made: layers cut back, and tokens dropped, each counted once a head.
  int64_t evictions = 0;
  int64_t evicted_tokens = 0;
};

// What an Evict call asks for.
struct EvictParams {
  ScorerConfig scorer;
  BudgetConfig budget;
  KeepConfig keep;
  bool dry_run = false;  // answers alone; nothing changes
};

// What comes with a call that scores. Q-Filters takes its directions from `filters`, else from `queries`, else from the
// index's profile; expected_attention its moments from `queries`, else from the profile. Where an index keeps queries
// (eviction.keep_queries), these stand in for those that scorers need and the call lacks: FAILED_PRECONDITION where
// none of the last `interval` positions' was seen.
struct ScoreGiven {
  const float* queries = nullptr;  // [num_queries, num_q_heads, head_dim] after RoPE, fp32, of the last positions
  int64_t num_queries = 0;
  const float* filters = nullptr;                    // [num_kv_heads, head_dim]
  std::vector<absl::Span<const float>> scores = {};  // client: [num_kv_heads][tokens held]
  float softmax_scale = 0;  // of the attention that scorers compute; 0: the index's, SearchParams::softmax_scale
};

// Of one layer, by KV head; positions ascending.
struct LayerScores {
  std::vector<std::vector<int32_t>> positions;
  std::vector<std::vector<float>> scores;  // beside them, higher is kept
};

struct EvictAnswer {
  std::vector<std::vector<int32_t>> kept;  // [num_kv_heads] positions, ascending
  int64_t tokens_evicted = 0;              // of all heads together
  int64_t bytes_freed = 0;                 // codes and stores of this sequence's layer; 0 in a dry run
};

// Of a head whose zone is kept low-rank. Bytes are of this sequence; rows, positions and checksums are in store_bytes
// besides.
struct SubspaceInfo {
  int key_rank = 0, value_rank = 0;
  std::string frame, profile;                                    // profile: "" where bases begin with the first tokens
  int64_t low_rank_tokens = 0;                                   // of those retained
  int64_t full_rank_tokens = 0;                                  // of them, kept full-rank besides
  int64_t code_bytes = 0, full_rank_bytes = 0, basis_bytes = 0;  // bases: versions, and what is learnt
  int64_t versions = 0;                                          // of the basis, that tokens are stored in
  // What the updates saw of keys and values: rows, updates, and the share of the rows' energy that the basis of their
  // time left out, over all and in the last interval.
  struct Learning {
    int64_t rows = 0, updates = 0;
    double residual = 0, last_residual = 0;
  } keys, values;
  // Of the keys' newest basis to the first version: principal angle in radians, overlap in [0, 1].
  double angle = 0, overlap = 1;
};

struct HeadInfo {
  int64_t num_tokens = 0;
  int64_t num_retained = 0;              // num_tokens less what was evicted
  int64_t zone_begin = 0, zone_end = 0;  // places among the retained tokens: positions while nothing was evicted
  int64_t num_segments = 0;
  int64_t code_bytes = 0, store_bytes = 0;
  double bytes_per_key = 0;  // code bytes (all planes, centres, capacity not yet used) / zone keys
  CodeLayout layout;
  std::string codec, coarse, centre;
  // The balanced code's; nothing under rsq.
  std::string profile;
  int64_t position = -1;  // p: queries are expected at [p, p + horizon]. -1: nothing is encoded, or RoPE not stated
  int64_t horizon = 0;    // 0: RoPE is not stated, so that moments are used as observed
  double coarse_bits = 0, total_bits = 0;  // a coordinate
  std::vector<float> lambda;               // [head_dim] descending; empty before the first key is encoded
  std::string query_moments;  // what the transform was made for: "profile", or "live", the queries asked; empty: none
  // How much more noise the scanned plane gives the queries asked than those that the transform was made for, as a
  // share: 0 where it fits (query_fit.h). Not stated before 64 steps have asked.
  std::optional<double> predicted_loss;
  std::optional<SubspaceInfo> subspace;
};

class Index {
 public:
  virtual ~Index() = default;
  // `backend` must outlive the index. `budget`, if given, is a limit shared with other indexes, besides the config's
  // own. INVALID_ARGUMENT naming the field.
  static absl::StatusOr<std::unique_ptr<Index>> Create(const IndexConfig& config, Backend* backend,
                                                       std::shared_ptr<MemoryBudget> budget = nullptr);

  virtual const IndexConfig& config() const = 0;
  virtual IndexStats stats() const = 0;

  // Empty id: one is made. ALREADY_EXISTS if it lives; INVALID_ARGUMENT.
  virtual absl::StatusOr<SequenceHandle> CreateSequence(absl::string_view id) = 0;
  virtual absl::StatusOr<SequenceInfo> GetSequence(const SequenceHandle& handle) const = 0;
  // By id. The second lists `most` at most, of ids after this one.
  virtual std::vector<SequenceInfo> ListSequences() const = 0;
  virtual std::vector<SequenceInfo> ListSequences(absl::string_view after, size_t most) const = 0;
  virtual absl::Status DeleteSequence(const SequenceHandle& handle) = 0;
  // A new sequence holding the first `position` tokens of every layer (copy-on-write; layers shorter are taken whole).
  // position < 0: all. OUT_OF_RANGE beyond the longest layer.
  virtual absl::StatusOr<SequenceHandle> Fork(const SequenceHandle& handle, absl::string_view new_id,
                                              int64_t position) = 0;
  // Drops tokens at and after `position` in every layer. OUT_OF_RANGE beyond the longest layer. With KvStore::kNone a
  // cut inside an encoded window whose keys are gone is FAILED_PRECONDITION naming the nearest position that works.
  // `after`, which may be nullptr, is what is left.
  virtual absl::Status Truncate(const SequenceHandle& handle, int64_t position, SequenceInfo* after) = 0;
  absl::Status Truncate(const SequenceHandle& handle, int64_t position) { return Truncate(handle, position, nullptr); }

  // Appends tokens of one layer at `position`. Equal to the layer's length: appends. Below: an identical replay is a
  // no-op (a replay that runs past the end appends the rest), other bytes are ALREADY_EXISTS. Above: OUT_OF_RANGE.
  // INVALID_ARGUMENT: wrong layer, byte size, NaN or infinity (message names the first position). Memory limit:
  // RESOURCE_EXHAUSTED. `values` must be given exactly when kv_store is kKeysValues. Returns the layer's new length.
  // A replay of evicted tokens is taken for identical. An index that evicts by itself takes a long append in parts: if
  // one fails, none is taken.
  // `queries`, which may be empty, are kept where eviction.keep_queries says so, else INVALID_ARGUMENT. Where the index
  // evicts by queries and none of the last `interval` positions' was seen, FAILED_PRECONDITION: a replay may bring
  // them.
  virtual absl::StatusOr<int64_t> Append(const SequenceHandle& handle, int layer, int64_t position,
                                         const TensorView& keys, const TensorView& values,
                                         const QueryView& queries) = 0;
  absl::StatusOr<int64_t> Append(const SequenceHandle& handle, int layer, int64_t position, const TensorView& keys,
                                 const TensorView& values) {
    return Append(handle, layer, position, keys, values, {});
  }

  // Items answer each for themselves (ItemAnswer::status); a wrong `params` fails the whole call. `meanwhile`:
  // backend.h.
  virtual absl::StatusOr<std::vector<ItemAnswer>> Retrieve(absl::Span<const RetrieveItem> items,
                                                           const SearchParams& params,
                                                           const ProgressCallback& progress) const = 0;
  absl::StatusOr<std::vector<ItemAnswer>> Retrieve(absl::Span<const RetrieveItem> items,
                                                   const SearchParams& params) const {
    return Retrieve(items, params, {});
  }

  // Retrieves, and attends what is found and what is dense, on the host's threads; low-rank rows as they read. Items
  // and `params` as in Retrieve; scope kPerQHead lets each query head attend its own best. FAILED_PRECONDITION:
  // kv_store keeps no values.
  virtual absl::StatusOr<std::vector<AttendAnswer>> Attend(absl::Span<const RetrieveItem> items,
                                                           const SearchParams& params, const AttentionParams& attention,
                                                           const ProgressCallback& progress) const = 0;
  absl::StatusOr<std::vector<AttendAnswer>> Attend(absl::Span<const RetrieveItem> items, const SearchParams& params,
                                                   const AttentionParams& attention) const {
    return Attend(items, params, attention, {});
  }

  // How much each token that a layer holds is worth keeping. FAILED_PRECONDITION where kv_store keeps no keys, or the
  // scorer needs values that are not kept; INVALID_ARGUMENT naming the field.
  virtual absl::StatusOr<LayerScores> Score(const SequenceHandle& handle, int layer, const ScorerConfig& scorer,
                                            const ScoreGiven& given) const = 0;
  // Cuts a layer back to its budget: whole tokens go, head by head. Retrieval, Gather, Fork and Truncate go on with
  // what is retained, under its original positions. What is left is as if the retained tokens alone had been appended:
  // rows and codes move together, so their memory is given back at once; while the call runs both exist. Forks made
  // before keep their tokens. Errors as of Score, and of the budget; RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<EvictAnswer> Evict(const SequenceHandle& handle, int layer, const EvictParams& params,
                                            const ScoreGiven& given) = 0;

  // What a layer's keys look like to eviction, by KV head. Errors as of Score.
  virtual absl::StatusOr<std::vector<HeadDiagnosis>> Diagnose(const SequenceHandle& handle, int layer,
                                                              const DiagnoseParams& params,
                                                              const ScoreGiven& given) const = 0;

  // Stored keys and/or values of `positions` of one KV head, [count, head_dim] in the index's dtype.
  // FAILED_PRECONDITION where kv_store does not hold them; OUT_OF_RANGE naming the first position beyond the layer;
  // NOT_FOUND naming the first that was evicted.
  virtual absl::Status Gather(const SequenceHandle& handle, int layer, int kv_head, absl::Span<const int32_t> positions,
                              std::string* keys, std::string* values) const = 0;

  // One layer of a model profile (profile/profile.h), measured on what `handles` hold and were asked: stored keys
  // beyond the sink (of a sequence of more than 16,384, windows of 64 all along) and values where they are kept, and a
  // sample of the latest queries (query_window.h). Before RoPE where geometry.rope is stated, else as observed. Names
  // and texts are the caller's to fill in. INVALID_ARGUMENT: a sequence is given twice. FAILED_PRECONDITION: kv_store
  // keeps no keys, or there is nothing to measure yet.
  virtual absl::StatusOr<Profile> Measure(absl::Span<const SequenceHandle> handles, int layer) const = 0;

  // Of one KV head, what is retained of positions [begin, end) as it reads: Gather's rows, rebuilt where they are
  // low-rank, and their positions. Errors as of Gather and GetBases.
  virtual absl::Status Reconstruct(const SequenceHandle& handle, int layer, int kv_head, int64_t begin, int64_t end,
                                   std::vector<int32_t>* positions, std::string* keys, std::string* values) const = 0;
  // What the bases of a layer's heads are now: the newest, which the next version is made from. FAILED_PRECONDITION
  // where the index keeps nothing low-rank, or the layer has no basis yet (nothing is low-rank, and none was calibrated
  // or set).
  virtual absl::StatusOr<LayerBases> GetBases(const SequenceHandle& handle, int layer) const = 0;
  // Puts others in their place; learning goes on from them. What is stored keeps the basis that it has; the next tokens
  // that become low-rank begin a new version. INVALID_ARGUMENT naming the field: other heads, ranks or head_dim than
  // the index's, or columns that are not orthonormal to 1e-3.
  virtual absl::Status SetBases(const SequenceHandle& handle, int layer, const LayerBases& bases) = 0;

  virtual absl::StatusOr<HeadInfo> DescribeHead(const SequenceHandle& handle, int layer, int kv_head) const = 0;
};

}  // namespace seine

#endif  // SEINE_INDEX_INDEX_H_
