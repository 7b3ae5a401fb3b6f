// What /metrics and GetMetrics say of calls that a test has made.
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <thread>

#include "index/memory/memory_budget.h"
#include "service/calls/calls.h"
#include "service/metrics/collector.h"
#include "tests/service/fixture.h"
#include "tests/service/metrics/http_client.h"

namespace seine::test {
namespace {

using Samples = std::map<std::string, double>;  // "name{label="value"}" -> value

Samples Parse(const std::string& text) {
  Samples samples;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    EXPECT_TRUE(samples.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second) << "twice: " << line;
  }
  return samples;
}

std::string Method(const std::string& name, const std::string& service, const std::string& method,
                   const std::string& code = "") {
  const std::string type = method == "Decode" ? "bidi_stream" : method == "AppendStream" ? "client_stream" : "unary";
  return name + "{grpc_type=\"" + type + "\",grpc_service=\"seine.v1." + service + "\",grpc_method=\"" + method + "\"" +
         (code.empty() ? "" : ",grpc_code=\"" + code + "\"") + "}";
}

// Empty where there is no such index.
v1::IndexMetrics IndexOf(const v1::GetMetricsResponse& response, const std::string& name) {
  for (const v1::IndexMetrics& index : response.indexes()) {
    if (index.name() == name) return index;
  }
  ADD_FAILURE() << "no index " << name;
  return {};
}

class MetricsTest : public ServerTest {
 protected:
  ServerOptions Options() const override {
    ServerOptions options = ServerTest::Options();
    options.metrics_listen = "127.0.0.1:0";
    return options;
  }
  void SetUp() override {
    ServerTest::SetUp();  // which makes some indexes
    Create("m");
  }
  void Create(const std::string& name) {
    v1::CreateIndexRequest request;
    *request.mutable_spec() = Spec(name, v1::KV_STORE_KEYS_VALUES);
    v1::CreateIndexResponse response;
    const auto status = Call(*stubs_->index, &v1::IndexService::Stub::CreateIndex, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  void Delete(const std::string& name) {
    v1::DeleteIndexRequest request;
    request.set_name(name);
    v1::DeleteIndexResponse response;
    ASSERT_TRUE(Call(*stubs_->index, &v1::IndexService::Stub::DeleteIndex, request, &response).ok());
  }
  Samples Scrape() {
    const HttpAnswer answer = Http(server_->core().metrics_address, "GET", "/metrics");
    EXPECT_EQ(answer.code, 200);
    EXPECT_NE(answer.headers.find("text/plain; version=0.0.4"), std::string::npos);
    return Parse(answer.body);
  }
  v1::AppendItem Tokens(const v1::SequenceHandle& handle, int64_t position, int64_t count) {
    v1::AppendItem item = Item(handle, 0, position, count);
    *item.mutable_values() = item.keys();
    return item;
  }
  // One stream of `steps` steps, each an append and an item.
  void Decode(const v1::SequenceHandle& handle, int64_t position, int steps) {
    grpc::ClientContext context;
    const auto stream = stubs_->retrieval->Decode(&context);
    for (int i = 0; i < steps; ++i) {
      v1::DecodeRequest request;
      request.set_step(i);
      *request.add_appends() = Tokens(handle, position + i, 1);
      *request.add_items() = Query(handle, 0);
      v1::DecodeResponse response;
      ASSERT_TRUE(stream->Write(request) && stream->Read(&response));
      ASSERT_FALSE(response.has_status()) << response.status().message();
    }
    stream->WritesDone();
    ASSERT_TRUE(stream->Finish().ok());
  }
};

TEST_P(MetricsTest, CallsAndStepsAreCounted) {
  const v1::SequenceHandle handle = NewSequence("m");
  ASSERT_TRUE(Append(Tokens(handle, 0, 300)).ok());
  EXPECT_FALSE(Append(Tokens(handle, 900, 1)).ok());  // a gap
  Decode(handle, 300, 7);
  v1::GetIndexRequest get;
  get.set_name("there-is-none");
  v1::GetIndexResponse got;
  EXPECT_FALSE(Call(*stubs_->index, &v1::IndexService::Stub::GetIndex, get, &got).ok());

  Samples s = Scrape();
  EXPECT_EQ(s[Method("grpc_server_started_total", "RetrievalService", "Append")], 2);
  EXPECT_EQ(s[Method("grpc_server_handled_total", "RetrievalService", "Append", "OK")], 1);
  EXPECT_EQ(s[Method("grpc_server_handled_total", "RetrievalService", "Append", "OutOfRange")], 1);
  EXPECT_EQ(s[Method("grpc_server_handled_total", "IndexService", "GetIndex", "NotFound")], 1);
  EXPECT_EQ(s[Method("grpc_server_handling_seconds_count", "RetrievalService", "Append")], 2);
  EXPECT_GT(s[Method("grpc_server_handling_seconds_sum", "RetrievalService", "Append")], 0);
  EXPECT_EQ(s[Method("grpc_server_started_total", "RetrievalService", "Decode")], 1);
  EXPECT_EQ(s[Method("grpc_server_handled_total", "RetrievalService", "Decode", "OK")], 1);
  EXPECT_EQ(s[Method("grpc_server_msg_received_total", "RetrievalService", "Decode")], 7);
  EXPECT_EQ(s[Method("grpc_server_msg_sent_total", "RetrievalService", "Decode")], 7);
  EXPECT_EQ(s["seine_decode_step_seconds_count{index=\"m\"}"], 7);
  EXPECT_EQ(s["seine_tokens_appended_total{index=\"m\"}"], 307);
  EXPECT_EQ(s["seine_tokens{index=\"m\"}"], 307);
  EXPECT_EQ(s["seine_sequences{index=\"m\"}"], 1);
  EXPECT_GT(s["seine_candidates_total{index=\"m\"}"], 0);
  EXPECT_EQ(s["seine_stage_seconds_count{stage=\"scan\"}"], 7);
  EXPECT_GE(s["seine_stage_seconds_count{stage=\"encode\"}"], 1);
  EXPECT_EQ(s["seine_sequence_reuse_gap_seconds_count"], 6);
  EXPECT_GT(s["seine_memory_bytes{index=\"m\",tier=\"codes\"}"], 0);
  EXPECT_GT(s["seine_memory_bytes{index=\"m\",tier=\"store\"}"], 0);
  EXPECT_GE(s["seine_connections"], 1);
  EXPECT_EQ(s["seine_channels"], 0);
  EXPECT_EQ(s.count("seine_in_flight_bytes"), 1);
  EXPECT_GT(s["seine_in_flight_limit_bytes"], 0);
  EXPECT_EQ(s["seine_executor_refused_total"], 0);
  // Cumulative buckets that end at the count.
  EXPECT_EQ(s["seine_decode_step_seconds_bucket{index=\"m\",le=\"+Inf\"}"], 7);
  EXPECT_EQ(s["seine_decode_step_seconds_bucket{index=\"m\",le=\"10\"}"], 7);
  EXPECT_EQ(s["seine_decode_step_seconds_bucket{index=\"m\",le=\"1e-06\"}"], 0);
}

TEST_P(MetricsTest, TiersAddUpToWhatTheServerHolds) {
  const v1::SequenceHandle handle = NewSequence("m");
  ASSERT_TRUE(Append(Tokens(handle, 0, 300)).ok());
  double held = 0;
  for (const auto& [name, value] : Scrape()) {
    if (name.rfind("seine_memory_bytes{", 0) == 0) held += value;
  }
  EXPECT_EQ(held, static_cast<double>(server_->core().budget->used_bytes()));
}

TEST_P(MetricsTest, ADeletedIndexLeavesNoSeries) {
  Delete("m");
  for (const auto& [name, value] : Scrape()) EXPECT_EQ(name.find("index=\"m\""), std::string::npos) << name;
}

TEST_P(MetricsTest, IndexesBeyondTheMostHaveOneSeriesTogetherThatNeverFalls) {
  for (size_t i = 0; i < Collector::kMostNamed + 10; ++i) Create("i" + std::to_string(100 + i));
  std::map<std::string, int> appended;
  for (const auto& [name, value] : Scrape()) {
    if (name.rfind("seine_tokens_appended_total{", 0) == 0) appended[name] = 1;
  }
  EXPECT_EQ(appended.size(), Collector::kMostNamed + 1);
  const std::string other = "seine_tokens_appended_total{index=\"other\"}";
  ASSERT_TRUE(appended.contains(other));
  // "m" is the last by name, and so it is among the others.
  const v1::SequenceHandle handle = NewSequence("m");
  ASSERT_TRUE(Append(Tokens(handle, 0, 300)).ok());
  EXPECT_EQ(Scrape()[other], 300);
  Delete("m");
  EXPECT_EQ(Scrape()[other], 300);
  EXPECT_EQ(Scrape()["seine_tokens{index=\"other\"}"], 0);
  Delete("i100");  // makes room, which one that is new takes, and no old one
  Create("later");
  Samples s = Scrape();
  EXPECT_TRUE(s.contains("seine_tokens{index=\"later\"}"));
  EXPECT_EQ(s[other], 300);
}

TEST_P(MetricsTest, GetMetricsSaysTheSame) {
  const v1::SequenceHandle handle = NewSequence("m");
  ASSERT_TRUE(Append(Tokens(handle, 0, 300)).ok());
  Decode(handle, 300, 5);
  v1::GetMetricsResponse response;
  ASSERT_TRUE(Call(*stubs_->admin, &v1::AdminService::Stub::GetMetrics, v1::GetMetricsRequest(), &response).ok());
  const v1::IndexMetrics m = IndexOf(response, "m");
  EXPECT_TRUE(response.counting());
  ASSERT_EQ(m.step_buckets_size(), response.bucket_seconds_size() + 1);
  int64_t steps = 0;
  for (const int64_t count : m.step_buckets()) steps += count;
  EXPECT_EQ(steps, 5);
  EXPECT_GT(m.step_seconds(), 0);
  Samples s = Scrape();
  EXPECT_EQ(m.name(), "m");
  EXPECT_EQ(m.tokens_appended(), s["seine_tokens_appended_total{index=\"m\"}"]);
  EXPECT_EQ(m.candidates(), s["seine_candidates_total{index=\"m\"}"]);
  EXPECT_EQ(m.num_sequences(), 1);
  EXPECT_EQ(m.code_bytes(), s["seine_memory_bytes{index=\"m\",tier=\"codes\"}"]);
  EXPECT_EQ(m.store_bytes(), s["seine_memory_bytes{index=\"m\",tier=\"store\"}"]);
  EXPECT_EQ(m.other_bytes(), s["seine_memory_bytes{index=\"m\",tier=\"other\"}"]);
}

TEST_P(MetricsTest, ScrapesWhileStepsRun) {
  const v1::SequenceHandle handle = NewSequence("m");
  ASSERT_TRUE(Append(Tokens(handle, 0, 300)).ok());
  std::thread steps([&] { Decode(handle, 300, 200); });
  double last = 0;
  for (int i = 0; i < 20; ++i) {
    const double now = Scrape()["seine_decode_step_seconds_count{index=\"m\"}"];
    EXPECT_GE(now, last);
    last = now;
  }
  steps.join();
  EXPECT_EQ(Scrape()["seine_decode_step_seconds_count{index=\"m\"}"], 200);
}

INSTANTIATE_TEST_SUITE_P(Ways, MetricsTest, ::testing::Bool(),
                         [](const auto& polls) { return polls.param ? "Polling" : "Default"; });

class UncountedTest : public ServerTest {
 protected:
  ServerOptions Options() const override {
    ServerOptions options = ServerTest::Options();
    options.core.count = false;
    return options;
  }
};

TEST_P(UncountedTest, ASwitchTurnsCountingOff) {
  v1::CreateIndexRequest request;
  *request.mutable_spec() = Spec("m");
  v1::CreateIndexResponse created;
  ASSERT_TRUE(Call(*stubs_->index, &v1::IndexService::Stub::CreateIndex, request, &created).ok());
  ASSERT_TRUE(Append(Item(NewSequence("m"), 0, 0, 300)).ok());
  v1::GetMetricsResponse response;
  ASSERT_TRUE(Call(*stubs_->admin, &v1::AdminService::Stub::GetMetrics, v1::GetMetricsRequest(), &response).ok());
  EXPECT_FALSE(response.counting());
  EXPECT_EQ(IndexOf(response, "m").step_buckets_size(), 0);
  EXPECT_GT(IndexOf(response, "m").store_bytes(), 0);
}

INSTANTIATE_TEST_SUITE_P(Ways, UncountedTest, ::testing::Values(false));

}  // namespace
}  // namespace seine::test
