// Every call of the wire contract as a plain function: validate, do, convert. No gRPC here, so whoever lives in the
// same process can call them, and serving them is a list (rpc_methods.h).
//
// Thread safety: any number of calls at once. A call that does not return OK has changed nothing.
#ifndef SEINE_SERVICE_CALLS_CALLS_H_
#define SEINE_SERVICE_CALLS_CALLS_H_

#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "index/index.h"
#include "seine/v1/admin_service.pb.h"
#include "seine/v1/eviction_service.pb.h"
#include "seine/v1/index_service.pb.h"
#include "seine/v1/retrieval_service.pb.h"
#include "seine/v1/sequence_service.pb.h"
#include "seine/v1/shared_memory_service.pb.h"
#include "seine/v1/subspace_service.pb.h"
#include "service/access/caller.h"
#include "service/calls/convert/validate.h"
#include "service/calls/retriever.h"
#include "service/core.h"
#include "service/families/sequence_families.h"

namespace seine {

// An index by name, or NOT_FOUND; a handle's index with the handle in the index's terms. FAILED_PRECONDITION, reason
// MOVED: another node serves the sequence.
absl::StatusOr<std::shared_ptr<Index>> FindIndex(Core& core, const std::string& name, absl::string_view field);
absl::StatusOr<std::shared_ptr<Index>> ResolveHandle(Core& core, const v1::SequenceHandle& handle,
                                                     absl::string_view field, SequenceHandle* out);

// Before a call changes a family, that of the sequence `id`: the change lasts until *change is destroyed. UNAVAILABLE,
// reason MOVING; FAILED_PRECONDITION, reason MOVED (sequence_families.h).
absl::Status BeginChange(Core& core, const std::string& index, absl::string_view id, SequenceFamilies::Change* change);

// Whether the index holds a sequence of the family. UNAVAILABLE, reason DRAINING: the server drains, and it does not.
bool HoldsFamily(const Index& index, absl::string_view family);
absl::Status CheckTakesFamily(const Core& core, const Index& index, absl::string_view family);

// Checks that the caller's tenant may have `count` sequences more, and locks out others of its calls that make some.
absl::Status CheckRoomForSequences(const Core& core, int64_t count, std::unique_lock<std::mutex>* making);

// INVALID_ARGUMENT where a request has more entries than a batch may.
absl::Status CheckBatch(int size, absl::string_view field);
// INVALID_ARGUMENT naming `field` where an answer of `count` parts of so many bytes would pass the message limit, and
// RESOURCE_EXHAUSTED where as much is under way already. Asked before it is made.
absl::Status CheckAnswer(const Core& core, int64_t count, int64_t bytes, absl::string_view field);

// IndexService.
absl::Status CreateIndex(Core& core, const v1::CreateIndexRequest& request, v1::CreateIndexResponse* response);
absl::Status GetIndex(Core& core, const v1::GetIndexRequest& request, v1::GetIndexResponse* response);
absl::Status ListIndexes(Core& core, const v1::ListIndexesRequest& request, v1::ListIndexesResponse* response);
absl::Status DeleteIndex(Core& core, const v1::DeleteIndexRequest& request, v1::DeleteIndexResponse* response);

// SequenceService.
absl::Status CreateSequence(Core& core, const v1::CreateSequenceRequest& request, v1::CreateSequenceResponse* response);
absl::Status GetSequence(Core& core, const v1::GetSequenceRequest& request, v1::GetSequenceResponse* response);
absl::Status ListSequences(Core& core, const v1::ListSequencesRequest& request, v1::ListSequencesResponse* response);
absl::Status DeleteSequence(Core& core, const v1::DeleteSequenceRequest& request, v1::DeleteSequenceResponse* response);
absl::Status ForkSequence(Core& core, const v1::ForkSequenceRequest& request, v1::ForkSequenceResponse* response);
absl::Status TruncateSequence(Core& core, const v1::TruncateSequenceRequest& request,
                              v1::TruncateSequenceResponse* response);
absl::Status Snapshot(Core& core, const v1::SnapshotRequest& request, v1::SnapshotResponse* response);
absl::Status Restore(Core& core, const v1::RestoreRequest& request, v1::RestoreResponse* response);
absl::Status ReleaseBase(Core& core, const v1::ReleaseBaseRequest& request, v1::ReleaseBaseResponse* response);

// AdminService.
absl::Status GetServerInfo(Core& core, const v1::GetServerInfoRequest& request, v1::GetServerInfoResponse* response);
absl::Status DescribeHead(Core& core, const v1::DescribeHeadRequest& request, v1::DescribeHeadResponse* response);
absl::Status MeasureProfile(Core& core, const v1::MeasureProfileRequest& request, v1::MeasureProfileResponse* response);
absl::Status CompareExact(Core& core, const v1::CompareExactRequest& request, v1::CompareExactResponse* response);
absl::Status GetMetrics(Core& core, const v1::GetMetricsRequest& request, v1::GetMetricsResponse* response);

absl::Status SetFamilyState(Core& core, const v1::SetFamilyStateRequest& request, v1::SetFamilyStateResponse* response);
absl::Status ListFamilyStates(Core& core, const v1::ListFamilyStatesRequest& request,
                              v1::ListFamilyStatesResponse* response);
absl::Status SetDraining(Core& core, const v1::SetDrainingRequest& request, v1::SetDrainingResponse* response);

// RetrievalService.
absl::Status Append(Core& core, const v1::AppendRequest& request, v1::AppendResponse* response);
absl::Status AppendPiece(Core& core, const v1::AppendStreamRequest& request, v1::AppendStreamResponse* totals);
// The tensors of an append, read where they lie, and what it is to report in how many bytes.
struct AppendedTensors {
  TensorBytes keys;
  std::optional<TensorBytes> values, queries;
  RetainedReport report = RetainedReport::kNone;
  int64_t report_bytes = std::numeric_limits<int64_t>::max();
};
// Append without a message, for a caller in the same process; returns the layer's length. Errors name fields inside
// `field`. `retained` may be nullptr where no report is asked for.
absl::StatusOr<int64_t> AppendTensors(Core& core, const v1::SequenceHandle& handle, int layer, int64_t position,
                                      const AppendedTensors& tensors, const std::string& field, Retained* retained,
                                      std::shared_ptr<Index>* index = nullptr);  // where it was appended
absl::Status Retrieve(Core& core, const v1::RetrieveRequest& request, v1::RetrieveResponse* response);
absl::Status Attend(Core& core, const v1::AttendRequest& request, v1::AttendResponse* response);
absl::Status Gather(Core& core, const v1::GatherRequest& request, v1::GatherResponse* response);

// EvictionService.
absl::Status Score(Core& core, const v1::ScoreRequest& request, v1::ScoreResponse* response);
absl::Status Evict(Core& core, const v1::EvictRequest& request, v1::EvictResponse* response);
absl::Status Diagnose(Core& core, const v1::DiagnoseRequest& request, v1::DiagnoseResponse* response);

// SubspaceService.
absl::Status GetBasis(Core& core, const v1::GetBasisRequest& request, v1::GetBasisResponse* response);
absl::Status LoadBasis(Core& core, const v1::LoadBasisRequest& request, v1::LoadBasisResponse* response);
absl::Status CalibrateBasis(Core& core, const v1::CalibrateBasisRequest& request, v1::CalibrateBasisResponse* response);
absl::Status Reconstruct(Core& core, const v1::ReconstructRequest& request, v1::ReconstructResponse* response);

// SharedMemoryService.
absl::Status OpenChannel(Core& core, const v1::OpenChannelRequest& request, v1::OpenChannelResponse* response);

// One Decode stream's steps: appends in order, then the items. Not thread-safe.
class DecodeSession {
 public:
  explicit DecodeSession(Core& core) : core_(core), retriever_(core) {}
  void SetPeer(std::string peer) { peer_ = std::move(peer); }  // for the log
  // Who has opened the stream, and outlives it; nullptr: the server asks for no credentials.
  void SetCaller(const Caller* caller) { caller_ = caller; }
  // Before a step. Not OK: the caller's credential was taken back, or its tenant's quota of steps is used up.
  absl::Status Admit() const;
  // announce() is called, once at most, on this thread, when the answer is near, where the request asks for it.
  void Step(const v1::DecodeRequest& request, v1::DecodeResponse* response, const std::function<void()>& announce);

 private:
  absl::Status TryStep(const v1::DecodeRequest& request, v1::DecodeResponse* response,
                       const ProgressCallback& progress);
  template <typename Search, typename Answers>
  void Answer(Search search, Answers* answers);  // of every item, also where there is no memory to search

  Core& core_;
  Retriever retriever_;
  std::string peer_;
  const Caller* caller_ = nullptr;
  std::shared_ptr<Index> stepped_;  // during a step that is counted: the first index that it names
};

}  // namespace seine

#endif  // SEINE_SERVICE_CALLS_CALLS_H_
