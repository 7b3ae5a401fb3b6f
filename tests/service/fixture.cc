#include "tests/service/fixture.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>

namespace seine::test {
namespace {

std::string MakeTempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "seine-test-XXXXXX").string();
  return mkdtemp(pattern.data());
}

}  // namespace

TempDir::TempDir() : path(MakeTempDir()) {}
TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

Stubs::Stubs(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  index = v1::IndexService::NewStub(channel);
  sequence = v1::SequenceService::NewStub(channel);
  retrieval = v1::RetrievalService::NewStub(channel);
  admin = v1::AdminService::NewStub(channel);
}

v1::IndexSpec Spec(const std::string& name, v1::KvStore store) {
  v1::IndexSpec spec;
  spec.set_name(name);
  auto* geometry = spec.mutable_geometry();
  geometry->set_num_layers(kLayers);
  geometry->set_num_q_heads(kQHeads);
  geometry->set_num_kv_heads(kKvHeads);
  geometry->set_head_dim(kDim);
  geometry->set_dtype(v1::D_TYPE_FLOAT16);
  spec.mutable_zones()->set_sink(kSink);
  spec.mutable_zones()->set_local(kLocal);
  spec.mutable_zones()->set_update_buffer(kBuffer);
  spec.mutable_zones()->set_dense_threshold(kDenseThreshold);
  spec.mutable_retrieval()->set_top_k(8);
  spec.mutable_retrieval()->set_candidate_fraction(.05);  // the codes are searched, however short the zone
  spec.set_kv_store(store);
  return spec;
}

v1::Tensor Halves(const std::vector<int64_t>& shape, uint32_t seed) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::D_TYPE_FLOAT16);
  size_t count = 1;
  for (const int64_t dim : shape) {
    tensor.add_shape(dim);
    count *= static_cast<size_t>(dim);
  }
  std::string* raw = tensor.mutable_raw();
  raw->resize(count * 2);
  uint32_t state = seed * 2654435761u + 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    // Sign and mantissa at random, exponent 2^-1 .. 2^0.
    const auto half = static_cast<uint16_t>((state >> 16 & 0x87FFu) | 0x3800u);
    memcpy(raw->data() + 2 * i, &half, 2);
  }
  return tensor;
}

v1::Tensor Positions(const std::vector<int32_t>& positions) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::D_TYPE_INT32);
  tensor.add_shape(static_cast<int64_t>(positions.size()));
  tensor.set_raw(std::string(reinterpret_cast<const char*>(positions.data()), positions.size() * 4));
  return tensor;
}

std::vector<int32_t> Ints(const v1::Tensor& tensor) {
  std::vector<int32_t> values(tensor.raw().size() / 4);
  memcpy(values.data(), tensor.raw().data(), values.size() * 4);
  return values;
}

v1::AppendItem Item(const v1::SequenceHandle& handle, int layer, int64_t position, int64_t tokens, uint32_t seed) {
  v1::AppendItem item;
  *item.mutable_handle() = handle;
  item.set_layer(layer);
  item.set_position(position);
  *item.mutable_keys() = Halves({tokens, kKvHeads, kDim}, seed);
  return item;
}

v1::RetrieveItem Query(const v1::SequenceHandle& handle, int layer, uint32_t seed) {
  v1::RetrieveItem item;
  *item.mutable_handle() = handle;
  item.set_layer(layer);
  *item.mutable_queries() = Halves({kQHeads, kDim}, seed);
  return item;
}

Details DetailsOf(const v1::Status& status) {
  Details details;
  for (const auto& any : status.details()) {
    v1::ErrorInfo info;
    v1::BadRequest bad;
    if (any.type_url() == "type.googleapis.com/google.rpc.ErrorInfo" && info.ParseFromString(any.value())) {
      EXPECT_EQ(info.domain(), "seine");
      details.reason = info.reason();
    } else if (any.type_url() == "type.googleapis.com/google.rpc.BadRequest" && bad.ParseFromString(any.value())) {
      details.field = bad.field_violations(0).field();
    } else if (any.type_url() == "type.googleapis.com/google.rpc.RetryInfo") {
      details.retry = true;
    } else {
      ADD_FAILURE() << "no detail of the wire: " << any.type_url();
    }
  }
  return details;
}

Details DetailsOf(const grpc::Status& status) {
  v1::Status parsed;
  EXPECT_TRUE(parsed.ParseFromString(status.error_details()));
  if (!status.error_details().empty()) {
    EXPECT_EQ(parsed.code(), static_cast<int>(status.error_code()));
    EXPECT_EQ(parsed.message(), status.error_message());
  }
  return DetailsOf(parsed);
}

void ServerTest::SetUp() {
  auto server = Server::Start(Options());
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  stubs_ = std::make_unique<Stubs>(server_->address());
  for (const auto& [name, store] : {std::pair{"keys", v1::KV_STORE_KEYS}, std::pair{"both", v1::KV_STORE_KEYS_VALUES},
                                    std::pair{"none", v1::KV_STORE_NONE}}) {
    v1::CreateIndexRequest request;
    v1::CreateIndexResponse response;
    *request.mutable_spec() = Spec(name, store);
    const grpc::Status status = Call(*stubs_->index, &v1::IndexService::Stub::CreateIndex, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
}

ServerOptions ServerTest::Options() const {
  ServerOptions options;
  options.listen = "unix:" + dir_.path + "/seine.sock";
  options.polling = GetParam();
  options.core.threads = 1;
  options.core.workers = 2;
  return options;
}

v1::SequenceHandle ServerTest::NewSequence(const std::string& index, const std::string& id) {
  v1::CreateSequenceRequest request;
  v1::CreateSequenceResponse response;
  request.set_index(index);
  request.set_id(id);
  const grpc::Status status = Call(*stubs_->sequence, &v1::SequenceService::Stub::CreateSequence, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.handle();
}

grpc::Status ServerTest::Append(const v1::AppendItem& item, int64_t* num_tokens) {
  v1::AppendRequest request;
  v1::AppendResponse response;
  *request.mutable_item() = item;
  const grpc::Status status = Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Append, request, &response);
  if (num_tokens != nullptr) *num_tokens = response.num_tokens();
  return status;
}

std::string ServerTest::Digest() {
  std::string digest;
  v1::ListIndexesResponse indexes;
  EXPECT_TRUE(Call(*stubs_->index, &v1::IndexService::Stub::ListIndexes, v1::ListIndexesRequest(), &indexes).ok());
  digest += indexes.SerializeAsString();
  for (const auto& index : indexes.indexes()) {
    v1::ListSequencesRequest list;
    v1::ListSequencesResponse sequences;
    list.set_index(index.spec().name());
    EXPECT_TRUE(Call(*stubs_->sequence, &v1::SequenceService::Stub::ListSequences, list, &sequences).ok());
    digest += sequences.SerializeAsString();
    for (const auto& sequence : sequences.sequences()) {
      for (int layer = 0; layer < kLayers; ++layer) {
        for (int head = 0; head < kKvHeads; ++head) {
          v1::DescribeHeadRequest describe;
          v1::DescribeHeadResponse description;
          *describe.mutable_handle() = sequence.handle();
          describe.set_layer(layer);
          describe.set_kv_head(head);
          EXPECT_TRUE(Call(*stubs_->admin, &v1::AdminService::Stub::DescribeHead, describe, &description).ok());
          digest += description.SerializeAsString();
          if (index.spec().kv_store() == v1::KV_STORE_NONE) continue;
          v1::GatherRequest gather;
          v1::GatherResponse stored;
          *gather.mutable_handle() = sequence.handle();
          gather.set_layer(layer);
          gather.set_kv_head(head);
          std::vector<int32_t> all(description.num_tokens());
          std::iota(all.begin(), all.end(), 0);
          *gather.mutable_positions() = Positions(all);
          gather.set_keys(true);
          gather.set_values(index.spec().kv_store() == v1::KV_STORE_KEYS_VALUES);
          EXPECT_TRUE(Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Gather, gather, &stored).ok());
          digest += stored.SerializeAsString();
        }
      }
    }
  }
  return digest;
}

}  // namespace seine::test
