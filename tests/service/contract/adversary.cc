#include "tests/service/contract/adversary.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/stop.h"
#include "service/catalog.h"
#include "service/families/sequence_families.h"
#include "service/transport/counted_step.h"
#include "service/transport/message_bytes.h"
#include "tests/index/test_util.h"

namespace seine::test {
namespace {

constexpr const char* kIndexes[] = {"plain", "low", "own"};
constexpr int32_t kRowStep = 61;      // between rows that are looked at
constexpr char kDoomed[] = "doomed";  // an index for whoever deletes one

const Message* Prototype(const std::string& type) {
  const auto* descriptor = google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(type);
  EXPECT_NE(descriptor, nullptr) << type;
  return google::protobuf::MessageFactory::generated_factory()->GetPrototype(descriptor);
}

}  // namespace

void Adversary::SetUp() {
  rpcs_.clear();
  methods_.clear();
  pristine_.clear();
  Contract::SetUp();
  AddAll();
  MakeDoomed();
  CollectMethods();
  CollectRights();
  for (const char* index : kIndexes) pristine_[index] = StateOf(Pristine(index), true);
}

void Adversary::MakeDoomed() {
  Make(Spec(kDoomed, v1::KV_STORE_KEYS));
  NewSequence(kDoomed, "s");
}

void Adversary::CollectMethods() {
  const auto add = [this](const std::string& service, const std::string& name, const RpcMethod* listed, bool changes) {
    AttackedMethod method;
    method.service = service;
    method.name = name;
    method.listed = listed;
    method.changes = changes;
    method.request = Prototype(absl::StrCat("seine.v1.", name, "Request"));
    method.response = Prototype(absl::StrCat("seine.v1.", name, "Response"));
    methods_.push_back(std::move(method));
  };
  for (const RpcMethod& listed : RpcMethods()) add(listed.service, listed.name, &listed, listed.changes);
  add(kDecodeService, "Decode", nullptr, true);
}

void Adversary::AddRights(const std::string& name, const Message& right) {
  for (AttackedMethod& method : methods_) {
    if (method.name != name) continue;
    method.rights.push_back(method.NewRequest());
    method.rights.back()->CopyFrom(right);
  }
}

void Adversary::CollectRights() {
  for (const Rpc& rpc : rpcs_) {
    const std::string type = rpc.right->GetDescriptor()->name();
    AddRights(type.substr(0, type.size() - strlen("Request")), *rpc.right);
  }
  v1::GetIndexRequest get;
  get.set_name("plain");
  AddRights("GetIndex", get);
  AddRights("ListIndexes", v1::ListIndexesRequest());
  v1::DeleteIndexRequest remove;
  remove.set_name(kDoomed);
  AddRights("DeleteIndex", remove);
  v1::CreateSequenceRequest create;
  create.set_index("plain");
  create.set_id("another");
  AddRights("CreateSequence", create);
  AddRights("GetServerInfo", v1::GetServerInfoRequest());
  AddRights("GetMetrics", v1::GetMetricsRequest());
  for (const AttackedMethod& method : methods_) EXPECT_FALSE(method.rights.empty()) << method.name << ": no request";
}

const AttackedMethod& Adversary::method(const std::string& name) const {
  return *std::find_if(methods_.begin(), methods_.end(), [&](const AttackedMethod& m) { return m.name == name; });
}

absl::Status Adversary::Call(const AttackedMethod& method, const Message& request, Message* answer) {
  answer->Clear();
  if (method.listed != nullptr) return method.listed->call(*core_, request, answer);
  DecodeSession session(*core_);
  CountedStep(*core_, session, StopToken(), absl::OkStatus(), /*parsed=*/true,
              static_cast<const v1::DecodeRequest&>(request), static_cast<v1::DecodeResponse*>(answer), [] {});
  return absl::OkStatus();
}

absl::Status Adversary::CallBytes(const AttackedMethod& method, const std::string& bytes, Message* answer) {
  answer->Clear();
  const grpc::Slice slice(bytes);
  grpc::ByteBuffer in(&slice, 1), out;
  if (method.listed == nullptr) {
    v1::DecodeRequest request;
    if (auto s = Parse(&in, &request); !s.ok()) return s;
    return Call(method, request, answer);
  }
  if (auto s = method.listed->open(*core_)(&in, &out); !s.ok()) return s;
  grpc::Slice whole;
  EXPECT_TRUE(out.DumpToSingleSlice(&whole).ok());
  EXPECT_TRUE(answer->ParseFromArray(whole.begin(), static_cast<int>(whole.size()))) << method.name;
  return absl::OkStatus();
}

std::string Adversary::StateOf(const v1::SequenceHandle& handle, bool values) {
  std::string state;
  for (int i = 0; i < kLayers * kKvHeads; ++i) {
    v1::DescribeHeadRequest describe;
    v1::DescribeHeadResponse head;
    *describe.mutable_handle() = handle;
    describe.set_layer(i / kKvHeads);
    describe.set_kv_head(i % kKvHeads);
    if (!DescribeHead(*core_, describe, &head).ok()) break;  // the index has fewer of them
    absl::StrAppend(&state, head.SerializeAsString());
    if (i % (kKvHeads + 1) != 0) continue;  // of each layer one head's rows
    v1::GatherRequest gather;
    v1::GatherResponse rows;
    *gather.mutable_handle() = handle;
    gather.set_layer(describe.layer());
    gather.set_kv_head(describe.kv_head());
    gather.set_keys(true);
    gather.set_values(values);
    std::vector<int32_t> some;
    for (int32_t p = 0; p < head.num_tokens(); p += kRowStep) some.push_back(p);
    *gather.mutable_positions() = Positions(some);
    // An evicted position refuses the whole: then its error is the state.
    const absl::Status status = Gather(*core_, gather, &rows);
    absl::StrAppend(&state, status.ok() ? rows.SerializeAsString() : std::string(status.message()));
  }
  return state;
}

std::string Adversary::State() {
  for (const auto& index : core_->catalog.List()) testing::WaitForBackground(*index);
  v1::ListIndexesResponse indexes;
  EXPECT_TRUE(ListIndexes(*core_, {}, &indexes).ok());
  std::string state = absl::StrCat(indexes.SerializeAsString(), core_->draining ? "draining" : "");
  for (const v1::IndexInfo& index : indexes.indexes()) {
    v1::ListSequencesRequest list;
    v1::ListSequencesResponse sequences;
    list.set_index(index.spec().name());
    EXPECT_TRUE(ListSequences(*core_, list, &sequences).ok());
    absl::StrAppend(&state, sequences.SerializeAsString());
    const bool values = index.spec().kv_store() == v1::KV_STORE_KEYS_VALUES;
    for (const v1::SequenceInfo& sequence : sequences.sequences()) {
      if (sequence.handle().id() != "pristine") absl::StrAppend(&state, StateOf(sequence.handle(), values));
    }
  }
  return state;
}

void Adversary::DropStrangers() {
  v1::ListIndexesResponse indexes;
  EXPECT_TRUE(ListIndexes(*core_, {}, &indexes).ok());
  for (const v1::IndexInfo& index : indexes.indexes()) {
    const std::string& name = index.spec().name();
    if (std::find(std::begin(kIndexes), std::end(kIndexes), name) == std::end(kIndexes)) {
      v1::DeleteIndexRequest remove;
      v1::DeleteIndexResponse removed;
      remove.set_name(name);
      EXPECT_TRUE(DeleteIndex(*core_, remove, &removed).ok());
      continue;
    }
    core_->families.ForgetIndex("", name);  // a frozen family would not be deleted
    v1::ListSequencesRequest list;
    v1::ListSequencesResponse sequences;
    list.set_index(name);
    EXPECT_TRUE(ListSequences(*core_, list, &sequences).ok());
    for (const v1::SequenceInfo& sequence : sequences.sequences()) {
      v1::DeleteSequenceRequest remove;
      v1::DeleteSequenceResponse removed;
      if (sequence.handle().id() == "pristine") continue;
      *remove.mutable_handle() = sequence.handle();
      EXPECT_TRUE(DeleteSequence(*core_, remove, &removed).ok());
    }
  }
}

bool Adversary::IsWhole() {
  return std::all_of(std::begin(kIndexes), std::end(kIndexes),
                     [this](const char* index) { return StateOf(Pristine(index), true) == pristine_[index]; });
}

void Adversary::Restore() {
  if (!IsWhole()) return SetUp();
  DropStrangers();
  for (const char* index : kIndexes) Renew(index);
  MakeDoomed();
}

}  // namespace seine::test
