#include "tests/soak/server/made_requests.h"

#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/soak/server/endpoint.h"

namespace seine::soak {

namespace {

std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const Endpoint& endpoint) {
  if (endpoint.folder.empty()) return grpc::InsecureChannelCredentials();
  std::ifstream file(endpoint.folder + "/server.pem");
  std::stringstream certificate;
  certificate << file.rdbuf();
  return grpc::SslCredentials({certificate.str(), "", ""});
}

}  // namespace

Client::Client(const std::string& text) {
  const Endpoint endpoint = Endpoint::Parse(text);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  channel = grpc::CreateCustomChannel(endpoint.address, CredentialsOf(endpoint), arguments);
  index = v1::IndexService::NewStub(channel);
  sequence = v1::SequenceService::NewStub(channel);
  retrieval = v1::RetrievalService::NewStub(channel);
  eviction = v1::EvictionService::NewStub(channel);
  admin = v1::AdminService::NewStub(channel);
}

v1::IndexSpec Spec(const std::string& name) {
  v1::IndexSpec spec;
  spec.set_name(name);
  auto* geometry = spec.mutable_geometry();
  geometry->set_num_layers(kLayers);
  geometry->set_num_q_heads(kQHeads);
  geometry->set_num_kv_heads(kKvHeads);
  geometry->set_head_dim(kDim);
  geometry->set_dtype(v1::D_TYPE_FLOAT16);
  spec.set_kv_store(v1::KV_STORE_KEYS_VALUES);
  return spec;
}

v1::Tensor Halves(int64_t tokens, int heads, uint32_t seed, uint8_t mark) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::D_TYPE_FLOAT16);
  if (tokens > 0) tensor.add_shape(tokens);
  tensor.add_shape(heads);
  tensor.add_shape(kDim);
  const auto rows = static_cast<size_t>(std::max<int64_t>(tokens, 1) * heads);
  std::string* raw = tensor.mutable_raw();
  raw->resize(rows * kDim * 2);
  uint32_t state = seed * 2654435761u + 1;
  for (size_t i = 0; i < rows * kDim; ++i) {
    state = state * 1664525u + 1013904223u;
    auto half = static_cast<uint16_t>((state >> 16 & 0x87FFu) | 0x3800u);
    if (i % kDim == 0) half = static_cast<uint16_t>((half & 0xFF00u) | mark);
    memcpy(raw->data() + 2 * i, &half, 2);
  }
  return tensor;
}

v1::AppendItem Item(const v1::SequenceHandle& handle, int layer, int64_t position, int64_t tokens, uint8_t mark) {
  v1::AppendItem item;
  *item.mutable_handle() = handle;
  item.set_layer(layer);
  item.set_position(position);
  *item.mutable_keys() = Halves(tokens, kKvHeads, static_cast<uint32_t>(position) + 1, mark);
  *item.mutable_values() = Halves(tokens, kKvHeads, static_cast<uint32_t>(position) + 2, mark);
  return item;
}

v1::RetrieveItem Query(const v1::SequenceHandle& handle, int layer, uint32_t seed) {
  v1::RetrieveItem item;
  *item.mutable_handle() = handle;
  item.set_layer(layer);
  *item.mutable_queries() = Halves(0, kQHeads, seed, static_cast<uint8_t>(seed));
  return item;
}

v1::SequenceHandle Prompt(Client& client, const std::string& index, const std::string& id, int64_t tokens,
                          uint8_t mark) {
  constexpr int64_t kStep = 16384;
  {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::CreateIndexRequest request;
    v1::CreateIndexResponse response;
    *request.mutable_spec() = Spec(index);
    const grpc::Status status = client.index->CreateIndex(&context, request, &response);
    if (!status.ok() && status.error_code() != grpc::ALREADY_EXISTS) return {};
  }
  grpc::ClientContext context;
  v1::CreateSequenceRequest request;
  v1::CreateSequenceResponse response;
  request.set_index(index);
  request.set_id(id);
  if (!client.sequence->CreateSequence(&context, request, &response).ok()) return {};
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int64_t at = 0; at < tokens; at += kStep) {
      grpc::ClientContext append;
      v1::AppendRequest piece;
      v1::AppendResponse appended;
      *piece.mutable_item() = Item(response.handle(), layer, at, std::min(kStep, tokens - at), mark);
      if (!client.retrieval->Append(&append, piece, &appended).ok()) return {};
    }
  }
  return response.handle();
}

}  // namespace seine::soak
