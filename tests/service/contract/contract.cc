#include "tests/service/contract/contract.h"

#include <cmath>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "service/families/sequence_families.h"
#include "service/profiles.h"
#include "service/snapshots/files/snapshot_folder.h"
#include "tests/index/synthetic_model.h"

namespace seine::test {
namespace {

CoreOptions ContractOptions(const std::string& profiles) {
  CoreOptions options;
  options.threads = 1;
  options.workers = 1;
  options.profiles = *Profiles::Open(profiles);
  return options;
}

}  // namespace

v1::Tensor Singles(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  v1::Tensor tensor;
  tensor.set_dtype(v1::D_TYPE_FLOAT32);
  for (const int64_t dim : shape) tensor.add_shape(dim), count *= dim;
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<float>(i * i % 101));
  tensor.set_raw(values.data(), values.size() * sizeof(float));
  return tensor;
}

void Contract::SetUp() {
  const testing::MadeUpModel model({.num_layers = kLayers,
                                    .num_q_heads = kQHeads,
                                    .num_kv_heads = kKvHeads,
                                    .head_dim = kDim,
                                    .dtype = DType::kFloat16});
  Profile profile = *model.Measure(256);
  profile.rope_json.clear();
  ASSERT_TRUE(WriteProfile(profile, ProfilePrecision::kFloat32, dir_.path + "/made.profile.safetensors").ok());
  core_ = std::make_unique<Core>(ContractOptions(dir_.path), MakeCpuBackend(1));
  v1::IndexSpec low = Spec("low", v1::KV_STORE_KEYS_VALUES), own = Spec("own", v1::KV_STORE_KEYS_VALUES);
  low.mutable_subspace()->set_key_rank(24);
  low.mutable_subspace()->set_value_rank(33);
  own.mutable_eviction()->mutable_scorer()->set_name("snapkv");
  own.mutable_eviction()->mutable_scorer()->set_query_window(8);
  own.mutable_eviction()->mutable_budget()->set_tokens(300);
  for (v1::IndexSpec spec : {Spec("plain", v1::KV_STORE_KEYS_VALUES), low, own}) {
    spec.mutable_retrieval()->set_gate(0);  // whose counts change behind a call
    Make(spec);
    const v1::SequenceHandle pristine = NewSequence(spec.name(), "pristine");
    for (int layer = 0; layer < kLayers; ++layer) ASSERT_TRUE(Fill(pristine, layer, kHeld, false).ok());
    Renew(spec.name());
  }
  int removed = 0;
  core_->snapshots = *SnapshotFolder::Open({.folder = dir_.path + "/snapshots"}, &removed);
  v1::SnapshotRequest write;
  v1::SnapshotResponse written;
  *write.mutable_handle() = Pristine("plain");
  write.set_file("pristine");
  write.set_scope(v1::SNAPSHOT_SCOPE_SEQUENCE);
  ASSERT_TRUE(Snapshot(*core_, write, &written).ok());
  v1::RetrieveRequest ask;  // for whoever measures queries
  *ask.add_items() = Query(Pristine("plain"), 0);
  v1::RetrieveResponse answer;
  ASSERT_TRUE(Retrieve(*core_, ask, &answer).ok());
}

void Contract::Make(const v1::IndexSpec& spec) {
  v1::CreateIndexRequest request;
  v1::CreateIndexResponse response;
  *request.mutable_spec() = spec;
  const absl::Status status = CreateIndex(*core_, request, &response);
  ASSERT_TRUE(status.ok()) << status;
}

v1::SequenceHandle Contract::NewSequence(const std::string& index, const std::string& id) {
  v1::CreateSequenceRequest request;
  v1::CreateSequenceResponse response;
  request.set_index(index);
  request.set_id(id);
  EXPECT_TRUE(CreateSequence(*core_, request, &response).ok());
  return response.handle();
}

v1::AppendItem Contract::Tokens(const v1::SequenceHandle& handle, int layer, int64_t position, int64_t count) {
  v1::AppendItem item = Item(handle, layer, position, count, static_cast<uint32_t>(position) + 3);
  *item.mutable_values() = Halves({count, kKvHeads, kDim}, static_cast<uint32_t>(position) + 4);
  return item;
}

absl::Status Contract::Fill(const v1::SequenceHandle& handle, int layer, int64_t count, bool queries) {
  v1::AppendRequest request;
  v1::AppendResponse response;
  *request.mutable_item() = Tokens(handle, layer, 0, count);
  if (queries) *request.mutable_item()->mutable_queries() = Singles({count, kQHeads, kDim});
  return Append(*core_, request, &response);
}

v1::SequenceHandle Contract::Named(const std::string& index, const std::string& id) {
  v1::SequenceHandle handle;
  handle.set_index(index);
  handle.set_id(id);
  return handle;
}

void Contract::Renew(const std::string& index) {
  core_->families.ForgetIndex("", index);  // a frozen one would not be deleted
  core_->draining = false;
  v1::DeleteSequenceRequest remove;
  v1::DeleteSequenceResponse removed;
  for (const char* id : {"work", "copy"}) {
    *remove.mutable_handle() = Named(index, id);
    DeleteSequence(*core_, remove, &removed).IgnoreError();
  }
  v1::ForkSequenceRequest fork;
  v1::ForkSequenceResponse forked;
  *fork.mutable_source() = Pristine(index);
  fork.set_new_id("work");
  EXPECT_TRUE(ForkSequence(*core_, fork, &forked).ok());
  generations_[index] = forked.handle().generation();
}

std::string Contract::Digest(const std::string& index) {
  std::string digest;
  v1::ListIndexesResponse indexes;
  EXPECT_TRUE(ListIndexes(*core_, {}, &indexes).ok());
  digest += indexes.SerializeAsString();
  v1::ListSequencesRequest list;
  v1::ListSequencesResponse sequences;
  list.set_index(index);
  EXPECT_TRUE(ListSequences(*core_, list, &sequences).ok());
  digest += sequences.SerializeAsString();
  std::vector<int32_t> all(kHeld);
  std::iota(all.begin(), all.end(), 0);
  for (int i = 0; i < kLayers * kKvHeads; ++i) {
    v1::DescribeHeadRequest describe;
    v1::DescribeHeadResponse head;
    *describe.mutable_handle() = Work(index);
    describe.set_layer(i / kKvHeads);
    describe.set_kv_head(i % kKvHeads);
    EXPECT_TRUE(DescribeHead(*core_, describe, &head).ok());
    digest += head.SerializeAsString();
    v1::GatherRequest gather;
    v1::GatherResponse rows;
    *gather.mutable_handle() = Work(index);
    gather.set_layer(i / kKvHeads);
    gather.set_kv_head(i % kKvHeads);
    *gather.mutable_positions() = Positions(all);
    gather.set_keys(true);
    gather.set_values(true);
    EXPECT_TRUE(Gather(*core_, gather, &rows).ok());
    digest += rows.SerializeAsString();
  }
  return digest;
}

absl::Status Contract::StatusOfCall(const Rpc& rpc, const Message& request, Message* answer) {
  answer->Clear();
  const absl::Status status = rpc.call(request, answer);
  if (!status.ok()) return status;
  const v1::Status* failure = FirstFailure(*answer);
  if (failure == nullptr) return status;
  return absl::Status(static_cast<absl::StatusCode>(failure->code()), failure->message());
}

bool Contract::Legal(const Rpc& rpc, const FieldPlace& place, Integer value, const std::string& index) const {
  const std::string& leaf = place.field()->name();
  if (const auto rule = rpc.legal.find(place.rule()); rule != rpc.legal.end()) return rule->second(value);
  if (leaf == "generation") return value == 0 || value == generations_.at(index);
  if (leaf == "layer") return value >= 0 && value < kLayers;
  if (leaf == "kv_head") return value >= 0 && value < kKvHeads;
  return false;
}

void Contract::ExpectNamed(const Message& request, const FieldPlace& place, const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
      break;
    default:
      ADD_FAILURE() << status;
  }
  const std::string message(status.message()), named = message.substr(0, message.find(": "));
  EXPECT_TRUE(PathExists(request.GetDescriptor(), named)) << status;
  const std::string path = place.path(), parent = path.substr(0, path.rfind('.'));
  const bool near = absl::StartsWith(path, named) || absl::StartsWith(named, parent);
  EXPECT_TRUE(near || absl::StrContains(message, place.field()->name())) << status;
}

std::string Contract::IndexOf(const Message& request) {
  for (const char* name : {"low", "own"}) {
    if (absl::StrContains(request.ShortDebugString(), absl::StrCat("index: \"", name, "\""))) return name;
  }
  return "plain";
}

}  // namespace seine::test
