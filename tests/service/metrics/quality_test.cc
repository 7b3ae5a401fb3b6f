// Live quality of a server: every way to retrieve is sampled, /metrics and GetMetrics say what was found, and
// CompareExact tells it by head.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "service/metrics/collector.h"
#include "tests/service/channel/raw_channel.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

class QualityTest : public ServerTest {
 protected:
  ServerOptions Options() const override {
    ServerOptions options = ServerTest::Options();
    options.core.quality = {1, 1};
    options.core.expected_recall = .75;
    return options;
  }
  void SetUp() override {
    ServerTest::SetUp();
    handle_ = NewSequence("both", "chat");
    v1::AppendItem item = Item(handle_, 0, 0, 300);
    *item.mutable_values() = item.keys();
    ASSERT_TRUE(Append(item).ok());
  }
  v1::DecodeRequest Step() const {
    v1::DecodeRequest step;
    *step.add_items() = Query(handle_, 0);
    return step;
  }
  v1::IndexMetrics Metrics() {
    v1::GetMetricsResponse response;
    EXPECT_TRUE(Call(*stubs_->admin, &v1::AdminService::Stub::GetMetrics, v1::GetMetricsRequest(), &response).ok());
    for (const v1::IndexMetrics& index : response.indexes()) {
      if (index.name() == "both") return index;
    }
    return {};
  }
  // Waits until so many items were compared.
  void AwaitSamples(int64_t samples, const char* of) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (Metrics().quality_samples() < samples && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    EXPECT_EQ(Metrics().quality_samples(), samples) << of;
  }
  bool Exports(const std::string& line) { return Collector(server_->core()).Text().find(line) != std::string::npos; }

  v1::SequenceHandle handle_;
};

TEST_P(QualityTest, EveryWayToRetrieveIsSampled) {
  v1::RetrieveRequest retrieve;
  v1::RetrieveResponse retrieved;
  *retrieve.add_items() = Query(handle_, 0);
  ASSERT_TRUE(Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Retrieve, retrieve, &retrieved).ok());
  AwaitSamples(1, "Retrieve");
  v1::AttendRequest attend;
  v1::AttendResponse attended;
  *attend.add_items() = Query(handle_, 0);
  ASSERT_TRUE(Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Attend, attend, &attended).ok());
  AwaitSamples(2, "Attend");
  grpc::ClientContext context;
  v1::DecodeResponse answer;
  const auto stream = stubs_->retrieval->Decode(&context);
  ASSERT_TRUE(stream->Write(Step()) && stream->Read(&answer));
  stream->WritesDone();
  ASSERT_TRUE(stream->Finish().ok());
  AwaitSamples(3, "Decode");
  const auto channel = RawChannel::Open(*stubs_);
  ASSERT_NE(channel, nullptr);
  ASSERT_TRUE(channel->Send(Step()) && channel->Read(&answer));
  AwaitSamples(4, "a same-host channel");

  const v1::IndexMetrics metrics = Metrics();
  const int64_t sets = 3 * kKvHeads + kQHeads;  // Attend's are the query heads'
  EXPECT_EQ(metrics.quality_sets(), sets);
  EXPECT_GT(metrics.quality_recall_sum(), 0);
  EXPECT_LE(metrics.quality_recall_sum(), static_cast<double>(sets));
  EXPECT_GT(metrics.quality_attention_mass_sum(), 0);
  EXPECT_EQ(metrics.quality_predicted_sets(), 0) << "rsq predicts nothing";
  EXPECT_TRUE(Exports("seine_quality_samples_total{index=\"both\"} 4"));
  EXPECT_TRUE(Exports("seine_quality_recall_count{index=\"both\"} " + std::to_string(sets)));
  EXPECT_TRUE(Exports("seine_quality_recall_bucket{index=\"both\",le=\"1\"} " + std::to_string(sets)));
  EXPECT_TRUE(Exports("seine_quality_attention_mass_count{index=\"both\"} " + std::to_string(sets)));
  EXPECT_TRUE(Exports("seine_quality_dropped_total{cause=\"budget\"} 0"));
  EXPECT_TRUE(Exports("seine_quality_expected_recall 0.75"));
}

TEST_P(QualityTest, CompareExactTellsEachHead) {
  v1::RetrieveRequest retrieve;
  v1::RetrieveResponse retrieved;
  *retrieve.add_items() = Query(handle_, 0);
  ASSERT_TRUE(Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Retrieve, retrieve, &retrieved).ok());
  AwaitSamples(1, "Retrieve");
  v1::CompareExactRequest request;
  request.set_index("both");
  for (const char* sequence : {"", "chat"}) {
    request.set_sequence(sequence);
    v1::CompareExactResponse response;
    const auto status = Call(*stubs_->admin, &v1::AdminService::Stub::CompareExact, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.compared(), 1);
    ASSERT_EQ(response.heads_size(), kKvHeads);
    for (int h = 0; h < kKvHeads; ++h) {
      EXPECT_EQ(response.heads(h).kv_head(), h);
      EXPECT_EQ(response.heads(h).sets(), 1);
      EXPECT_EQ(response.heads(h).least_recall(), response.heads(h).recall());
      EXPECT_FALSE(response.heads(h).has_predicted_recall());
    }
  }
  EXPECT_EQ(Metrics().quality_samples(), 1) << "a comparison is no sample";
}

INSTANTIATE_TEST_SUITE_P(Serving, QualityTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "polling" : "callbacks"; });

}  // namespace
}  // namespace seine::test
