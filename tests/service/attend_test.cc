// Attend and Decode steps that attend, over a real socket in both ways of serving and from full-rank and low-rank
// indexes: the index's own answers, and errors.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "service/catalog.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

using grpc::StatusCode;

class AttendCallTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    v1::CreateIndexRequest request;
    *request.mutable_spec() = Spec("low", v1::KV_STORE_KEYS_VALUES);
    request.mutable_spec()->mutable_subspace()->set_key_rank(24);
    request.mutable_spec()->mutable_subspace()->set_value_rank(33);
    v1::CreateIndexResponse response;
    ASSERT_TRUE(Call(*stubs_->index, &v1::IndexService::Stub::CreateIndex, request, &response).ok());
  }
  v1::SequenceHandle Filled(int64_t tokens, const std::string& index = "both") {
    const v1::SequenceHandle handle = NewSequence(index);
    v1::AppendItem item = Item(handle, 0, 0, tokens);
    *item.mutable_values() = Halves({tokens, kKvHeads, kDim}, 2);
    EXPECT_TRUE(Append(item).ok());
    return handle;
  }
  // One item in fp32, so that the index can be asked the same.
  static v1::RetrieveItem FloatQuery(const v1::SequenceHandle& handle, const std::vector<float>& queries) {
    v1::RetrieveItem item;
    *item.mutable_handle() = handle;
    item.mutable_queries()->set_dtype(v1::D_TYPE_FLOAT32);
    item.mutable_queries()->add_shape(kQHeads);
    item.mutable_queries()->add_shape(kDim);
    item.mutable_queries()->set_raw(queries.data(), queries.size() * sizeof(float));
    return item;
  }
  AttendAnswer Direct(const v1::SequenceHandle& handle, const std::vector<float>& queries, Scope scope,
                      const AttentionParams& attention, int64_t prompt_tokens = 0) {
    auto index = server_->core().catalog.Find("", handle.index());
    SearchParams params = index->config().search;
    params.scope = scope;
    params.top_k = 20;
    RetrieveItem item = {{handle.id(), handle.generation()}, 0, queries.data()};
    item.prompt_tokens = prompt_tokens;
    auto answers = index->Attend({&item, 1}, params, attention);
    EXPECT_TRUE(answers.ok()) << answers.status();
    return answers->at(0);
  }
  static std::vector<float> Floats(const v1::Tensor& tensor) {
    std::vector<float> floats(tensor.raw().size() / sizeof(float));
    memcpy(floats.data(), tensor.raw().data(), tensor.raw().size());
    return floats;
  }
  static void ExpectSame(const v1::AttendAnswer& wire, const AttendAnswer& direct) {
    EXPECT_FALSE(wire.has_status());
    EXPECT_EQ(static_cast<int>(wire.path()), static_cast<int>(direct.path) + 1);
    EXPECT_EQ(wire.num_tokens(), direct.num_tokens);
    EXPECT_EQ(wire.attended_tokens(), direct.attended_tokens);
    EXPECT_EQ(wire.tail(), direct.tail);
    ASSERT_EQ(wire.output().shape_size(), 2);
    EXPECT_EQ(wire.output().shape(0), kQHeads);
    EXPECT_EQ(wire.output().shape(1), kDim);
    EXPECT_EQ(wire.output().dtype(), v1::D_TYPE_FLOAT32);
    ASSERT_EQ(wire.log_sum_exp().shape_size(), 1);
    EXPECT_EQ(wire.log_sum_exp().shape(0), kQHeads);
    EXPECT_EQ(Floats(wire.output()), direct.output);
    EXPECT_EQ(Floats(wire.log_sum_exp()), direct.log_sum_exp);
  }
  void DecodeIn(const v1::SequenceHandle& handle);
  static std::vector<float> SomeQueries() {
    std::vector<float> queries(kQHeads * kDim);
    for (size_t i = 0; i < queries.size(); ++i) queries[i] = std::sin(static_cast<float>(i * i));
    return queries;
  }
};

TEST_P(AttendCallTest, AnswersAsTheIndexDoes) {
  const v1::SequenceHandle handle = Filled(400), small = Filled(30);
  const std::vector<float> queries = SomeQueries();
  v1::AttendRequest request;
  *request.add_items() = FloatQuery(handle, queries);
  *request.add_items() = FloatQuery(small, queries);
  *request.add_items() = FloatQuery(handle, queries);
  request.mutable_items(2)->set_layer(99);
  request.mutable_selector()->set_top_k(20);
  v1::AttendResponse response;
  const auto attend = [&] {
    response.Clear();
    const auto status = Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Attend, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(response.answers_size(), 3);
    EXPECT_EQ(response.answers(2).status().code(), StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(DetailsOf(response.answers(2).status()).field, "items[2].layer");
  };
  // Without a scope each query head has a set of its own, whatever the index's default, and the tail is counted in.
  attend();
  ExpectSame(response.answers(0), Direct(handle, queries, Scope::kPerQHead, {}));
  ExpectSame(response.answers(1), Direct(small, queries, Scope::kPerQHead, {}));
  EXPECT_TRUE(response.answers(0).tail());
  EXPECT_EQ(response.answers(1).path(), v1::SEARCH_MODE_DENSE);
  EXPECT_FALSE(response.answers(0).has_selected());
  request.mutable_attention()->set_tail(false);
  request.mutable_attention()->set_scale(.3f);
  request.mutable_attention()->set_with_positions(true);
  attend();
  ExpectSame(response.answers(0), Direct(handle, queries, Scope::kPerQHead, {.tail = false, .scale = .3f}));
  EXPECT_EQ(response.answers(0).selected().positions().shape(0), kQHeads);
  EXPECT_EQ(response.answers(0).selected().positions().shape(1), 20);
  EXPECT_FALSE(response.answers(0).selected().has_scores());
  request.mutable_attention()->set_tail(true);
  request.mutable_selector()->set_scope(v1::SCOPE_PER_KV_HEAD);
  request.mutable_selector()->set_with_scores(true);
  attend();
  ExpectSame(response.answers(0), Direct(handle, queries, Scope::kPerKvHead, {.tail = true, .scale = .3f}));
  EXPECT_EQ(response.answers(0).selected().scores().shape(0), kKvHeads);
}

TEST_P(AttendCallTest, PromptsAsTheIndexDoes) {
  const v1::SequenceHandle handle = Filled(400), low = Filled(400, "low");
  std::vector<float> prompt;
  for (int t = 0; t < 70; ++t) {
    const std::vector<float> row = SomeQueries();
    for (const float x : row) prompt.push_back(x * static_cast<float>(t % 5 - 2));
  }
  v1::AttendRequest request;
  for (const auto* of : {&handle, &low, &handle}) {
    v1::RetrieveItem& item = *request.add_items();
    item = FloatQuery(*of, prompt);
    item.mutable_queries()->clear_shape();
    for (const int dim : {70, kQHeads, kDim}) item.mutable_queries()->add_shape(dim);
  }
  request.mutable_items(2)->mutable_queries()->set_shape(0, 71);
  v1::AttendResponse response;
  const auto status = Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Attend, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const AttendAnswer direct = Direct(handle, prompt, Scope::kPerQHead, {}, 70);
  const v1::AttendAnswer& wire = response.answers(0);
  EXPECT_EQ(std::vector<int64_t>(wire.output().shape().begin(), wire.output().shape().end()),
            (std::vector<int64_t>{70, kQHeads, kDim}));
  EXPECT_EQ(std::vector<int64_t>(wire.log_sum_exp().shape().begin(), wire.log_sum_exp().shape().end()),
            (std::vector<int64_t>{70, kQHeads}));
  EXPECT_EQ(Floats(wire.output()), direct.output);
  EXPECT_EQ(Floats(wire.log_sum_exp()), direct.log_sum_exp);
  EXPECT_EQ(wire.attended_tokens(), direct.attended_tokens);
  EXPECT_EQ(DetailsOf(response.answers(1).status()).field, "items[1].queries");
  EXPECT_EQ(DetailsOf(response.answers(2).status()).field, "items[2].queries.raw");
}

TEST_P(AttendCallTest, AnswersOfALowRankIndexToo) {
  const v1::SequenceHandle low = Filled(400, "low"), both = Filled(400);
  const std::vector<float> queries = SomeQueries();
  v1::AttendRequest request;
  for (const auto* handle : {&low, &both}) *request.add_items() = FloatQuery(*handle, queries);
  request.mutable_selector()->set_top_k(20);
  v1::AttendResponse response;
  const auto status = Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Attend, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ExpectSame(response.answers(0), Direct(low, queries, Scope::kPerQHead, {}));
  ExpectSame(response.answers(1), Direct(both, queries, Scope::kPerQHead, {}));
  EXPECT_TRUE(response.answers(0).tail());
  EXPECT_NE(response.answers(0).output().raw(), response.answers(1).output().raw());
}

TEST_P(AttendCallTest, DecodeStepsAttendOrRetrieve) {
  for (const char* index : {"both", "low"}) DecodeIn(Filled(400, index));
}

void AttendCallTest::DecodeIn(const v1::SequenceHandle& handle) {
  const std::vector<float> queries = SomeQueries();
  grpc::ClientContext context;
  auto stream = stubs_->retrieval->Decode(&context);
  v1::DecodeResponse response;
  for (int i = 0; i < 6; ++i) {
    v1::DecodeRequest step;
    step.set_step(i);
    v1::AppendItem* item = step.add_appends();
    *item = Item(handle, 0, 400 + i, 1, i);
    *item->mutable_values() = Halves({1, kKvHeads, kDim}, 100 + i);
    *step.add_items() = FloatQuery(handle, queries);
    step.mutable_selector()->set_top_k(20);
    const bool attends = i % 2 == 0;
    if (attends) step.mutable_attention();
    ASSERT_TRUE(stream->Write(step));
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_FALSE(response.has_status());
    EXPECT_EQ(response.append_status(0).code(), StatusCode::OK);
    ASSERT_EQ(response.attended_size(), attends ? 1 : 0);
    ASSERT_EQ(response.answers_size(), attends ? 0 : 1);
    if (!attends) continue;
    EXPECT_EQ(response.attended(0).num_tokens(), 401 + i);
    ExpectSame(response.attended(0), Direct(handle, queries, Scope::kPerQHead, {}));
  }
  // Wrong settings fail the step before anything is appended; the stream goes on.
  v1::DecodeRequest wrong;
  v1::AppendItem* item = wrong.add_appends();
  *item = Item(handle, 0, 406, 1, 9);
  *item->mutable_values() = Halves({1, kKvHeads, kDim}, 9);
  *wrong.add_items() = FloatQuery(handle, queries);
  wrong.mutable_attention()->set_scale(-1);
  ASSERT_TRUE(stream->Write(wrong));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status().code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(response.status()).field, "attention.scale");
  EXPECT_EQ(response.append_status_size() + response.attended_size(), 0);
  EXPECT_EQ(Direct(handle, queries, Scope::kPerQHead, {}).num_tokens, 406);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_P(AttendCallTest, EveryFieldWrongOnce) {
  const v1::SequenceHandle both = Filled(300), keys = NewSequence("keys"), none = NewSequence("none");
  const std::vector<float> queries = SomeQueries();
  const struct {
    const char* field;
    StatusCode code;
    std::function<void(v1::AttendRequest*)> spoil;
  } cases[] = {
      {"items", StatusCode::INVALID_ARGUMENT, [](auto* r) { r->clear_items(); }},
      {"attention", StatusCode::FAILED_PRECONDITION, [&](auto* r) { *r->mutable_items(0)->mutable_handle() = keys; }},
      {"attention", StatusCode::FAILED_PRECONDITION, [&](auto* r) { *r->mutable_items(0)->mutable_handle() = none; }},
      {"attention.scale", StatusCode::INVALID_ARGUMENT, [](auto* r) { r->mutable_attention()->set_scale(-1); }},
      {"attention.scale", StatusCode::INVALID_ARGUMENT,
       [](auto* r) { r->mutable_attention()->set_scale(std::numeric_limits<float>::infinity()); }},
      {"attention.scale", StatusCode::INVALID_ARGUMENT,
       [](auto* r) { r->mutable_attention()->set_scale(std::numeric_limits<float>::quiet_NaN()); }},
      {"selector.top_k", StatusCode::INVALID_ARGUMENT, [](auto* r) { r->mutable_selector()->set_top_k(0); }},
      {"selector.scope", StatusCode::INVALID_ARGUMENT,
       [](auto* r) { r->mutable_selector()->set_scope(static_cast<v1::Scope>(9)); }},
  };
  const std::string before = Digest();
  for (const auto& c : cases) {
    v1::AttendRequest request;
    *request.add_items() = FloatQuery(both, queries);
    c.spoil(&request);
    v1::AttendResponse response;
    const auto status = Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Attend, request, &response);
    EXPECT_EQ(status.error_code(), c.code) << c.field << ": " << status.error_message();
    EXPECT_EQ(DetailsOf(status).field, c.field) << status.error_message();
    EXPECT_FALSE(DetailsOf(status).reason.empty());
  }
  EXPECT_EQ(Digest(), before);
  // What a value must be is checked before it is stored.
  v1::AppendItem item = Item(both, 0, 300, 1);
  *item.mutable_values() = Halves({1, kKvHeads, kDim}, 2);
  const uint16_t infinity = 0x7C00;
  memcpy(item.mutable_values()->mutable_raw()->data() + 2 * kDim, &infinity, 2);
  const grpc::Status refused = Append(item);
  EXPECT_EQ(refused.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(refused).field, "item.values");
  EXPECT_NE(refused.error_message().find("position 300, KV head 1"), std::string::npos) << refused.error_message();
  EXPECT_EQ(Digest(), before);
}

INSTANTIATE_TEST_SUITE_P(BothWays, AttendCallTest, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "Polling" : "Default"; });

}  // namespace
}  // namespace seine::test
