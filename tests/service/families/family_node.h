// A server of its own that families move from and to by SetFamilyState, Snapshot and Restore.
#ifndef SEINE_TESTS_SERVICE_FAMILIES_FAMILY_NODE_H_
#define SEINE_TESTS_SERVICE_FAMILIES_FAMILY_NODE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "service/calls/convert/convert.h"
#include "service/core.h"
#include "tests/service/fixture.h"

namespace seine::test {

// A server with an index "a" and a folder of snapshots that others have too.
class Node {
 public:
  // `idle`: it has an idle tier too, which spills when it is told to.
  Node(const std::string& folder, const std::string& name, bool idle = false) {
    ServerOptions options;
    if (idle) options.idle = {.folder = folder + "/" + name};
    options.listen = "unix:" + folder + "/" + name + ".sock";
    options.core.threads = 1;
    options.core.workers = 2;
    options.snapshots.folder = folder + "/snapshots";
    options.indexes.push_back(*ConfigFrom(Spec("a"), "spec", nullptr));
    server_ = *Server::Start(options);
    stubs_ = std::make_unique<Stubs>(server_->address());
  }

  static v1::SequenceHandle Named(const std::string& id) {
    v1::SequenceHandle handle;
    handle.set_index("a");
    handle.set_id(id);
    return handle;
  }
  grpc::Status Create(const std::string& id) {
    v1::CreateSequenceRequest request;
    v1::CreateSequenceResponse response;
    request.set_index("a");
    request.set_id(id);
    return Call(*stubs_->sequence, &v1::SequenceService::Stub::CreateSequence, request, &response);
  }
  grpc::Status Append(const std::string& id, int64_t position, int64_t tokens, int layer = 0) {
    v1::AppendRequest request;
    v1::AppendResponse response;
    *request.mutable_item() = Item(Named(id), layer, position, tokens);
    return Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Append, request, &response);
  }
  grpc::Status Fork(const std::string& id, const std::string& fork) {
    v1::ForkSequenceRequest request;
    v1::ForkSequenceResponse response;
    *request.mutable_source() = Named(id);
    request.set_new_id(fork);
    return Call(*stubs_->sequence, &v1::SequenceService::Stub::ForkSequence, request, &response);
  }
  grpc::Status Truncate(const std::string& id) {
    v1::TruncateSequenceRequest request;
    v1::TruncateSequenceResponse response;
    *request.mutable_handle() = Named(id);
    request.set_position(10);
    return Call(*stubs_->sequence, &v1::SequenceService::Stub::TruncateSequence, request, &response);
  }
  grpc::Status Delete(const std::string& id) {
    v1::DeleteSequenceRequest request;
    v1::DeleteSequenceResponse response;
    *request.mutable_handle() = Named(id);
    return Call(*stubs_->sequence, &v1::SequenceService::Stub::DeleteSequence, request, &response);
  }
  // What a query finds, without the time; or, where it fails, the item's status.
  v1::RetrieveAnswer Ask(const std::string& id) {
    v1::RetrieveRequest request;
    v1::RetrieveResponse response;
    *request.add_items() = Query(Named(id), 0);
    request.mutable_selector()->set_with_scores(true);
    EXPECT_TRUE(Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Retrieve, request, &response).ok());
    return response.answers_size() == 1 ? response.answers(0) : v1::RetrieveAnswer();
  }
  grpc::Status Snapshot(const std::string& id, const std::string& file) {
    v1::SnapshotRequest request;
    v1::SnapshotResponse response;
    *request.mutable_handle() = Named(id);
    request.set_file(file);
    return Call(*stubs_->sequence, &v1::SequenceService::Stub::Snapshot, request, &response);
  }
  grpc::Status Restore(const std::string& file) {
    v1::RestoreRequest request;
    v1::RestoreResponse response;
    request.set_index("a");
    request.set_file(file);
    return Call(*stubs_->sequence, &v1::SequenceService::Stub::Restore, request, &response);
  }
  grpc::Status Set(v1::SetFamilyStateRequest request, v1::SetFamilyStateResponse* response) {
    request.set_index("a");
    request.set_family("chat");
    return Call(*stubs_->admin, &v1::AdminService::Stub::SetFamilyState, request, response);
  }
  std::string Freeze(int64_t sequences) {
    v1::SetFamilyStateRequest request;
    v1::SetFamilyStateResponse response;
    request.set_state(v1::FAMILY_STATE_FROZEN);
    const grpc::Status status = Set(request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.sequences(), sequences);
    return response.freeze();
  }
  grpc::Status Thaw(const std::string& freeze) {
    v1::SetFamilyStateRequest request;
    v1::SetFamilyStateResponse response;
    request.set_state(v1::FAMILY_STATE_SERVING);
    request.set_freeze(freeze);
    return Set(request, &response);
  }
  grpc::Status GiveUp(const std::string& freeze) {
    v1::SetFamilyStateRequest request;
    v1::SetFamilyStateResponse response;
    request.set_state(v1::FAMILY_STATE_MOVED);
    request.set_freeze(freeze);
    request.set_node("n1");
    request.set_address("host:7700");
    request.set_generation(4);
    return Set(request, &response);
  }

  template <typename Method, typename Request, typename Response>
  grpc::Status CallSequences(Method method, const Request& request, Response* response) {
    return Call(*stubs_->sequence, method, request, response);
  }

  // Returns whether it drained before.
  bool SetDraining(bool draining) {
    v1::SetDrainingRequest request;
    v1::SetDrainingResponse response;
    request.set_draining(draining);
    EXPECT_TRUE(Call(*stubs_->admin, &v1::AdminService::Stub::SetDraining, request, &response).ok());
    return response.was_draining();
  }

  Core& core() { return server_->core(); }

 private:
  std::unique_ptr<Server> server_;
  std::unique_ptr<Stubs> stubs_;
};

}  // namespace seine::test

#endif  // SEINE_TESTS_SERVICE_FAMILIES_FAMILY_NODE_H_
