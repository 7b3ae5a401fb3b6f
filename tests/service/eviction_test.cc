// Eviction over the wire: block prompt processing under a budget, the three calls, and bad input.
#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "profile/scorer_list.h"
#include "seine/v1/eviction_service.grpc.pb.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

class EvictionTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    stub_ = v1::EvictionService::NewStub(stubs_->channel);
  }
  void Create(const v1::IndexSpec& spec) {
    v1::CreateIndexRequest request;
    *request.mutable_spec() = spec;
    v1::CreateIndexResponse response;
    const grpc::Status status = Call(*stubs_->index, &v1::IndexService::Stub::CreateIndex, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  int64_t Retained(const v1::SequenceHandle& handle, int head) {
    v1::DescribeHeadRequest request;
    *request.mutable_handle() = handle;
    request.set_kv_head(head);
    v1::DescribeHeadResponse response;
    EXPECT_TRUE(Call(*stubs_->admin, &v1::AdminService::Stub::DescribeHead, request, &response).ok());
    return response.num_retained();
  }
  std::vector<std::vector<int32_t>> Held(const v1::SequenceHandle& handle) {
    v1::ScoreRequest request;
    *request.mutable_handle() = handle;
    request.mutable_scorer()->set_name("knorm");
    v1::ScoreResponse response;
    EXPECT_TRUE(Call(*stub_, &v1::EvictionService::Stub::Score, request, &response).ok());
    std::vector<std::vector<int32_t>> held;
    for (const auto& head : response.heads()) held.push_back(Ints(head.positions()));
    return held;
  }
  std::unique_ptr<v1::EvictionService::Stub> stub_;
};

// Prompts shorter than a scorer's window, or than the budget, with the queries that there can be.
TEST_P(EvictionTest, ShortPromptsLoseNothing) {
  Create(Spec("short"));
  for (const char* scorer : {"snapkv", "tova", "h2o", "expected_attention"}) {
    for (const int tokens : {1, 10, 63}) {
      SCOPED_TRACE(absl::StrCat(scorer, " at ", tokens));
      const v1::SequenceHandle handle = NewSequence("short");
      int64_t length = 0;
      ASSERT_TRUE(Append(Item(handle, 0, 0, tokens, 1), &length).ok());
      v1::EvictRequest request;
      *request.mutable_handle() = handle;
      request.mutable_scorer()->set_name(scorer);
      if (request.scorer().name() == "expected_attention") request.mutable_scorer()->set_value_norms(false);
      *request.mutable_given()->mutable_queries() = Halves({tokens, kQHeads, kDim}, 3);
      for (const int budget : {100, std::max(1, tokens / 3)}) {
        request.mutable_budget()->set_tokens(budget);
        v1::EvictResponse response;
        const grpc::Status status = Call(*stub_, &v1::EvictionService::Stub::Evict, request, &response);
        ASSERT_TRUE(status.ok()) << status.error_message();
        const bool kept = budget >= tokens || request.scorer().name() == "snapkv";
        EXPECT_EQ(response.tokens_evicted(), kept ? 0 : kKvHeads * (tokens - budget));
      }
    }
  }
}

// A call's softmax scale goes before the index's; either is told from the default by what tova scores.
TEST_P(EvictionTest, TheSoftmaxScaleIsTheCallsOrTheIndexs) {
  v1::IndexSpec plain = Spec("plain"), scaled = Spec("scaled");
  scaled.mutable_retrieval()->set_softmax_scale(.4f);
  Create(plain);
  Create(scaled);
  const auto scores = [&](const std::string& index, float scale) {
    const v1::SequenceHandle handle = NewSequence(index);
    int64_t length = 0;
    EXPECT_TRUE(Append(Item(handle, 0, 0, 50, 1), &length).ok());
    v1::ScoreRequest request;
    *request.mutable_handle() = handle;
    request.mutable_scorer()->set_name("tova");
    *request.mutable_given()->mutable_queries() = Halves({1, kQHeads, kDim}, 3);
    if (scale > 0) request.mutable_given()->set_softmax_scale(scale);
    v1::ScoreResponse response;
    const grpc::Status status = Call(*stub_, &v1::EvictionService::Stub::Score, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.heads(0).scores().raw();
  };
  EXPECT_EQ(scores("plain", .4f), scores("scaled", 0));
  EXPECT_NE(scores("plain", 0), scores("scaled", 0));
  EXPECT_EQ(scores("plain", .1f), scores("scaled", .1f));
  v1::ScoreRequest request;
  *request.mutable_handle() = NewSequence("plain");
  request.mutable_given()->set_softmax_scale(-1);
  v1::ScoreResponse response;
  const grpc::Status status = Call(*stub_, &v1::EvictionService::Stub::Score, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "given.softmax_scale: -1 is not in [0, 10000]");
}

// 32K tokens in blocks of 128 under a budget of 2,048.
TEST_P(EvictionTest, BlocksUnderABudgetThenRetrievalAmongWhatIsRetained) {
  constexpr int64_t kTokens = 32768, kBlock = 128, kBudget = 2048;
  v1::IndexSpec spec = Spec("blocks");
  spec.mutable_eviction()->mutable_budget()->set_tokens(kBudget);
  spec.mutable_eviction()->mutable_keep()->set_sinks(4);
  Create(spec);
  const v1::SequenceHandle handle = NewSequence("blocks");
  for (int64_t begin = 0; begin < kTokens; begin += kBlock) {
    int64_t length = 0;
    const grpc::Status status = Append(Item(handle, 0, begin, kBlock, begin + 1), &length);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(length, begin + kBlock);
    for (int h = 0; h < kKvHeads; ++h) ASSERT_LE(Retained(handle, h), kBudget + kBlock);
  }
  const auto held = Held(handle);
  v1::RetrieveRequest request;
  *request.add_items() = Query(handle, 0);
  request.mutable_selector()->set_top_k(50);
  request.mutable_selector()->set_scope(v1::SCOPE_PER_KV_HEAD);
  v1::RetrieveResponse response;
  ASSERT_TRUE(Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Retrieve, request, &response).ok());
  const v1::RetrieveAnswer& answer = response.answers(0);
  ASSERT_EQ(answer.status().code(), 0);
  EXPECT_EQ(answer.path(), v1::SEARCH_MODE_INDEX);
  EXPECT_EQ(answer.num_tokens(), kTokens);
  EXPECT_EQ(answer.zone_begin(), 0);
  EXPECT_EQ(answer.zone_end(), kTokens);
  ASSERT_EQ(answer.dense_positions_size(), kKvHeads);
  const std::vector<int32_t> positions = Ints(answer.positions());
  for (int h = 0; h < kKvHeads; ++h) {
    EXPECT_LE(held[h].size(), static_cast<size_t>(kBudget + kBlock));
    const std::vector<int32_t> dense = Ints(answer.dense_positions(h));
    for (int i = 0; i < 50; ++i) {
      const int32_t p = positions[h * 50 + i];
      EXPECT_TRUE(std::binary_search(held[h].begin(), held[h].end(), p)) << p;
      EXPECT_FALSE(std::binary_search(dense.begin(), dense.end(), p)) << p;
    }
    for (int32_t sink = 0; sink < 4; ++sink) EXPECT_EQ(held[h][sink], sink);
  }
  // Rows of a retained token are those that were appended at its position.
  const int32_t position = positions[25];
  const int64_t block = position / kBlock * kBlock;
  v1::GatherRequest gather;
  *gather.mutable_handle() = handle;
  *gather.mutable_positions() = Positions({position});
  gather.set_keys(true);
  v1::GatherResponse rows;
  ASSERT_TRUE(Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Gather, gather, &rows).ok());
  const std::string appended = Item(handle, 0, block, kBlock, block + 1).keys().raw();
  EXPECT_EQ(rows.keys().raw(), appended.substr((position - block) * kKvHeads * kDim * 2, kDim * 2));
}

TEST_P(EvictionTest, EvictsByCallAndDiagnoses) {
  Create(Spec("plain"));
  const v1::SequenceHandle handle = NewSequence("plain");
  ASSERT_TRUE(Append(Item(handle, 0, 0, 500)).ok());
  v1::EvictRequest request;
  *request.mutable_handle() = handle;
  request.mutable_budget()->set_ratio(.75);
  request.set_dry_run(true);
  v1::EvictResponse dry, done;
  ASSERT_TRUE(Call(*stub_, &v1::EvictionService::Stub::Evict, request, &dry).ok());
  EXPECT_EQ(Retained(handle, 0), 500);
  request.set_dry_run(false);
  ASSERT_TRUE(Call(*stub_, &v1::EvictionService::Stub::Evict, request, &done).ok());
  EXPECT_EQ(Ints(done.kept(0)).size(), 125u);
  EXPECT_EQ(Ints(done.kept(1)), Ints(dry.kept(1)));
  EXPECT_EQ(done.tokens_evicted(), 2 * 375);
  EXPECT_GT(done.bytes_freed(), 0);
  EXPECT_EQ(Held(handle)[0], Ints(done.kept(0)));

  v1::DiagnoseRequest diagnose;
  *diagnose.mutable_handle() = handle;
  for (const char* name : {"keydiff", "manifoldkv"}) diagnose.add_scorers()->set_name(name);
  v1::DiagnoseResponse diagnosis;
  const grpc::Status status = Call(*stub_, &v1::EvictionService::Stub::Diagnose, diagnose, &diagnosis);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(diagnosis.heads_size(), kKvHeads);
  EXPECT_EQ(diagnosis.heads(0).tokens(), 125);
  EXPECT_EQ(diagnosis.heads(0).overlap().raw().size(), 4 * sizeof(float));
}

// By SnapKV, with the queries that blocks of a prompt carry and then with those that decode steps ask: what calls with
// the same queries keep.
TEST_P(EvictionTest, AnIndexEvictsByTheQueriesThatItSaw) {
  constexpr int64_t kBlock = 64, kBudget = 192;
  v1::IndexSpec spec = Spec("own");
  spec.mutable_eviction()->mutable_budget()->set_tokens(kBudget);
  spec.mutable_eviction()->set_interval(kBlock);
  v1::ScorerSettings* scorer = spec.mutable_eviction()->mutable_scorer();
  scorer->set_name("snapkv");
  scorer->set_query_window(16);
  Create(spec);
  Create(Spec("called"));
  const v1::SequenceHandle handle = NewSequence("own"), called = NewSequence("called");
  v1::EvictRequest request;
  *request.mutable_handle() = called;
  *request.mutable_scorer() = *scorer;
  request.mutable_budget()->set_tokens(kBudget);
  v1::EvictResponse response;
  for (int64_t begin = 0; begin < 512; begin += kBlock) {
    const v1::Tensor queries = Halves({16, kQHeads, kDim}, begin + 7);
    v1::AppendItem item = Item(handle, 0, begin, kBlock, begin + 1);
    *item.mutable_queries() = queries;
    const grpc::Status status = Append(item);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_TRUE(Append(Item(called, 0, begin, kBlock, begin + 1)).ok());
    EXPECT_LE(Retained(handle, 0), kBudget);
    if (Retained(called, 0) < kBudget + kBlock) continue;
    *request.mutable_given()->mutable_queries() = queries;
    ASSERT_TRUE(Call(*stub_, &v1::EvictionService::Stub::Evict, request, &response).ok());
  }
  EXPECT_EQ(Held(handle), Held(called));

  // Without queries tokens are taken until the layer is full; a decode step's question then makes room.
  ASSERT_TRUE(Append(Item(handle, 0, 512, kBlock, 1)).ok());
  EXPECT_EQ(Retained(handle, 0), kBudget + kBlock);
  v1::RetrieveRequest ask;
  *ask.add_items() = Query(handle, 0);
  v1::RetrieveResponse answers;
  ASSERT_TRUE(Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Retrieve, ask, &answers).ok());
  ASSERT_TRUE(Append(Item(handle, 0, 512 + kBlock, 1, 2)).ok());
  EXPECT_EQ(Retained(handle, 0), kBudget + 1);

  v1::ScoreRequest score;  // by the queries kept
  *score.mutable_handle() = handle;
  *score.mutable_scorer() = *scorer;
  v1::ScoreResponse scores;
  EXPECT_TRUE(Call(*stub_, &v1::EvictionService::Stub::Score, score, &scores).ok());
  v1::GetIndexRequest get;
  get.set_name("own");
  v1::GetIndexResponse index;
  ASSERT_TRUE(Call(*stubs_->index, &v1::IndexService::Stub::GetIndex, get, &index).ok());
  EXPECT_EQ(index.index().spec().eviction().keep_queries(), 16);
  EXPECT_EQ(index.index().spec().eviction().scorer().query_window(), 16);
  EXPECT_EQ(index.index().query_bytes(), 16 * kQHeads * kDim * 4);
}

TEST_P(EvictionTest, AppendedQueriesAreCheckedAndMissed) {
  v1::IndexSpec spec = Spec("own");
  spec.mutable_eviction()->mutable_budget()->set_tokens(100);
  spec.mutable_eviction()->set_interval(50);
  spec.mutable_eviction()->mutable_scorer()->set_name("tova");
  Create(spec);
  Create(Spec("plain"));
  const auto fails = [&](const v1::SequenceHandle& handle, const v1::Tensor& queries) {
    v1::AppendItem item = Item(handle, 0, 0, 10);
    *item.mutable_queries() = queries;
    return DetailsOf(Append(item)).field;
  };
  const v1::SequenceHandle handle = NewSequence("own");
  EXPECT_EQ(fails(handle, Halves({4, kKvHeads, kDim}, 1)), "item.queries.shape");
  EXPECT_EQ(fails(handle, Halves({kQHeads, kDim}, 1)), "item.queries.shape");
  EXPECT_EQ(fails(handle, Halves({0, kQHeads, kDim}, 1)), "item.queries.shape");
  EXPECT_EQ(fails(handle, Positions({1})), "item.queries.shape");
  EXPECT_EQ(fails(handle, Halves({11, kQHeads, kDim}, 1)), "item.queries");
  EXPECT_EQ(fails(NewSequence("plain"), Halves({1, kQHeads, kDim}, 1)), "item.queries");

  const grpc::Status full = Append(Item(handle, 0, 0, 200));
  EXPECT_EQ(full.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DetailsOf(full).field, "item.queries");
  EXPECT_EQ(Retained(handle, 0), 0);  // none of it stays, though there was room for some
  v1::AppendItem again = Item(handle, 0, 0, 200);
  *again.mutable_queries() = Halves({200, kQHeads, kDim}, 3);
  EXPECT_TRUE(Append(again).ok());
  EXPECT_EQ(Retained(handle, 0), 100);

  v1::CreateIndexRequest create;
  *create.mutable_spec() = spec;
  create.mutable_spec()->set_name("none");
  create.mutable_spec()->mutable_eviction()->set_keep_queries(0);
  v1::CreateIndexResponse created;
  const grpc::Status status = Call(*stubs_->index, &v1::IndexService::Stub::CreateIndex, create, &created);
  EXPECT_EQ(DetailsOf(status).field, "spec.eviction.keep_queries");
}

TEST_P(EvictionTest, BadInputNamesTheField) {
  Create(Spec("plain"));
  const v1::SequenceHandle handle = NewSequence("plain");
  ASSERT_TRUE(Append(Item(handle, 0, 0, 300)).ok());
  const auto field = [&](void (*spoil)(v1::EvictRequest*)) {
    v1::EvictRequest request;
    *request.mutable_handle() = handle;
    request.mutable_budget()->set_tokens(100);
    spoil(&request);
    v1::EvictResponse response;
    return DetailsOf(Call(*stub_, &v1::EvictionService::Stub::Evict, request, &response)).field;
  };
  EXPECT_EQ(field([](v1::EvictRequest* r) { r->mutable_scorer()->set_name("x"); }), "scorer.name");
  EXPECT_EQ(field([](v1::EvictRequest* r) { r->mutable_scorer()->set_window(5); }), "scorer.window");
  EXPECT_EQ(field([](v1::EvictRequest* r) { r->mutable_scorer()->set_anchor(static_cast<v1::Anchor>(77)); }),
            "scorer.anchor");
  EXPECT_EQ(field([](v1::EvictRequest* r) { r->clear_budget(); }), "budget.tokens");
  EXPECT_EQ(field([](v1::EvictRequest* r) { r->mutable_budget()->set_ratio(2); }), "budget.ratio");
  EXPECT_EQ(field([](v1::EvictRequest* r) { r->mutable_keep()->set_recent_share(1); }), "keep.recent_share");
  EXPECT_EQ(field([](v1::EvictRequest* r) { *r->mutable_keep()->mutable_positions() = Halves({3}, 1); }),
            "keep.positions.dtype");
  EXPECT_EQ(field([](v1::EvictRequest* r) { r->mutable_scorer()->set_name("tova"); }), "given.queries");
  EXPECT_EQ(field([](v1::EvictRequest* r) {
              *r->mutable_given()->mutable_queries() = Halves({2, kDim}, 1);
            }),
            "given.queries.shape");
  EXPECT_EQ(field([](v1::EvictRequest* r) {
              *r->mutable_given()->mutable_filters() = Halves({1, kDim}, 1);
            }),
            "given.filters.shape");
  EXPECT_EQ(field([](v1::EvictRequest* r) { r->mutable_handle()->set_id("nobody"); }), "handle");

  v1::CreateIndexRequest create;
  *create.mutable_spec() = Spec("bad");
  create.mutable_spec()->mutable_eviction()->mutable_budget()->set_ratio(.5);
  v1::CreateIndexResponse created;
  grpc::Status status = Call(*stubs_->index, &v1::IndexService::Stub::CreateIndex, create, &created);
  EXPECT_EQ(DetailsOf(status).field, "spec.eviction.budget.tokens");
  create.mutable_spec()->mutable_eviction()->set_profile("nobody");
  status = Call(*stubs_->index, &v1::IndexService::Stub::CreateIndex, create, &created);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(DetailsOf(status).field, "spec.eviction.profile");
}

INSTANTIATE_TEST_SUITE_P(Services, EvictionTest, ::testing::Bool());

// The other way round does not compile: conversions and flags name every option of the list.
TEST(ScorerSettings, HaveAFieldForEachOptionOfTheListAndNoOther) {
  std::set<std::string> options = {"name"};
#define SEINE_OPTION_NAME(Type, name, ...) options.insert(#name);
  SEINE_FOR_EACH_SCORER_OPTION(SEINE_OPTION_NAME)
#undef SEINE_OPTION_NAME
  std::set<std::string> fields;
  const google::protobuf::Descriptor& wire = *v1::ScorerSettings::descriptor();
  for (int i = 0; i < wire.field_count(); ++i) fields.insert(wire.field(i)->name());
  EXPECT_EQ(fields, options);
}

}  // namespace
}  // namespace seine::test
