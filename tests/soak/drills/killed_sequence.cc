#include "tests/soak/drills/killed_sequence.h"

namespace seine::soak {

v1::SequenceHandle HandleOf(const std::string& id) {
  v1::SequenceHandle handle;
  handle.set_index(kKillIndex);
  handle.set_id(id);
  return handle;
}

bool Delete(Client& client, const std::string& id) {
  grpc::ClientContext context;
  v1::DeleteSequenceRequest request;
  v1::DeleteSequenceResponse response;
  *request.mutable_handle() = HandleOf(id);
  return client.sequence->DeleteSequence(&context, request, &response).ok();
}

std::string AnswersOf(Client& client, const std::string& id) {
  v1::RetrieveRequest request;
  v1::RetrieveResponse response;
  for (int layer = 0; layer < kLayers; ++layer) *request.add_items() = Query(HandleOf(id), layer, layer + 1);
  request.mutable_selector()->set_top_k(64);
  grpc::ClientContext context;
  if (!client.retrieval->Retrieve(&context, request, &response).ok()) return "";
  for (const v1::RetrieveAnswer& answer : response.answers()) {
    if (answer.status().code() != 0) return "";
  }
  response.clear_server_us();
  return response.SerializeAsString();
}

}  // namespace seine::soak
