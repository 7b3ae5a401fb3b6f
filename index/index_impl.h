// The Index: sequences by name, and the checks that stand before a layer.
#ifndef SEINE_INDEX_INDEX_IMPL_H_
#define SEINE_INDEX_INDEX_IMPL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "index/context.h"
#include "index/idle/idle_tier.h"
#include "index/index.h"
#include "index/retrieval/reencoder.h"
#include "index/sequence/sequence.h"

namespace seine {

class StateReader;     // index/bytes/state_reader.h
class StateWriter;     // index/bytes/state_writer.h
struct SpilledFamily;  // index/idle/spilled_family.h

// Locks: mutex_ guards the map only and is never held while a layer's mutex is taken.
class IndexImpl : public Index, private SpillingIndex {
 public:
  IndexImpl(const IndexConfig& config, LowRankShapes low_rank, Backend* backend, std::shared_ptr<MemoryBudget> budget,
            std::shared_ptr<Counts> counts, std::shared_ptr<QualityMonitor> quality, std::shared_ptr<IdleTier> idle)
      : context_(config, std::move(low_rank), backend, std::move(budget), std::move(counts), std::move(quality),
                 std::move(idle)),
        reencoder_(&context_) {}
  ~IndexImpl() override;

  absl::Status CountItself();  // once; RESOURCE_EXHAUSTED
  void JoinIdleTier();         // once, after that
  // Returns once nothing runs in the background that calls before this one have begun: for tests.
  void WaitForBackground() const { reencoder_.WaitUntilIdle(); }

  const IndexConfig& config() const override { return context_.config; }
  IndexStats stats() const override;
  IndexCounts* counts() const override { return context_.own_counts.get(); }
  int64_t num_tokens() const override;

  absl::StatusOr<SequenceHandle> CreateSequence(absl::string_view id) override;
  absl::StatusOr<SequenceInfo> GetSequence(const SequenceHandle& handle) const override;
  std::vector<SequenceInfo> ListSequences() const override { return ListSequences("", SIZE_MAX); }
  std::vector<SequenceInfo> ListSequences(absl::string_view after, size_t most) const override;
  absl::Status DeleteSequence(const SequenceHandle& handle) override;
  absl::StatusOr<SequenceHandle> Fork(const SequenceHandle& handle, absl::string_view new_id,
                                      int64_t position) override;
  absl::Status Truncate(const SequenceHandle& handle, int64_t position, SequenceInfo* after) override;
  using Index::Append;
  absl::StatusOr<int64_t> Append(const SequenceHandle& handle, int layer, int64_t position, const TensorView& keys,
                                 const TensorView& values, const QueryView& queries, RetainedReport report,
                                 Retained* retained) override;
  using Index::Attend;
  using Index::Retrieve;
  absl::StatusOr<std::vector<ItemAnswer>> Retrieve(absl::Span<const RetrieveItem> items,
                                                   const Checked<SearchParams>& params,
                                                   const ProgressCallback& progress) const override;
  absl::StatusOr<std::vector<AttendAnswer>> Attend(absl::Span<const RetrieveItem> items,
                                                   const Checked<SearchParams>& params,
                                                   const Checked<AttentionParams>& attention,
                                                   const ProgressCallback& progress) const override;
  absl::StatusOr<Checked<SearchParams>> Check(const SearchParams& params) const override { return CheckedHere(params); }
  absl::StatusOr<Checked<AttentionParams>> Check(const AttentionParams& attention) const override {
    return CheckedHere(attention);
  }
  absl::StatusOr<LayerScores> Score(const SequenceHandle& handle, int layer, const ScorerConfig& scorer,
                                    const ScoreGiven& given) const override;
  absl::StatusOr<EvictAnswer> Evict(const SequenceHandle& handle, int layer, const EvictParams& params,
                                    const ScoreGiven& given) override;
  absl::StatusOr<std::vector<HeadDiagnosis>> Diagnose(const SequenceHandle& handle, int layer,
                                                      const DiagnoseParams& params,
                                                      const ScoreGiven& given) const override;
  absl::Status Gather(const SequenceHandle& handle, int layer, int kv_head, absl::Span<const int32_t> positions,
                      std::string* keys, std::string* values) const override;
  absl::StatusOr<Profile> Measure(absl::Span<const SequenceHandle> handles, int layer) const override;
  absl::StatusOr<ComparisonReport> CompareExact(absl::Span<const SequenceHandle> handles,
                                                const ComparisonParams& params) const override;
  absl::Status Reconstruct(const SequenceHandle& handle, int layer, int kv_head, int64_t begin, int64_t end,
                           std::vector<int32_t>* positions, std::string* keys, std::string* values) const override;
  absl::StatusOr<LayerBases> GetBases(const SequenceHandle& handle, int layer) const override;
  absl::Status SetBases(const SequenceHandle& handle, int layer, const LayerBases& bases) override;
  using Index::Snapshot;
  absl::StatusOr<SnapshotInfo> Snapshot(const SequenceHandle& handle, SnapshotScope scope, ByteSink* sink,
                                        WrittenBase* base) const override;
  void SetSlack(int64_t bytes) const override { context_.ledger.SetSlack(bytes); }
  std::vector<SequenceHandle> Families() const override;
  absl::StatusOr<RestoreInfo> Restore(ByteSource* source, const RestoreParams& restore) override;
  absl::StatusOr<RestoreInfo> RestoreHeld(const RestoreParams& restore) override;
  absl::StatusOr<StepInfo> DescribeStep(const SequenceHandle& handle, int layer) const override;
  absl::StatusOr<HeadInfo> DescribeHead(const SequenceHandle& handle, int layer, int kv_head) const override;

 private:
  using SequenceRef = std::shared_ptr<Sequence>;
  struct NameHash {
    using is_transparent = void;
    size_t operator()(absl::string_view name) const {
      return std::hash<std::string_view>()(std::string_view(name.data(), name.size()));
    }
  };

  // Brings a sequence back that the idle tier has on disk.
  absl::StatusOr<SequenceRef> Find(const SequenceHandle& handle, absl::string_view field = "handle") const;
  // The same, but what is on disk stays there.
  absl::StatusOr<SequenceRef> Look(const SequenceHandle& handle, absl::string_view field) const;
  absl::Status CheckNewId(absl::string_view id, absl::string_view field) const;
  absl::StatusOr<SequenceRef> NewSequence() const;
  absl::StatusOr<SequenceHandle> Insert(const SequenceRef& sequence, absl::string_view id, absl::string_view field);

  // For snapshots (calls/snapshot.cc).
  std::vector<SequenceRef> FamilyOf(uint64_t number) const;          // the oldest first
  absl::StatusOr<SequenceRef> CopyOf(const Sequence& source) const;  // known to nobody else
  absl::StatusOr<std::vector<SequenceRef>> CopyFamily(const SequenceHandle& handle, SnapshotScope scope) const;
  absl::StatusOr<std::vector<SequenceRef>> LoadFamily(StateReader* reader, const RestoreParams& restore) const;
  absl::StatusOr<std::vector<SequenceRef>> ReadFamily(ByteSource* source, const RestoreParams& restore,
                                                      RestoreInfo* info, ReadBase* held = nullptr) const;
  absl::Status CheckNewIds(const std::vector<SequenceRef>& family) const;
  absl::Status LeaveOutTaken(std::vector<SequenceRef>* family, RestoreInfo* info) const;
  absl::Status InsertFamily(const std::vector<SequenceRef>& family, RestoreInfo* info);
  absl::Status CheckSnapshots() const;

  // For the idle tier (calls/spill.cc).
  std::vector<Family> IdleFamilies() const override;
  absl::StatusOr<bool> Spill(uint64_t family) override;
  bool CountsIn(const MemoryBudget& budget) const override { return context_.ledger.CountsIn(budget); }
  std::vector<SequenceRef> StandIns(const std::vector<SequenceRef>& family) const;
  bool Exchange(const std::vector<SequenceRef>& out, const std::vector<SequenceRef>& in, uint64_t last_fork) const;
  void KeepCharges(const std::vector<SequenceRef>& family, const std::vector<SequenceRef>& stand_ins) const;
  void PutBack(std::vector<SequenceRef>* family, const SpilledFamily* file) const;
  absl::Status WriteSpilled(const std::vector<SequenceRef>& family, SpilledFamily* file) const;
  absl::StatusOr<std::vector<SequenceRef>> ReadSpilled(SpilledFamily* file) const;
  absl::StatusOr<SequenceRef> BringBack(const Sequence& stand_in) const;
  absl::StatusOr<SequenceRef> FromDisk(const SequenceHandle& handle, absl::string_view field, SequenceRef found) const;

  absl::Status CheckLayer(int layer) const;
  // The sequence, where it has that layer and keeps it low-rank.
  absl::StatusOr<SequenceRef> SubspaceLayer(const SequenceHandle& handle, int layer) const;
  absl::Status CheckHead(int kv_head) const;
  absl::Status CheckAppend(int layer, int64_t position, const TensorView& keys, const TensorView& values) const;
  absl::Status CheckShape(const char* field, const TensorView& tensor) const;
  absl::Status CheckFinite(const char* field, int64_t position, const TensorView& tensor) const;
  absl::Status CheckAppended(const QueryView& queries, int64_t num_tokens) const;
  absl::Status CheckFinite(const char* field, const float* queries, int64_t num_queries) const;
  absl::Status CheckGiven(const Layer& layer, const ScoreGiven& given) const;
  template <typename Params>
  absl::StatusOr<Checked<Params>> CheckedHere(const Params& params) const {
    if (absl::Status s = Validate(params, context_.config); !s.ok()) return s;
    return Checked<Params>(this, params);
  }
  // INVALID_ARGUMENT where another index has checked them.
  template <typename Params>
  absl::Status CheckOwn(const Checked<Params>& params) const {
    return params.index_ == this ? absl::OkStatus() : absl::InvalidArgumentError("params: checked by another index");
  }
  absl::StatusOr<std::shared_ptr<const Scorer>> CheckScorer(const ScorerConfig& config) const;
  absl::StatusOr<SequenceRef> CheckItem(const RetrieveItem& item) const;
  absl::StatusOr<std::vector<SequenceRef>> FindAll(absl::Span<const SequenceHandle> handles) const;
  void RecordQueries(const SequenceRef& sequence, const RetrieveItem& item, int64_t num_tokens) const;
  SequenceInfo Describe(const Sequence& sequence) const;

  const Context context_;
  Memory overhead_;  // of the index itself
  mutable std::shared_mutex mutex_;
  // A map of std: absl's does not survive an allocation of its own that fails.
  // Mutable, for calls that change nothing bring sequences back.
  mutable std::unordered_map<std::string, SequenceRef, NameHash, std::equal_to<>> sequences_;
  uint64_t last_generation_ = 0;
  std::atomic<uint64_t> last_fork_{0};  // the generation of the last one that joined a family; written under mutex_
  mutable Reencoder reencoder_;         // its thread ends before the rest does
};

// Writes a sequence that nobody changes meanwhile (calls/snapshot.cc).
void SaveSequence(const Sequence& sequence, StateWriter* writer);

// Describes a head's low-rank store; nullopt where that is nullptr.
std::optional<SubspaceInfo> DescribeSubspace(const IndexConfig& config, const LowRankStore* low);

}  // namespace seine

#endif  // SEINE_INDEX_INDEX_IMPL_H_
