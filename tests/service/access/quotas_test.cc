// Quotas of tenants, and the audit log.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "index/memory/memory_budget.h"
#include "service/access/access.h"
#include "service/access/audit_log.h"
#include "tests/service/access/access_fixture.h"

namespace seine::test {
namespace {

using grpc::StatusCode;

class QuotasTest : public AccessTest {
 protected:
  void Change(ServerOptions* options) override {
    options->access.quotas_file = Path("quotas.yaml");
    options->audit_file = Path("audit.log");
    ReplaceFile(Path("quotas.yaml"), "");
  }
  void Set(const std::string& yaml) {
    ReplaceFile(Path("quotas.yaml"), yaml);
    ASSERT_TRUE(server_->core().access->Reload().ok());
  }
  static void ExpectRefused(const grpc::Status& status, const std::string& quota, bool retry) {
    EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_NE(status.error_message().find(quota), std::string::npos) << status.error_message();
    EXPECT_EQ(DetailsOf(status).retry, retry) << status.error_message();
  }
};

TEST_F(QuotasTest, Indexes) {
  Set("acme: {indexes: 2}");
  EXPECT_TRUE(As("acme").CreateIndex("a").ok());
  EXPECT_TRUE(As("acme").CreateIndex("b").ok());
  ExpectRefused(As("acme").CreateIndex("c"), "quota indexes = 2", /*retry=*/false);
  for (const char* name : {"a", "b", "c"}) EXPECT_TRUE(As("beta").CreateIndex(name).ok());
  Set("acme: {indexes: 3}");
  EXPECT_TRUE(As("acme").CreateIndex("c").ok());
}

TEST_F(QuotasTest, SequencesOfAllIndexesHoweverManyAreMadeAtOnce) {
  constexpr int kMost = 5;
  Set("acme: {sequences: 5}");
  ASSERT_TRUE(As("acme").CreateIndex("a").ok());
  ASSERT_TRUE(As("acme").CreateIndex("b").ok());
  std::atomic<int> made{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const CallerStubs acme = As("acme");
      for (int i = 0; i < 10; ++i) {
        v1::SequenceHandle handle;
        const grpc::Status status = acme.CreateSequence(t % 2 == 0 ? "a" : "b", "", &handle);
        made += status.ok() ? 1 : 0;
        if (!status.ok()) ExpectRefused(status, "quota sequences = 5", /*retry=*/false);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made.load(), kMost);
  v1::ForkSequenceRequest fork;
  v1::ForkSequenceResponse forked;
  fork.mutable_source()->set_index("a");
  fork.mutable_source()->set_id("seq-1");
  const CallerStubs acme = As("acme");
  ExpectRefused(acme.Call(*acme.sequence, &v1::SequenceService::Stub::ForkSequence, fork, &forked), "sequences", false);
}

TEST_F(QuotasTest, MemoryIsRefusedBeforeItIsTakenAndOthersAreNot) {
  v1::SequenceHandle of_acme, of_beta;
  for (const auto& [token, handle] : {std::pair{"acme", &of_acme}, std::pair{"beta", &of_beta}}) {
    ASSERT_TRUE(As(token).CreateIndex("x").ok());
    ASSERT_TRUE(As(token).CreateSequence("x", "s", handle).ok());
  }
  Set("acme: {memory: 400KiB}");
  grpc::Status status;
  int64_t position = 0;
  for (; status.ok() && position < 20'000; position += 100) status = As("acme").Append(of_acme, position, 100, 1);
  ExpectRefused(status, "memory limit of the tenant (its quota)", /*retry=*/true);
  EXPECT_LE(server_->core().access->tenant("acme")->budget()->used_bytes(), 400 << 10);
  EXPECT_GT(position, 100);
  EXPECT_TRUE(As("beta").Append(of_beta, 0, 3000, 1).ok());
  v1::GetServerInfoResponse info;
  const CallerStubs acme = As("acme");
  ASSERT_TRUE(acme.Call(*acme.admin, &v1::AdminService::Stub::GetServerInfo, v1::GetServerInfoRequest(), &info).ok());
  EXPECT_EQ(info.memory_limit_bytes(), 400 << 10);
  EXPECT_LE(info.memory_bytes(), 400 << 10);
  // Memory is given back to both.
  for (const char* token : {"acme", "beta"}) {
    const CallerStubs stubs = As(token);
    v1::DeleteIndexRequest remove;
    v1::DeleteIndexResponse removed;
    remove.set_name("x");
    ASSERT_TRUE(stubs.Call(*stubs.index, &v1::IndexService::Stub::DeleteIndex, remove, &removed).ok());
  }
  EXPECT_EQ(server_->core().access->tenant("acme")->budget()->used_bytes(), 0);
  EXPECT_EQ(server_->core().budget->used_bytes(), 0);
}

class FullServerTest : public AccessTest {
  void Change(ServerOptions* options) override { options->core.memory_limit_bytes = 2 << 20; }
};

TEST_F(FullServerTest, WhatOthersHoldIsNotTold) {
  v1::SequenceHandle of_acme, of_beta;
  for (const auto& [token, handle] : {std::pair{"acme", &of_acme}, std::pair{"beta", &of_beta}}) {
    ASSERT_TRUE(As(token).CreateIndex("x").ok());
    ASSERT_TRUE(As(token).CreateSequence("x", "s", handle).ok());
  }
  grpc::Status status;
  for (int64_t position = 0; status.ok() && position < 50'000; position += 500) {
    status = As("acme").Append(of_acme, position, 500, 1);
  }
  ASSERT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  status = As("beta").Append(of_beta, 0, 10'000, 1);  // some 5 MB
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(status.error_message().find("the server's memory limit leaves no room"), std::string::npos)
      << status.error_message();
  EXPECT_TRUE(DetailsOf(status).retry);
  EXPECT_EQ(status.error_message().find(std::to_string(server_->core().budget->used_bytes())), std::string::npos);
}

TEST_F(QuotasTest, StepsOfStreamsAndCallsTogether) {
  ASSERT_TRUE(As("acme").CreateIndex("x").ok());
  Set("acme: {steps_per_second: 3}");
  const CallerStubs acme = As("acme");
  grpc::ClientContext context;
  acme.Show(&context);
  const auto stream = acme.retrieval->Decode(&context);
  v1::DecodeResponse answer;
  int refused = 0;
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(stream->Write(v1::DecodeRequest()) && stream->Read(&answer));
    if (!answer.has_status()) continue;
    ++refused;
    EXPECT_EQ(answer.status().code(), static_cast<int>(StatusCode::RESOURCE_EXHAUSTED));
    EXPECT_TRUE(DetailsOf(answer.status()).retry);
  }
  EXPECT_GE(refused, 1);
  grpc::Status status;
  v1::GatherResponse gathered;
  for (int i = 0; i < 6 && status.error_code() != StatusCode::RESOURCE_EXHAUSTED; ++i) {
    status = acme.Call(*acme.retrieval, &v1::RetrievalService::Stub::Gather, v1::GatherRequest(), &gathered);
  }
  ExpectRefused(status, "quota steps_per_second = 3", /*retry=*/true);
  EXPECT_TRUE(acme.Info().ok()) << "what is no step goes on";
}

TEST_F(QuotasTest, CallsUnderWay) {
  Set("acme: {calls: 2}");
  const CallerStubs acme = As("acme");
  v1::DecodeResponse answer;
  {
    grpc::ClientContext first, second;
    acme.Show(&first);
    acme.Show(&second);
    const auto one = acme.retrieval->Decode(&first), two = acme.retrieval->Decode(&second);
    ASSERT_TRUE(one->Write(v1::DecodeRequest()) && one->Read(&answer));
    ASSERT_TRUE(two->Write(v1::DecodeRequest()) && two->Read(&answer));
    ExpectRefused(acme.Info(), "quota calls = 2", /*retry=*/true);
    EXPECT_TRUE(As("beta").Info().ok());
    one->WritesDone();
    EXPECT_TRUE(one->Finish().ok());
    second.TryCancel();
    two->Finish();
  }
  const auto& tenant = *server_->core().access->tenant("acme");
  for (int i = 0; i < 5000 && tenant.calls() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(tenant.calls(), 0);
  EXPECT_TRUE(acme.Info().ok());
}

TEST_F(QuotasTest, TheAuditLogSaysWhoDidWhat) {
  v1::SequenceHandle handle;
  ASSERT_TRUE(As("acme").CreateIndex("x").ok());
  ASSERT_TRUE(As("acme-writer").CreateSequence("x", "chat", &handle).ok());
  ASSERT_TRUE(As("acme-writer").Append(handle, 0, 300, 1).ok());
  std::filesystem::rename(Path("audit.log"), Path("audit.log.1"));
  ASSERT_TRUE(server_->core().audit->Reopen().ok());
  const CallerStubs writer = As("acme-writer");
  v1::EvictRequest evict;
  v1::EvictResponse evicted;
  *evict.mutable_handle() = handle;
  evict.mutable_budget()->set_tokens(200);
  ASSERT_TRUE(writer.Call(*writer.eviction, &v1::EvictionService::Stub::Evict, evict, &evicted).ok());
  evict.mutable_handle()->set_index("nowhere");
  EXPECT_FALSE(writer.Call(*writer.eviction, &v1::EvictionService::Stub::Evict, evict, &evicted).ok());
  v1::SetDrainingRequest drain;
  v1::SetDrainingResponse drained;
  drain.set_draining(true);
  const CallerStubs admin = As("acme");
  EXPECT_FALSE(admin.Call(*admin.admin, &v1::AdminService::Stub::SetDraining, drain, &drained).ok());
  const auto lines = [](const std::string& text) {
    std::vector<nlohmann::json> all;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  };
  const auto first = lines(TextOfFile(Path("audit.log.1"))), second = lines(TextOfFile(Path("audit.log")));
  ASSERT_EQ(first.size(), 2u) << "appended tokens are not in it";
  EXPECT_EQ(first[0]["call"], "CreateIndex");
  EXPECT_EQ(first[0]["tenant"], "acme");
  EXPECT_EQ(first[0]["index"], "x");
  EXPECT_EQ(first[0]["code"], "OK");
  EXPECT_EQ(first[1]["call"], "CreateSequence");
  EXPECT_EQ(first[1]["sequence"], "chat");
  EXPECT_NE(first[0]["who"], first[1]["who"]);
  ASSERT_EQ(second.size(), 3u);
  EXPECT_EQ(second[0]["call"], "Evict");
  EXPECT_EQ(second[0]["sequence"], "chat");
  EXPECT_EQ(second[1]["index"], "nowhere");
  EXPECT_EQ(second[1]["code"], "NOT_FOUND");
  EXPECT_EQ(second[2]["call"], "SetDraining");
  EXPECT_EQ(second[2]["draining"], true);
  EXPECT_EQ(second[2]["code"], "PERMISSION_DENIED");
  struct stat info;
  ASSERT_EQ(stat(Path("audit.log").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

}  // namespace
}  // namespace seine::test
