// Seine as a library: start here. An Index holds, for every sequence, layer and KV head, the codes (and, if asked, the
// keys and values) of a model's KV cache, and answers a decode step's queries with token positions.
//
//   auto backend = seine::MakeCpuBackend(/*threads=*/0);
//   auto index = seine::Index::Create(config, backend.get()).value();
//   auto seq = index->CreateSequence("").value();
//   index->Append(seq, layer, /*position=*/0, keys, /*values=*/{}).value();  // prefill, then one token a step
//   auto answers = index->Retrieve({{seq, layer, queries}}, config.search).value();  // a step's layer, whole batch
//
// What an engine needs comes first: nine calls, from Create to DeleteSequence. What they take and return is in
// index/types.h. These headers need std and abseil alone.
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
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "index/bytes/byte_stream.h"
#include "index/config/config.h"
#include "index/eviction/diagnose.h"
#include "index/memory/memory_budget.h"
#include "index/reports.h"
#include "index/snapshot_types.h"
#include "index/types.h"
#include "kernels/backend.h"
#include "profile/profile.h"

namespace seine {

class Counts;          // index/counts/counts.h
class IdleTier;        // index/idle/idle_tier.h
class IndexCounts;     // index/counts/counts.h
class QualityMonitor;  // index/quality/monitor.h
struct LayerBases;     // index/subspace/calibrate.h

class Index {
 public:
  virtual ~Index() = default;

  // ---- What an engine needs ----

  // `backend` must outlive the index. `budget`, if given, is a limit shared with other indexes, besides the config's
  // own. `counts`, if given, are shared likewise; without them nothing is counted beyond stats(). `quality`, if given,
  // samples what is retrieved, and counts what it finds in counts(). `idle`, if given, keeps idle sequences on disk,
  // and where memory is short the least recently used ones: the next call on one waits until it is back.
  // INVALID_ARGUMENT naming the field.
  static absl::StatusOr<std::unique_ptr<Index>> Create(const IndexConfig& config, Backend* backend,
                                                       std::shared_ptr<MemoryBudget> budget = nullptr,
                                                       std::shared_ptr<Counts> counts = nullptr,
                                                       std::shared_ptr<QualityMonitor> quality = nullptr,
                                                       std::shared_ptr<IdleTier> idle = nullptr);

  // Empty id: one is made. ALREADY_EXISTS if it lives; INVALID_ARGUMENT.
  virtual absl::StatusOr<SequenceHandle> CreateSequence(absl::string_view id) = 0;

  // Appends tokens of one layer at `position`. Equal to the layer's length: appends. Below: an identical replay is a
  // no-op (a replay that runs past the end appends the rest), other bytes are ALREADY_EXISTS. Above: OUT_OF_RANGE.
  // INVALID_ARGUMENT: wrong layer, byte size, NaN or infinity (message names the first position). Memory limit:
  // RESOURCE_EXHAUSTED. `values` must be given exactly when kv_store is kKeysValues. Returns the layer's new length.
  // A replay of evicted tokens is taken for identical. An index that evicts by itself takes a long append in parts: if
  // one fails, none is taken.
  // `queries`, which may be empty, are kept where eviction.keep_queries or subspace.choice says so, and added up where
  // the scorer does that; else INVALID_ARGUMENT. An append of zones.update_buffer tokens or more is a prompt
  // (subspace.prompt). Where the index evicts by queries and none of the last `interval` positions' was seen,
  // FAILED_PRECONDITION: a replay may bring them.
  // `report`: what `retained` is to say of the positions that the heads retain; it may be nullptr under kNone.
  virtual absl::StatusOr<int64_t> Append(const SequenceHandle& handle, int layer, int64_t position,
                                         const TensorView& keys, const TensorView& values, const QueryView& queries,
                                         RetainedReport report, Retained* retained) = 0;
  absl::StatusOr<int64_t> Append(const SequenceHandle& handle, int layer, int64_t position, const TensorView& keys,
                                 const TensorView& values, const QueryView& queries) {
    return Append(handle, layer, position, keys, values, queries, RetainedReport::kNone, nullptr);
  }
  absl::StatusOr<int64_t> Append(const SequenceHandle& handle, int layer, int64_t position, const TensorView& keys,
                                 const TensorView& values) {
    return Append(handle, layer, position, keys, values, {});
  }

  // Items answer each for themselves (ItemAnswer::status); a wrong `params` fails the whole call. `progress`:
  // backend.h.
  virtual absl::StatusOr<std::vector<ItemAnswer>> Retrieve(absl::Span<const RetrieveItem> items,
                                                           const Checked<SearchParams>& params,
                                                           const ProgressCallback& progress) const = 0;
  absl::StatusOr<std::vector<ItemAnswer>> Retrieve(absl::Span<const RetrieveItem> items, const SearchParams& params,
                                                   const ProgressCallback& progress = {}) const;

  // Retrieves, and attends what is found and what is dense, on the host's threads; low-rank rows as they read. Items
  // and `params` as in Retrieve; scope kPerQHead lets each query head attend its own best. Adds up what is paid where
  // eviction.scorer accumulates (attention_sums.h). FAILED_PRECONDITION: kv_store keeps no values.
  virtual absl::StatusOr<std::vector<AttendAnswer>> Attend(absl::Span<const RetrieveItem> items,
                                                           const Checked<SearchParams>& params,
                                                           const Checked<AttentionParams>& attention,
                                                           const ProgressCallback& progress) const = 0;
  absl::StatusOr<std::vector<AttendAnswer>> Attend(absl::Span<const RetrieveItem> items, const SearchParams& params,
                                                   const AttentionParams& attention,
                                                   const ProgressCallback& progress = {}) const;

  // Cuts a layer back to its budget: whole tokens go, head by head. Retrieval, Gather, Fork and Truncate go on with
  // what is retained, under its original positions. What is left is as if the retained tokens alone had been appended:
  // rows and codes move together, so their memory is given back at once; while the call runs both exist. Forks made
  // before keep their tokens. Errors as of Score, and of the budget; RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<EvictAnswer> Evict(const SequenceHandle& handle, int layer, const EvictParams& params,
                                            const ScorerInputs& given) = 0;

  // A new sequence holding the first `position` tokens of every layer (copy-on-write; layers shorter are taken whole).
  // position < 0: all. OUT_OF_RANGE beyond the longest layer.
  virtual absl::StatusOr<SequenceHandle> Fork(const SequenceHandle& handle, absl::string_view new_id,
                                              int64_t position) = 0;

  // Drops tokens at and after `position` in every layer. OUT_OF_RANGE beyond the longest layer. With KvStore::kNone a
  // cut inside an encoded window whose keys are gone is FAILED_PRECONDITION naming the nearest position that works.
  // `after`, which may be nullptr, is what is left.
  virtual absl::Status Truncate(const SequenceHandle& handle, int64_t position, SequenceInfo* after) = 0;
  absl::Status Truncate(const SequenceHandle& handle, int64_t position) { return Truncate(handle, position, nullptr); }

  // Forks of it live on. NOT_FOUND.
  virtual absl::Status DeleteSequence(const SequenceHandle& handle) = 0;

  // ---- Parameters, checked before anything else is done ----

  // For whoever must know that they are right before other calls: a decode step appends first. Those that another
  // index has checked are INVALID_ARGUMENT in a call. Errors name the field; FAILED_PRECONDITION where kv_store does
  // not hold what they need.
  virtual absl::StatusOr<Checked<SearchParams>> Check(const SearchParams& params) const = 0;
  virtual absl::StatusOr<Checked<AttentionParams>> Check(const AttentionParams& attention) const = 0;

  // ---- Stored rows and bases ----

  // Stored keys and/or values of `positions` of one KV head, [count, head_dim] in the index's dtype.
  // FAILED_PRECONDITION where kv_store does not hold them; OUT_OF_RANGE naming the first position beyond the layer;
  // NOT_FOUND naming the first that was evicted.
  virtual absl::Status Gather(const SequenceHandle& handle, int layer, int kv_head, absl::Span<const int32_t> positions,
                              std::string* keys, std::string* values) const = 0;

  // Reads what one KV head retains of positions [begin, end): Gather's rows, rebuilt where they are low-rank, and their
  // positions. Errors as of Gather and GetBases.
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

  // ---- Snapshots (index/snapshot/) ----

  // Writes a sequence, or its family: itself, its forks, theirs and those that they were forked from, as far as they
  // live. What they share is written once. Calls on them go on: each sequence is written as it is at one moment while
  // this runs, for which its layers are held for about a millisecond each. Takes memory for their last pieces.
  // `base`, which may be nullptr: what it holds is left out, and it then holds this snapshot too; an empty one leaves
  // nothing out (snapshot_base.h). FAILED_PRECONDITION: codes lie in a device's memory. RESOURCE_EXHAUSTED. Errors of
  // the sink. An error leaves the base as it was.
  virtual absl::StatusOr<SnapshotInfo> Snapshot(const SequenceHandle& handle, SnapshotScope scope, ByteSink* sink,
                                                WrittenBase* base) const = 0;
  absl::StatusOr<SnapshotInfo> Snapshot(const SequenceHandle& handle, SnapshotScope scope, ByteSink* sink) const {
    return Snapshot(handle, scope, sink, nullptr);
  }
  // So many bytes of the host's memory may be held beyond the limits from now on, those of a shared MemoryBudget
  // included: for an owner that takes no more calls, and writes what is held although a limit is reached.
  virtual void SetSlack(int64_t bytes) const = 0;
  // One of each family, the oldest that lives, by generation.
  virtual std::vector<SequenceHandle> Families() const = 0;
  // Makes the sequences that a snapshot holds, under the ids that they had, in a family of their own: all of them or
  // none. They answer bit for bit as the others did. Their generations are new, above those that the snapshot holds.
  // Errors: those of SnapshotReader (snapshot_format.h), FAILED_PRECONDITION where it was made of an index of other
  // settings or does not add to restore.base, ALREADY_EXISTS, INVALID_ARGUMENT (restore.id), those of restore.admit and
  // accept. An error leaves the base as it was.
  virtual absl::StatusOr<RestoreInfo> Restore(ByteSource* source, const RestoreParams& restore) = 0;
  // Makes the sequences be there that restore.base holds, as the snapshot read last into it has them; without `id` and
  // `hold`. FAILED_PRECONDITION: it holds none. Other errors as of Restore; an error leaves the base as it was. It
  // keeps the sequences, and is not to be used again once they are there.
  virtual absl::StatusOr<RestoreInfo> RestoreHeld(const RestoreParams& restore) = 0;

  // ---- Reports (index/reports.h) ----

  virtual const IndexConfig& config() const = 0;
  virtual IndexStats stats() const = 0;
  // What it has done since it was made; nullptr where nothing is counted. It lives as long as the index.
  virtual IndexCounts* counts() const = 0;
  // Tokens of all sequences, the longest layer of each counting. Looks at every layer of every sequence.
  virtual int64_t num_tokens() const = 0;
  virtual absl::StatusOr<SequenceInfo> GetSequence(const SequenceHandle& handle) const = 0;
  // By id. The second lists `most` at most, of ids after this one.
  virtual std::vector<SequenceInfo> ListSequences() const = 0;
  virtual std::vector<SequenceInfo> ListSequences(absl::string_view after, size_t most) const = 0;

  virtual absl::StatusOr<HeadInfo> DescribeHead(const SequenceHandle& handle, int layer, int kv_head) const = 0;

  // How much each token that a layer holds is worth keeping. FAILED_PRECONDITION where kv_store keeps no keys, or the
  // scorer needs values that are not kept; INVALID_ARGUMENT naming the field.
  virtual absl::StatusOr<LayerScores> Score(const SequenceHandle& handle, int layer, const ScorerConfig& scorer,
                                            const ScorerInputs& given) const = 0;

  // What a layer's keys look like to eviction, by KV head. Errors as of Score.
  virtual absl::StatusOr<std::vector<HeadDiagnosis>> Diagnose(const SequenceHandle& handle, int layer,
                                                              const DiagnoseParams& params,
                                                              const ScorerInputs& given) const = 0;

  // One layer of a model profile (profile/profile.h), measured on what `handles` hold and were asked: stored keys
  // beyond the sink (of a sequence of more than 16,384, windows of 64 all along) and values where they are kept, and a
  // sample of the latest queries (query_window.h). Before RoPE where geometry.rope is stated, else as observed. Names
  // and texts are the caller's to fill in. INVALID_ARGUMENT: a sequence is given twice. FAILED_PRECONDITION: kv_store
  // keeps no keys, or there is nothing to measure yet.
  virtual absl::StatusOr<Profile> Measure(absl::Span<const SequenceHandle> handles, int layer) const = 0;

  // Asks queries that were asked lately once more, and holds the answers against exact ones over all keys held now:
  // recall and attention mass by layer and KV head. `handles`: whose; empty: of every sequence. Nothing is counted or
  // learnt from it. INVALID_ARGUMENT naming the field; FAILED_PRECONDITION: kv_store keeps no keys, or no query was
  // seen (a layer samples those that had something to search, query_window.h).
  virtual absl::StatusOr<ComparisonReport> CompareExact(absl::Span<const SequenceHandle> handles,
                                                        const ComparisonParams& params) const = 0;

  // Asks the latest step that a layer keeps once more, as the index searches by default, and says what each set found
  // of what is held now, and where the exact attention lies. Nothing is counted or learnt from it. Heads that are
  // dense have no set. INVALID_ARGUMENT; FAILED_PRECONDITION: kv_store keeps no keys, or no query was seen.
  virtual absl::StatusOr<StepInfo> DescribeStep(const SequenceHandle& handle, int layer) const = 0;
};

}  // namespace seine

#endif  // SEINE_INDEX_INDEX_H_
