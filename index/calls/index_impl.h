// The Index: finds and checks what a call names, and hands it to who answers.
#ifndef SEINE_INDEX_CALLS_INDEX_IMPL_H_
#define SEINE_INDEX_CALLS_INDEX_IMPL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "index/calls/checks.h"
#include "index/calls/compare_exact.h"
#include "index/calls/describe_step.h"
#include "index/calls/measure.h"
#include "index/calls/sequences.h"
#include "index/context.h"
#include "index/index.h"
#include "index/retrieval/reencoder.h"

namespace seine {

class IndexImpl : public Index {
 public:
  IndexImpl(const IndexConfig& config, LowRankShapes low_rank, Backend* backend, std::shared_ptr<MemoryBudget> budget,
            std::shared_ptr<Counts> counts, std::shared_ptr<QualityMonitor> quality, std::shared_ptr<IdleTier> idle)
      : context_(config, std::move(low_rank), backend, std::move(budget), std::move(counts), std::move(quality),
                 std::move(idle)),
        reencoder_(&context_) {}
  ~IndexImpl() override;

  absl::Status CountItself();                         // once; RESOURCE_EXHAUSTED
  void JoinIdleTier() { sequences_.JoinIdleTier(); }  // once, after that
  // Returns once nothing runs in the background that calls before this one have begun: for tests.
  void WaitForBackground() const { reencoder_.WaitUntilIdle(); }

  const IndexConfig& config() const override { return context_.config; }
  IndexStats stats() const override;
  IndexCounts* counts() const override { return context_.own_counts.get(); }
  int64_t num_tokens() const override { return sequences_.num_tokens(); }

  absl::StatusOr<SequenceHandle> CreateSequence(absl::string_view id) override;
  absl::StatusOr<SequenceInfo> GetSequence(const SequenceHandle& handle) const override {
    return sequences_.Get(handle);
  }
  std::vector<SequenceInfo> ListSequences() const override { return ListSequences("", SIZE_MAX); }
  std::vector<SequenceInfo> ListSequences(absl::string_view after, size_t most) const override {
    return sequences_.List(after, most);
  }
  absl::Status DeleteSequence(const SequenceHandle& handle) override { return sequences_.Delete(handle); }
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
                                    const ScorerInputs& given) const override;
  absl::StatusOr<EvictAnswer> Evict(const SequenceHandle& handle, int layer, const EvictParams& params,
                                    const ScorerInputs& given) override;
  absl::StatusOr<std::vector<HeadDiagnosis>> Diagnose(const SequenceHandle& handle, int layer,
                                                      const DiagnoseParams& params,
                                                      const ScorerInputs& given) const override;
  absl::Status Gather(const SequenceHandle& handle, int layer, int kv_head, absl::Span<const int32_t> positions,
                      std::string* keys, std::string* values) const override;
  absl::StatusOr<Profile> Measure(absl::Span<const SequenceHandle> handles, int layer) const override {
    return MeasureLayer(context_, checks_, sequences_, handles, layer);
  }
  absl::StatusOr<ComparisonReport> CompareExact(absl::Span<const SequenceHandle> handles,
                                                const ComparisonParams& params) const override {
    return CompareSequences(context_, checks_, sequences_, &reencoder_, handles, params);
  }
  absl::Status Reconstruct(const SequenceHandle& handle, int layer, int kv_head, int64_t begin, int64_t end,
                           std::vector<int32_t>* positions, std::string* keys, std::string* values) const override;
  absl::StatusOr<LayerBases> GetBases(const SequenceHandle& handle, int layer) const override;
  absl::Status SetBases(const SequenceHandle& handle, int layer, const LayerBases& bases) override;
  using Index::Snapshot;
  absl::StatusOr<SnapshotInfo> Snapshot(const SequenceHandle& handle, SnapshotScope scope, ByteSink* sink,
                                        WrittenBase* base) const override {
    return sequences_.Snapshot(handle, scope, sink, base);
  }
  void SetSlack(int64_t bytes) const override { context_.ledger.SetSlack(bytes); }
  std::vector<SequenceHandle> Families() const override { return sequences_.Families(); }
  absl::StatusOr<RestoreInfo> Restore(ByteSource* source, const RestoreParams& restore) override {
    return sequences_.Restore(source, restore);
  }
  absl::StatusOr<RestoreInfo> RestoreHeld(const RestoreParams& restore) override {
    return sequences_.RestoreHeld(restore);
  }
  absl::StatusOr<StepInfo> DescribeStep(const SequenceHandle& handle, int layer) const override {
    return DescribeLatestStep(context_, checks_, sequences_, &reencoder_, handle, layer);
  }
  absl::StatusOr<HeadInfo> DescribeHead(const SequenceHandle& handle, int layer, int kv_head) const override;

 private:
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
  // The sequence, where it has that layer; of SubspaceLayer, and keeps it low-rank.
  absl::StatusOr<SequenceRef> FindLayer(const SequenceHandle& handle, int layer) const;
  absl::StatusOr<SequenceRef> SubspaceLayer(const SequenceHandle& handle, int layer) const;
  absl::StatusOr<SequenceRef> CheckItem(const RetrieveItem& item) const;
  absl::Status CheckDevice(const RetrieveItem& item) const;
  void RecordQueries(const SequenceRef& sequence, const RetrieveItem& item, int64_t num_tokens) const;

  const Context context_;
  Memory overhead_;  // of the index itself
  const Checks checks_{&context_};
  Sequences sequences_{&context_};
  mutable Reencoder reencoder_;  // its thread ends before the rest does
};

}  // namespace seine

#endif  // SEINE_INDEX_CALLS_INDEX_IMPL_H_
