// One layer of one sequence: its length and its caches (head_group_cache.h), one of all heads until tokens are evicted
// and one a head from then on, and how they change together.
#ifndef SEINE_INDEX_SEQUENCE_LAYER_H_
#define SEINE_INDEX_SEQUENCE_LAYER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "index/context.h"
#include "index/eviction/attention_sums.h"
#include "index/eviction/kept_queries.h"
#include "index/fair_mutex.h"
#include "index/index.h"
#include "index/sequence/dropped_positions.h"
#include "index/sequence/head_group_cache.h"
#include "index/sequence/layer_facts.h"
#include "index/transforms/query_window.h"

namespace seine {

// Every method but mutex() needs the mutex held: shared where const, else exclusive (layer_lock.h). To hold several
// layers' mutexes, lock them in the order of sequence generation, then layer, and each once.
class Layer {
 public:
  Layer(const Context* context, int layer);  // its number
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  FairMutex& mutex() const { return mutex_; }
  int64_t length() const { return length_; }
  bool evicted() const { return !caches_[0]->whole(); }
  const HeadGroupCache& cache(int kv_head) const { return evicted() ? *caches_[kv_head] : *caches_[0]; }

  // Index::Append for views that are checked but for their position. `values` is empty unless they are stored. Evicts
  // where the index does that by itself. A failure has changed nothing.
  absl::StatusOr<int64_t> Append(int64_t position, const TensorView& keys, const TensorView& values,
                                 const QueryView& queries, RetainedReport report, Retained* retained);

  // Truncation in steps, so that all layers of a sequence change or none does: Plan each, allocate, install, Commit
  // each. FAILED_PRECONDITION where keys that would become dense are gone (kNone).
  absl::Status PlanTruncate(int64_t position, Staging* staging);
  // UNAVAILABLE: it is done, but the device is lost.
  absl::Status CommitTruncate(int64_t position);

  // Makes this new layer a copy of `source` (its mutex held, shared); all pieces are shared until one side writes.
  void ShareFrom(const Layer& source);

  // For snapshots (layer_upkeep.cc). A copy for one begins as ShareFrom; then TakeApart, with the source's mutex held
  // shared, copies what a write to `source` would touch, so that neither pays for the other: RESOURCE_EXHAUSTED.
  absl::Status TakeApart(const Layer& source);
  // Saves a layer that has been taken apart; it must live and not change until all is written.
  void Save(StateWriter* writer) const;
  // Into a new layer. Finish: once all has been read; DATA_LOSS where it cannot be right.
  void Load(StateReader* reader);
  absl::Status Finish();

  // One KV head's search over so many keys of the zone, in places (head_group_cache.h). RESOURCE_EXHAUSTED.
  absl::Status PrepareSearch(int kv_head, const SearchParams& params, int64_t zone_keys, SearchTask* task) const;

  // One KV head's stored rows and what of them is dense: all, where none of the zone was searched. `tail`: and the
  // windows of what was.
  void FillAttention(int kv_head, int64_t zone_keys, bool tail, bool on_device, host::AttentionTask* task) const;

  // Scores of all heads, by place. Errors of the scorer.
  absl::Status Score(const Scorer& scorer, const ScorerInputs& given, Scores* scores) const;
  // `scorers`: those of `params`, made.
  absl::StatusOr<std::vector<HeadDiagnosis>> Diagnose(const DiagnoseParams& params,
                                                      absl::Span<const std::shared_ptr<const Scorer>> scorers,
                                                      const ScorerInputs& given) const;
  // The places of each head that are kept by score; all of them, and no scores, where nothing would go.
  absl::StatusOr<std::vector<std::vector<uint32_t>>> Select(const EvictParams& params, const Scorer& scorer,
                                                            const ScorerInputs& given) const;
  // Keeps nothing else; returns how many tokens went, all heads together, which the caller counts, and adds them to
  // `dropped` where that watches. RESOURCE_EXHAUSTED: nothing has changed.
  absl::StatusOr<int64_t> Keep(const std::vector<std::vector<uint32_t>>& places, DroppedPositions* dropped);

  // A call's report (Index::Append, Index::Evict), in two steps: before the call changes anything, and after that.
  void BeginReport(RetainedReport report, Retained* retained, DroppedPositions* dropped) const;
  void EndReport(DroppedPositions* dropped, Retained* retained) const;

  // Whether the positions that the codes' transform was made for end before the layer does, or the layer has doubled
  // since: codes made anew would find more.
  bool Outgrown() const;
  // For the reencoder. Whether it is time for its thread to make them, `appended` tokens having come: the keys are
  // held, and the layer has doubled or is decoding. A horizon that ends within a prompt waits for the first answer, so
  // a key costs at most two encodings more until then, however long the prompt and small the steps.
  bool WantsReencoding(int64_t appended) const;
  // Whether the next answer had better wait for them: a prompt has outgrown the codes. A decode step's few tokens alone
  // make no answer wait, unless the reencoder has fallen far behind. Needs no mutex.
  bool due() const { return due_.load(std::memory_order_relaxed); }
  void ClearReencodeDue() const { due_.store(false, std::memory_order_relaxed); }  // there is no memory to make them in
  // Held by whoever encodes the layer anew, before mutex(). Needs no mutex.
  const std::shared_ptr<FairMutex>& reencoding() const { return reencoding_; }
  int64_t cuts() const { return cuts_; }  // truncations and evictions so far that took tokens away
  // The codecs of the first head that has any; heads of an evicted layer may differ in p. nullptr: nothing is encoded.
  std::shared_ptr<const LayerCodecs> codecs() const;
  // New codes for every cache, with these codecs; then brings them up to `most` keys each nearer to the layer's zones
  // (RESOURCE_EXHAUSTED: no memory for all of these; UNAVAILABLE: the device is lost) until they are ready to be
  // swapped in.
  std::vector<CodeStore> NewCodes(const std::shared_ptr<const LayerCodecs>& codecs) const;
  absl::Status GrowFromStored(int64_t most, std::vector<CodeStore>* next) const;
  bool Ready(const std::vector<CodeStore>& next) const;
  void Swap(std::vector<CodeStore>* next);
  // Whether codes made for the queries that the layer is asked may take the place of those that it has.
  bool Refittable() const;
  // Whether the layer waits for the reencoder: sets it and returns what it was. Needs no mutex.
  bool SetQueued(bool queued) { return queued_.exchange(queued); }

  // What the layer was asked lately. Needs no mutex. Forks begin without.
  QueryWindow& queries() const { return queries_; }
  // Keeps a step's queries [num_q_heads, head_dim], asked at `position`, for whoever measures them; not where the keys
  // are not kept beside which they would be measured. True: it is time for the reencoder to hold the codes against
  // them. Needs no mutex.
  bool RecordQueries(int64_t position, const float* queries) const;
  // Keeps the queries asked at the last token, where scorers are to look at them.
  void KeepQueries(const float* queries) const;
  // Adds what the queries at the last token have paid, [num_kv_heads], where a scorer is to look at the sums.
  void Accumulate(absl::Span<const host::AttendedRows> heads) const;

  // Stored tokens [position, position + count) as fp32 [count, num_kv_heads, head_dim]. `values` may be nullptr. False,
  // and nothing to rely on in either, where a head does not hold all of them any more.
  bool CopyStored(int64_t position, int64_t count, float* keys, float* values) const;

  // OUT_OF_RANGE, NOT_FOUND naming the first position that is not in the layer or was evicted. The row stores must
  // exist.
  absl::Status Gather(int kv_head, absl::Span<const int32_t> positions, std::string* keys, std::string* values) const;

  // Index::GetBases and SetBases of a layer with low-rank stores.
  absl::StatusOr<LayerBases> Bases() const;
  absl::Status SetBases(const LayerBases& bases);

  int64_t code_bytes() const;
  int64_t store_bytes() const;

  // Tells what the layer holds by now to those who ask without the mutex: at the end of every change.
  void Publish();
  // What was told last. Both need no mutex.
  LayerTotals totals() const;
  HeadFacts facts(int kv_head) const;

 private:
  int num_heads() const { return context_->config.geometry.num_kv_heads; }
  bool keeps_all_keys() const;
  int64_t Room() const;  // tokens that may be appended before the layer evicts by itself
  // `queries`: what the tokens bring, not committed yet. `prompt`: the tokens are a prompt's, or a part of it.
  absl::Status Extend(int64_t count, const uint8_t* keys, const uint8_t* values, const KeptQueries::Staged& queries,
                      bool prompt);
  // Evictions that an append has made.
  struct Cuts {
    int64_t layers = 0, tokens = 0;
    DroppedPositions dropped;
  };
  absl::Status EvictByItself(Cuts* cuts);
  // Takes as many of the tokens from `done` on as there is room for, cutting back first where there is none; returns
  // how many. `last`: the position where the append ends.
  absl::StatusOr<int64_t> AppendPart(int64_t done, int64_t last, const TensorView& keys, const TensorView& values,
                                     const QueryView& queries, Cuts* cuts);
  // What an append goes back to where it fails midway. Caches share their pieces with those that go on; there are none
  // where a single part is all or nothing anyway.
  struct Before {
    int64_t length = 0;
    int64_t evictions = 0;
    bool due = false;
    std::vector<HeadGroupCache> caches;
    // nullopt: they do not change before all is taken.
    std::optional<KeptQueries::Staged> queries;
    std::optional<AttentionSums::State> sums;
  };
  Before SaveCheckpoint(bool caches, bool queries, bool sums) const;
  void RestoreCheckpoint(Before* before);
  std::vector<int64_t> Sizes() const;  // [num_kv_heads] tokens held
  // Adds what those queries pay that are of positions [begin, end); `queries` are of positions before `last`. Attention
  // is over all that is held. What finds no memory is counted as not kept.
  void AccumulateGiven(const QueryView& queries, int64_t last, int64_t begin, int64_t end);
  // What queries of positions [begin, end) pay each head's tokens.
  absl::Status PaidBy(const float* queries, int64_t begin, int64_t end, Scores* paid) const;
  // For codes that have changed, or `appended` tokens that have come.
  void UpdateReencodeDue(int64_t appended);
  // Whether nothing of the layer would go, whatever the scores: the budget holds it, or the scorer's window does.
  bool KeepsAll(const BudgetConfig& budget, const Scorer& scorer) const;
  absl::Status CheckSizes(const ScorerInputs& given) const;  // of what comes for each token held
  // Copies of those queries that are of positions [begin, end); `queries` are of positions before `last`.
  absl::StatusOr<KeptQueries::Staged> StageQueries(const QueryView& queries, int64_t last, int64_t begin,
                                                   int64_t end) const;
  // What an input points to.
  struct InputStorage {
    std::vector<HeadStorage> heads;
    Filters filters;
    SeenQueries queries;
    Scores attention_sums;
  };
  struct Wanted {
    bool filters = false;
    bool queries = false;  // those kept, where none are given
    bool sums = false;     // of attention, where they are kept
  };
  static Wanted WantedBy(const Scorer& scorer) {
    return {.filters = scorer.needs_filters(), .queries = scorer.needs_queries(), .sums = scorer.accumulates()};
  }
  absl::Status MakeInput(const ScorerInputs& given, Wanted wanted, InputStorage* storage, ScoreInput* input) const;
  // Scores of all heads from an input that holds what the scorer wants; takes sums off it that are another scorer's.
  absl::Status ScoreFrom(const Scorer& scorer, ScoreInput* input, Scores* scores) const;
  // FAILED_PRECONDITION where the scorer looks at queries that the index should have kept by now.
  absl::Status CheckSeen(const Scorer& scorer, const ScoreInput& input) const;

  const Context* context_;
  const int layer_;
  mutable FairMutex mutex_;
  const std::shared_ptr<FairMutex> reencoding_ = std::make_shared<FairMutex>();
  mutable std::atomic<bool> due_{false};
  int64_t length_ = 0;
  int64_t cuts_ = 0;
  int64_t evictions_ = 0;  // of these tokens, here and in what they were forked from
  std::atomic<bool> queued_{false};
  mutable QueryWindow queries_;
  mutable KeptQueries kept_queries_;
  mutable AttentionSums attention_sums_;
  std::vector<std::unique_ptr<HeadGroupCache>> caches_;  // one, or [num_kv_heads]
  mutable std::mutex published_mutex_;                   // held for a copy, and no other under it
  LayerTotals published_;                                // guarded by published_mutex_
  std::vector<HeadGroupFacts> published_caches_;         // guarded by published_mutex_
};

}  // namespace seine

#endif  // SEINE_INDEX_SEQUENCE_LAYER_H_
