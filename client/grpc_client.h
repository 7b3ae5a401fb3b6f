// The client over gRPC. Private to the library. Thread-safe, as client.h says.
#ifndef SEINE_CLIENT_GRPC_CLIENT_H_
#define SEINE_CLIENT_GRPC_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/channel.h"
#include "client/client.h"
#include "client/convert/convert.h"
#include "client/fork.h"
#include "seine/v1/admin_service.grpc.pb.h"
#include "seine/v1/eviction_service.grpc.pb.h"
#include "seine/v1/index_service.grpc.pb.h"
#include "seine/v1/retrieval_service.grpc.pb.h"
#include "seine/v1/sequence_service.grpc.pb.h"
#include "seine/v1/subspace_service.grpc.pb.h"

namespace seine::client {

class GrpcClient final : public Client {
 public:
  GrpcClient(std::string endpoint, const Options& options, std::shared_ptr<grpc::Channel> channel)
      : endpoint_(std::move(endpoint)),
        options_(options),
        channel_(std::move(channel)),
        indexes_(v1::IndexService::NewStub(channel_)),
        sequences_(v1::SequenceService::NewStub(channel_)),
        retrieval_(v1::RetrievalService::NewStub(channel_)),
        eviction_(v1::EvictionService::NewStub(channel_)),
        subspace_(v1::SubspaceService::NewStub(channel_)),
        admin_(v1::AdminService::NewStub(channel_)) {}
  ~GrpcClient() override {
    if (!made_.here()) KeepForEver(channel_);
  }

  absl::StatusOr<bool> IsServing(const std::string& service) override;
  absl::StatusOr<v1::GetServerInfoResponse> GetServerInfo() override;
  absl::StatusOr<HeadInfo> DescribeHead(const Sequence& sequence, int layer, int kv_head) override;
  absl::StatusOr<Profile> MeasureProfile(absl::Span<const Sequence> sequences, int layer) override;

  absl::StatusOr<v1::IndexInfo> CreateIndex(const v1::IndexSpec& spec) override;
  absl::StatusOr<v1::IndexInfo> GetIndex(const std::string& name) override;
  absl::StatusOr<std::vector<v1::IndexInfo>> ListIndexes() override;
  absl::Status DeleteIndex(const std::string& name) override;

  absl::StatusOr<Sequence> CreateSequence(const std::string& index, const std::string& id) override;
  absl::StatusOr<SequenceInfo> GetSequence(const Sequence& sequence) override;
  absl::StatusOr<std::vector<SequenceInfo>> ListSequences(const std::string& index) override;
  absl::Status DeleteSequence(const Sequence& sequence) override;
  absl::StatusOr<Sequence> ForkSequence(const Sequence& source, const std::string& new_id,
                                        std::optional<int64_t> position) override;
  absl::StatusOr<SequenceInfo> TruncateSequence(const Sequence& sequence, int64_t position) override;
  using Client::Restore;
  using Client::Snapshot;
  absl::StatusOr<SnapshotResult> Snapshot(const Sequence& sequence, const std::string& file,
                                          const SnapshotParams& params) override;
  absl::StatusOr<SnapshotResult> Restore(const std::string& index, const std::string& file,
                                         const RestoreParams& params) override;

  absl::StatusOr<int64_t> Append(const AppendItem& item, Retained* retained) override;
  absl::StatusOr<AppendTotals> AppendStream(absl::Span<const AppendItem> items,
                                            const std::function<void(int64_t)>& progress) override;
  absl::StatusOr<RetrieveResult> Retrieve(absl::Span<const RetrieveItem> items, const v1::Selector& selector) override;
  absl::StatusOr<AttendResult> Attend(absl::Span<const RetrieveItem> items, const v1::Selector& selector,
                                      const v1::Attention& attention) override;
  absl::StatusOr<Gathered> Gather(const Sequence& sequence, int layer, int kv_head, absl::Span<const int32_t> positions,
                                  bool keys, bool values) override;
  absl::StatusOr<Evicted> Evict(const EvictRequest& request) override;
  absl::StatusOr<std::vector<HeadScores>> Score(const Sequence& sequence, int layer, const v1::ScorerSettings& scorer,
                                                const Given& given) override;
  absl::StatusOr<std::vector<HeadDiagnosis>> Diagnose(const DiagnoseRequest& request) override;
  absl::StatusOr<LayerSubspace> GetBasis(const Sequence& sequence, int layer) override;
  absl::Status LoadBasis(const Sequence& sequence, int layer, const LayerBases& bases) override;
  absl::StatusOr<LayerBases> CalibrateBasis(const CalibrateRequest& request) override;
  absl::StatusOr<Reconstructed> Reconstruct(const Sequence& sequence, int layer, int kv_head, int64_t begin,
                                            int64_t end) override;
  absl::StatusOr<std::unique_ptr<DecodeStream>> OpenDecodeStream(Transport transport) override {
    if (absl::Status here = made_.Check(); !here.ok()) return here;
    return OpenAnyDecodeStream(channel_, endpoint_, options_, transport);
  }
  std::unique_ptr<JsonCall> OpenCall(const Method& method) override {
    auto call = made_.here() ? OpenJsonCall(channel_, endpoint_, options_.timeout, method) : nullptr;
    return OfThisProcess(std::move(call), made_);
  }

 private:
  void SetDeadline(grpc::ClientContext* context) const {
    if (options_.timeout != absl::InfiniteDuration()) {
      context->set_deadline(absl::ToChronoTime(absl::Now() + options_.timeout));
    }
  }

  // One unary call with a deadline.
  template <typename Stub, typename Request, typename Response>
  absl::Status Call(const std::unique_ptr<Stub>& stub,
                    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) const {
    if (absl::Status here = made_.Check(); !here.ok()) return here;
    grpc::ClientContext context;
    SetDeadline(&context);
    return FromGrpc((stub.get()->*method)(&context, request, response), endpoint_);
  }

  template <typename Result, typename Request, typename Response>
  absl::StatusOr<Result> CallWithItems(grpc::Status (v1::RetrievalService::Stub::*method)(grpc::ClientContext*,
                                                                                          const Request&, Response*),
                                       absl::Span<const RetrieveItem> items, const v1::Selector& selector,
                                       const std::function<void(Request*)>& add) const;

  absl::StatusOr<int64_t> PieceBytes();

  const MadeHere made_;
  const std::string endpoint_;
  const Options options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::IndexService::Stub> indexes_;
  const std::unique_ptr<v1::SequenceService::Stub> sequences_;
  const std::unique_ptr<v1::RetrievalService::Stub> retrieval_;
  const std::unique_ptr<v1::EvictionService::Stub> eviction_;
  const std::unique_ptr<v1::SubspaceService::Stub> subspace_;
  const std::unique_ptr<v1::AdminService::Stub> admin_;
  std::atomic<int64_t> piece_bytes_{0};  // 0: not asked yet
};

}  // namespace seine::client

#endif  // SEINE_CLIENT_GRPC_CLIENT_H_
