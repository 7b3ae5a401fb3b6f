// Subspaces over the wire: settings and their defaults, bases out and in, ranges read back, measures, and bad input.
#include <cmath>
#include <cstring>

#include "absl/strings/match.h"
#include "seine/v1/subspace_service.grpc.pb.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

constexpr int64_t kTokens = 400;

v1::IndexSpec LowRankSpec(const std::string& name) {
  v1::IndexSpec spec = Spec(name, v1::KV_STORE_KEYS_VALUES);
  spec.mutable_subspace()->set_key_rank(24);
  spec.mutable_subspace()->set_value_rank(33);
  return spec;
}

class SubspaceTest : public ServerTest {
 protected:
  using Stub = v1::SubspaceService::Stub;

  void SetUp() override {
    ServerTest::SetUp();
    stub_ = v1::SubspaceService::NewStub(stubs_->channel);
  }
  grpc::Status Create(const v1::IndexSpec& spec, v1::CreateIndexResponse* response) {
    v1::CreateIndexRequest request;
    *request.mutable_spec() = spec;
    return Call(*stubs_->index, &v1::IndexService::Stub::CreateIndex, request, response);
  }
  v1::SequenceHandle Filled(const std::string& index) {
    const v1::SequenceHandle handle = NewSequence(index);
    v1::AppendItem item = Item(handle, 0, 0, kTokens);
    *item.mutable_values() = Halves({kTokens, kKvHeads, kDim}, 99);
    EXPECT_TRUE(Append(item).ok());
    return handle;
  }
  grpc::Status Get(const v1::SequenceHandle& handle, v1::GetBasisResponse* response) {
    v1::GetBasisRequest request;
    *request.mutable_handle() = handle;
    return Call(*stub_, &Stub::GetBasis, request, response);
  }
  grpc::Status Load(const v1::SequenceHandle& handle, const v1::LayerBases& bases,
                    v1::KeyFrame frame = v1::KEY_FRAME_UNSPECIFIED) {
    v1::LoadBasisRequest request;
    *request.mutable_handle() = handle;
    *request.mutable_bases() = bases;
    request.set_frame(frame);
    v1::LoadBasisResponse response;
    return Call(*stub_, &Stub::LoadBasis, request, &response);
  }
  std::unique_ptr<Stub> stub_;
};

TEST_P(SubspaceTest, SettingsComeBackWithTheirDefaults) {
  v1::CreateIndexResponse created;
  v1::IndexSpec spec = LowRankSpec("low");
  spec.mutable_subspace()->set_error_threshold(.25);
  ASSERT_TRUE(Create(spec, &created).ok());
  const v1::SubspaceSettings& s = created.index().spec().subspace();
  EXPECT_EQ(s.key_rank(), 24);
  EXPECT_EQ(s.value_rank(), 33);
  EXPECT_EQ(s.frame(), v1::KEY_FRAME_POST_ROPE);
  EXPECT_EQ(s.interval(), 32);
  EXPECT_EQ(s.error_threshold(), .25);
  EXPECT_EQ(s.version_tokens(), 16384);
  EXPECT_EQ(s.carried_to(), 32768);
  EXPECT_EQ(s.full_rank(), .02);
}

TEST_P(SubspaceTest, OjakvsOwnSettingsComeBackAndMakeTheSameAgain) {
  v1::IndexSpec spec = LowRankSpec("low");
  v1::SubspaceSettings& s = *spec.mutable_subspace();
  s.set_interval(256);
  s.set_absolute_rate(true);
  s.set_prompt_pool(4);
  s.set_full_rank(.125);
  s.set_full_rank_queries(32);
  s.set_full_rank_pool(7);
  s.clear_key_rank();
  for (int l = 0; l < spec.geometry().num_layers(); ++l) s.add_key_ranks(20 + l);
  v1::CreateIndexResponse created, again;
  ASSERT_TRUE(Create(spec, &created).ok());
  const v1::SubspaceSettings got = created.index().spec().subspace();
  EXPECT_EQ(got.interval(), 256);
  EXPECT_TRUE(got.absolute_rate());
  EXPECT_EQ(got.learning_rate(), .1);  // the paper's
  EXPECT_FALSE(got.has_max_gain());
  EXPECT_EQ(got.prompt_pool(), 4);
  EXPECT_EQ(got.prompt_learning_rate(), .1);
  EXPECT_EQ(got.full_rank_queries(), 32);
  EXPECT_EQ(got.full_rank_pool(), 7);
  EXPECT_EQ(got.key_rank(), 0);
  EXPECT_EQ(got.key_ranks(0), 20);
  EXPECT_EQ(got.value_rank(), 33);
  v1::IndexSpec described = created.index().spec();
  described.set_name("again");
  ASSERT_TRUE(Create(described, &again).ok());
  EXPECT_EQ(again.index().spec().subspace().SerializeAsString(), got.SerializeAsString());

  // Without queries the blocks' tokens are chosen otherwise, which is told; bases have the layer's own rank.
  const v1::SequenceHandle handle = Filled("low");
  v1::GetBasisResponse bases;
  ASSERT_TRUE(Get(handle, &bases).ok());
  EXPECT_EQ(bases.bases().keys().shape(2), 20);
  EXPECT_GT(bases.heads(0).blocks_without_queries(), 0);
  EXPECT_EQ(bases.heads(0).keys().updates(), 1);  // the prompt's
}

TEST_P(SubspaceTest, BasesGoOutAndIn) {
  v1::CreateIndexResponse created;
  ASSERT_TRUE(Create(LowRankSpec("low"), &created).ok());
  const v1::SequenceHandle handle = Filled("low");
  v1::GetBasisResponse got;
  ASSERT_TRUE(Get(handle, &got).ok());
  ASSERT_EQ(got.heads_size(), kKvHeads);
  EXPECT_EQ(got.frame(), v1::KEY_FRAME_POST_ROPE);
  EXPECT_EQ(got.bases().keys().shape(2), 24);
  EXPECT_EQ(got.bases().values().raw().size(), kKvHeads * kDim * 33 * sizeof(float));
  EXPECT_EQ(got.heads(1).low_rank_tokens(), (kTokens - kSink - kLocal) / kBuffer * kBuffer);
  EXPECT_EQ(got.heads(1).code_bytes(), got.heads(1).low_rank_tokens() * (24 + 33) * 2);
  EXPECT_EQ(got.heads(1).keys().rows(), got.heads(1).low_rank_tokens());
  EXPECT_GT(got.heads(0).keys().residual(), 0);
  EXPECT_LT(got.heads(0).keys().residual(), 1);

  // Another sequence begins with them, before its first token.
  const v1::SequenceHandle other = NewSequence("low");
  v1::GetBasisResponse nothing, same;
  EXPECT_EQ(Get(other, &nothing).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  ASSERT_TRUE(Load(other, got.bases(), got.frame()).ok());
  ASSERT_TRUE(Get(other, &same).ok());
  EXPECT_EQ(same.bases().keys().raw(), got.bases().keys().raw());

  v1::DescribeHeadRequest describe;
  *describe.mutable_handle() = handle;
  v1::DescribeHeadResponse head;
  ASSERT_TRUE(Call(*stubs_->admin, &v1::AdminService::Stub::DescribeHead, describe, &head).ok());
  EXPECT_EQ(head.subspace().code_bytes(), got.heads(0).code_bytes());
  EXPECT_GT(head.store_bytes(), head.subspace().code_bytes() + head.subspace().basis_bytes());
}

TEST_P(SubspaceTest, RangesReadAsGatherDoes) {
  v1::CreateIndexResponse created;
  ASSERT_TRUE(Create(LowRankSpec("low"), &created).ok());
  const v1::SequenceHandle handle = Filled("low");
  v1::ReconstructRequest request;
  *request.mutable_handle() = handle;
  request.set_kv_head(1);
  request.set_begin(10);
  request.set_end(30);
  v1::ReconstructResponse range;
  ASSERT_TRUE(Call(*stub_, &Stub::Reconstruct, request, &range).ok());
  v1::GatherRequest gather;
  *gather.mutable_handle() = handle;
  gather.set_kv_head(1);
  *gather.mutable_positions() = range.positions();
  gather.set_keys(true);
  gather.set_values(true);
  v1::GatherResponse rows;
  ASSERT_TRUE(Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Gather, gather, &rows).ok());
  EXPECT_EQ(Ints(range.positions()).front(), 10);
  EXPECT_EQ(range.keys().shape(0), 20);
  EXPECT_EQ(range.keys().raw(), rows.keys().raw());
  EXPECT_EQ(range.values().raw(), rows.values().raw());
  // The sink is as it came, the zone is not.
  const v1::Tensor keys = Item(handle, 0, 0, kTokens).keys();
  const size_t row = kDim * 2, token = kKvHeads * row;
  EXPECT_EQ(std::memcmp(range.keys().raw().data(), keys.raw().data() + 10 * token + row, row), 0);
  EXPECT_NE(std::memcmp(range.keys().raw().data() + 10 * row, keys.raw().data() + 20 * token + row, row), 0);

  const auto field = [&](void (*spoil)(v1::ReconstructRequest*)) {
    v1::ReconstructRequest wrong = request;
    spoil(&wrong);
    v1::ReconstructResponse response;
    const grpc::Status status = Call(*stub_, &Stub::Reconstruct, wrong, &response);
    EXPECT_FALSE(status.ok());
    return DetailsOf(status).field;
  };
  EXPECT_EQ(field([](v1::ReconstructRequest* r) { r->set_end(kTokens + 1); }), "end");
  EXPECT_EQ(field([](v1::ReconstructRequest* r) { r->set_begin(31); }), "begin");
  EXPECT_EQ(field([](v1::ReconstructRequest* r) { r->set_end(int64_t{1} << 40); }), "end");
  EXPECT_EQ(field([](v1::ReconstructRequest* r) { r->set_kv_head(kKvHeads); }), "kv_head");
  EXPECT_EQ(field([](v1::ReconstructRequest* r) { r->set_layer(-1); }), "layer");
}

TEST_P(SubspaceTest, BadInputNamesTheField) {
  const auto field = [&](void (*spoil)(v1::IndexSpec*)) {
    v1::IndexSpec spec = LowRankSpec("bad");
    spoil(&spec);
    v1::CreateIndexResponse response;
    const grpc::Status status = Create(spec, &response);
    EXPECT_FALSE(status.ok());
    return DetailsOf(status).field;
  };
  EXPECT_EQ(field([](v1::IndexSpec* s) { s->mutable_subspace()->set_key_rank(0); }), "spec.subspace.key_rank");
  EXPECT_EQ(field([](v1::IndexSpec* s) { s->mutable_subspace()->set_full_rank(1); }), "spec.subspace.full_rank");
  EXPECT_EQ(field([](v1::IndexSpec* s) { s->mutable_subspace()->set_energy(.9); }),
            "spec.subspace.energy");            // and ranks
  for (const double energy : {.9, 0.0, 2.0}) {  // without a profile; outside (0, 1]
    v1::IndexSpec spec = Spec("bad", v1::KV_STORE_KEYS_VALUES);
    spec.mutable_subspace()->set_energy(energy);
    v1::CreateIndexResponse response;
    const grpc::Status status = Create(spec, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(DetailsOf(status).field, "spec.subspace.energy") << energy;
  }
  EXPECT_EQ(field([](v1::IndexSpec* s) { s->mutable_subspace()->set_interval(0); }), "spec.subspace.interval");
  using S = v1::SubspaceSettings;
  const auto refused_setting = [&](void (*spoil)(S*)) {
    v1::IndexSpec spec = LowRankSpec("bad");
    spoil(spec.mutable_subspace());
    v1::CreateIndexResponse response;
    const grpc::Status status = Create(spec, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return DetailsOf(status).field;
  };
  EXPECT_EQ(refused_setting([](S* s) { s->set_interval(257); }), "spec.subspace.interval");
  EXPECT_EQ(refused_setting([](S* s) { s->set_learning_rate(std::nan("")); }), "spec.subspace.learning_rate");
  EXPECT_EQ(refused_setting([](S* s) { s->set_absolute_rate(true), s->set_max_gain(1); }), "spec.subspace.max_gain");
  EXPECT_EQ(refused_setting([](S* s) { s->set_prompt_pool(-1); }), "spec.subspace.prompt_pool");
  EXPECT_EQ(refused_setting([](S* s) { s->set_prompt_learning_rate(.1); }), "spec.subspace.prompt_learning_rate");
  EXPECT_EQ(refused_setting([](S* s) { s->set_prompt_pool(4), s->set_prompt_learning_rate(std::nan("")); }),
            "spec.subspace.prompt_learning_rate");
  EXPECT_EQ(refused_setting([](S* s) { s->set_full_rank(0), s->set_full_rank_queries(32); }),
            "spec.subspace.full_rank_queries");
  EXPECT_EQ(refused_setting([](S* s) { s->set_full_rank(0), s->set_full_rank_pool(1); }),
            "spec.subspace.full_rank_pool");
  EXPECT_EQ(refused_setting([](S* s) { s->set_full_rank(.1), s->set_full_rank_pool(2); }),
            "spec.subspace.full_rank_pool");
  EXPECT_EQ(refused_setting([](S* s) { s->set_full_rank(.1), s->set_full_rank_queries(1025); }),
            "spec.subspace.full_rank_queries");
  EXPECT_EQ(refused_setting([](S* s) { s->add_key_ranks(8); }), "spec.subspace.key_ranks");
  EXPECT_EQ(refused_setting([](S* s) { s->set_energy_by_layer(true); }), "spec.subspace.energy_by_layer");
  EXPECT_EQ(refused_setting([](S* s) { s->set_stack_queries(true); }), "spec.subspace.stack_queries");
  EXPECT_EQ(field([](v1::IndexSpec* s) { s->mutable_subspace()->set_profile("none"); }), "spec.subspace.profile");
  EXPECT_EQ(field([](v1::IndexSpec* s) { s->mutable_subspace()->set_frame(static_cast<v1::KeyFrame>(9)); }),
            "spec.subspace.frame");
  EXPECT_EQ(field([](v1::IndexSpec* s) { s->set_kv_store(v1::KV_STORE_KEYS); }), "spec.kv_store");

  v1::CreateIndexResponse created;
  ASSERT_TRUE(Create(LowRankSpec("low"), &created).ok());
  ASSERT_TRUE(Create(Spec("plain"), &created).ok());
  const v1::SequenceHandle handle = Filled("low"), plain = NewSequence("plain");
  v1::GetBasisResponse got;
  ASSERT_TRUE(Get(handle, &got).ok());
  v1::GetBasisResponse refused;
  EXPECT_EQ(Get(plain, &refused).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DetailsOf(Load(handle, got.bases(), v1::KEY_FRAME_PRE_ROPE)).field, "frame");
  v1::LayerBases wrong = got.bases();
  wrong.mutable_keys()->set_shape(2, 23);
  EXPECT_EQ(DetailsOf(Load(handle, wrong)).field, "bases.keys.raw");
  wrong = got.bases();
  *wrong.mutable_values() = wrong.keys();
  EXPECT_EQ(DetailsOf(Load(handle, wrong)).field, "bases.values");
  wrong = got.bases();
  wrong.mutable_keys()->mutable_raw()->replace(0, 4, "\0\0\x80\x7f", 4);  // infinity
  EXPECT_EQ(DetailsOf(Load(handle, wrong)).field, "bases.keys");

  v1::CalibrateBasisRequest calibrate;
  calibrate.set_index("low");
  calibrate.set_profile("none");
  v1::CalibrateBasisResponse response;
  EXPECT_EQ(DetailsOf(Call(*stub_, &Stub::CalibrateBasis, calibrate, &response)).field, "profile");
  calibrate.set_index("plain");
  EXPECT_EQ(DetailsOf(Call(*stub_, &Stub::CalibrateBasis, calibrate, &response)).field, "index");
}

INSTANTIATE_TEST_SUITE_P(Services, SubspaceTest, ::testing::Bool());

}  // namespace
}  // namespace seine::test
