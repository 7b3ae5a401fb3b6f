// Reports of retained positions on the wire: a stream's pieces are reported as one append would be, what passes the
// message limit is refused before anything is appended, and unknown reports are named.
#include <string>

#include "absl/strings/str_cat.h"
#include "seine/v1/eviction_service.grpc.pb.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

constexpr int64_t kPieceTokens = 70, kTextTokens = 5 * kPieceTokens;

class RetainedTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    eviction_ = v1::EvictionService::NewStub(stubs_->channel);
    v1::CreateIndexRequest request;
    *request.mutable_spec() = Spec("evicting");
    request.mutable_spec()->mutable_eviction()->mutable_scorer()->set_name("knorm");
    request.mutable_spec()->mutable_eviction()->mutable_budget()->set_tokens(60);
    request.mutable_spec()->mutable_eviction()->set_interval(20);
    v1::CreateIndexResponse response;
    ASSERT_TRUE(Call(*stubs_->index, &v1::IndexService::Stub::CreateIndex, request, &response).ok());
  }

  // Tokens [position, position + tokens) of the one text that is appended here.
  v1::AppendItem Part(const v1::SequenceHandle& handle, int64_t position, int64_t tokens, v1::RetainedReport report) {
    static const std::string all = Halves({kTextTokens, kKvHeads, kDim}, 5).raw();
    v1::AppendItem item = Item(handle, 0, position, tokens);
    constexpr int64_t kRow = int64_t{kKvHeads} * kDim * 2;
    item.mutable_keys()->set_raw(all.substr(position * kRow, tokens * kRow));
    item.set_report(report);
    return item;
  }

  v1::AppendResponse Append(const v1::AppendItem& item) {
    v1::AppendRequest request;
    *request.mutable_item() = item;
    v1::AppendResponse response;
    const grpc::Status status = Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Append, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  grpc::Status Stream(const std::vector<v1::AppendItem>& items, v1::AppendStreamResponse* totals) {
    grpc::ClientContext context;
    auto writer = stubs_->retrieval->AppendStream(&context, totals);
    v1::AppendStreamRequest request;
    for (const v1::AppendItem& item : items) {
      *request.mutable_item() = item;
      writer->Write(request);
    }
    writer->WritesDone();
    return writer->Finish();
  }

  void Evict(const v1::SequenceHandle& handle, int64_t tokens) {
    v1::EvictRequest request;
    *request.mutable_handle() = handle;
    request.mutable_scorer()->set_name("streaming_llm");
    request.mutable_budget()->set_tokens(tokens);
    v1::EvictResponse response;
    ASSERT_TRUE(Call(*eviction_, &v1::EvictionService::Stub::Evict, request, &response).ok());
    EXPECT_FALSE(response.has_retained());
  }

  std::unique_ptr<v1::EvictionService::Stub> eviction_;
};

TEST_P(RetainedTest, PiecesAreReportedAsOneAppend) {
  for (const auto report : {v1::RETAINED_REPORT_DROPPED, v1::RETAINED_REPORT_KEPT}) {
    const v1::Retained whole = Append(Part(NewSequence("evicting"), 0, kTextTokens, report)).retained();
    EXPECT_EQ(Ints(whole.counts()), (std::vector<int32_t>(kKvHeads, static_cast<int32_t>(Ints(whole.counts())[0]))));
    EXPECT_GT(whole.evictions(), 10);
    std::vector<v1::AppendItem> pieces;
    const v1::SequenceHandle handle = NewSequence("evicting");
    for (int64_t at = 0; at < kTextTokens; at += kPieceTokens) pieces.push_back(Part(handle, at, kPieceTokens, report));
    pieces.insert(pieces.begin() + 3, pieces[2]);  // a replay
    v1::AppendStreamResponse totals;
    ASSERT_TRUE(Stream(pieces, &totals).ok());
    ASSERT_EQ(totals.retained_size(), 1);
    EXPECT_EQ(totals.retained(0).handle().id(), handle.id());
    EXPECT_EQ(totals.retained(0).retained().SerializeAsString(), whole.SerializeAsString());
  }
}

TEST_P(RetainedTest, LayersAndReportsOfAStreamAreApart) {
  const v1::SequenceHandle one = NewSequence("evicting"), other = NewSequence("evicting");
  v1::AppendItem second_layer = Part(one, 0, 10, v1::RETAINED_REPORT_KEPT);
  second_layer.set_layer(1);
  v1::AppendStreamResponse totals;
  ASSERT_TRUE(Stream({Part(one, 0, 30, v1::RETAINED_REPORT_DROPPED), Part(one, 30, 30, v1::RETAINED_REPORT_KEPT),
                      second_layer, Part(other, 0, 5, v1::RETAINED_REPORT_UNSPECIFIED),
                      Part(other, 5, 5, v1::RETAINED_REPORT_DROPPED), Part(one, 60, 40, v1::RETAINED_REPORT_DROPPED)},
                     &totals)
                  .ok());
  ASSERT_EQ(totals.retained_size(), 5);
  EXPECT_EQ(totals.retained(0).retained().report(), v1::RETAINED_REPORT_DROPPED);
  EXPECT_EQ(totals.retained(0).retained().num_tokens(), 30);
  EXPECT_TRUE(totals.retained(0).retained().dropped().empty());
  EXPECT_EQ(totals.retained(1).retained().kept_size(), kKvHeads);
  EXPECT_EQ(totals.retained(2).layer(), 1);
  EXPECT_EQ(totals.retained(3).handle().id(), other.id());
  EXPECT_EQ(totals.retained(3).retained().num_tokens(), 10);
  EXPECT_EQ(totals.retained(4).retained().evictions_before(), totals.retained(1).retained().evictions());
}

// Another caller evicts between two pieces: the report does not follow on what its reader knew.
TEST_P(RetainedTest, AGapBetweenPiecesShows) {
  const v1::SequenceHandle handle = NewSequence("evicting");
  Append(Part(handle, 0, 50, v1::RETAINED_REPORT_UNSPECIFIED));
  grpc::ClientContext context;
  v1::AppendStreamResponse totals;
  auto writer = stubs_->retrieval->AppendStream(&context, &totals);
  v1::AppendStreamRequest request;
  *request.mutable_item() = Part(handle, 50, 50, v1::RETAINED_REPORT_DROPPED);
  ASSERT_TRUE(writer->Write(request));
  while (Append(Part(handle, 0, 1, v1::RETAINED_REPORT_KEPT)).num_tokens() < 100) {
  }
  Evict(handle, 10);
  *request.mutable_item() = Part(handle, 100, 50, v1::RETAINED_REPORT_DROPPED);
  ASSERT_TRUE(writer->Write(request));
  writer->WritesDone();
  ASSERT_TRUE(writer->Finish().ok());
  ASSERT_EQ(totals.retained_size(), 1);
  EXPECT_GT(totals.retained(0).retained().evictions_before(), 1);
}

TEST_P(RetainedTest, AnUnknownReportIsNamed) {
  const v1::SequenceHandle handle = NewSequence("evicting");
  v1::AppendRequest request;
  *request.mutable_item() = Part(handle, 0, 5, static_cast<v1::RetainedReport>(9));
  v1::AppendResponse response;
  grpc::Status status = Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Append, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(status).field, "item.report");
  v1::EvictRequest evict;
  *evict.mutable_handle() = handle;
  evict.set_report(static_cast<v1::RetainedReport>(-1));
  evict.mutable_budget()->set_tokens(5);
  v1::EvictResponse evicted;
  status = Call(*eviction_, &v1::EvictionService::Stub::Evict, evict, &evicted);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(status).field, "report");
}

INSTANTIATE_TEST_SUITE_P(Servers, RetainedTest, ::testing::Values(false));

// Messages of at most 64 KiB, which a report could pass.
class SmallMessages : public RetainedTest {
 protected:
  ServerOptions Options() const override {
    ServerOptions options = ServerTest::Options();
    options.core.max_message_bytes = 64 << 10;
    return options;
  }
};

TEST_P(SmallMessages, AReportAboveTheLimitIsRefusedBeforeAnythingIsAppended) {
  v1::CreateIndexRequest create;
  *create.mutable_spec() = Spec("whole");
  v1::CreateIndexResponse created;
  ASSERT_TRUE(Call(*stubs_->index, &v1::IndexService::Stub::CreateIndex, create, &created).ok());
  const v1::SequenceHandle handle = NewSequence("whole");
  int64_t position = 0;
  for (; position < 8200; position += 200) {
    ASSERT_TRUE(ServerTest::Append(Item(handle, 0, position, 200, static_cast<uint32_t>(position))).ok());
  }
  v1::AppendRequest request;
  *request.mutable_item() = Item(handle, 0, position, 1);
  request.mutable_item()->set_report(v1::RETAINED_REPORT_KEPT);
  v1::AppendResponse response;
  const grpc::Status status = Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Append, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(status).field, "item.report") << status.error_message();
  EXPECT_EQ(DetailsOf(status).reason, "OUT_OF_LIMITS");
  request.mutable_item()->clear_report();
  ASSERT_TRUE(Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Append, request, &response).ok());
  EXPECT_EQ(response.num_tokens(), position + 1);
  EXPECT_FALSE(response.has_retained());
}

INSTANTIATE_TEST_SUITE_P(Servers, SmallMessages, ::testing::Values(false));

}  // namespace
}  // namespace seine::test
