// Two tenants at one server: what one sends does not keep the other's calls from being answered.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "service/access/access.h"
#include "service/metrics/collector.h"
#include "service/scheduling/executor.h"
#include "service/scheduling/sharing.h"
#include "service/scheduling/tenant_work.h"
#include "service/under_way/open_calls.h"
#include "tests/service/access/access_fixture.h"

namespace seine::test {
namespace {

using grpc::StatusCode;

constexpr int64_t kLongTokens = 12'000;  // 3 MiB of an append, which makes it long work

class FairnessTest : public AccessTest {
 protected:
  void Change(ServerOptions* options) override {
    options->core.queue_capacity = 8;
    options->core.threads = 2;
  }
  v1::SequenceHandle Settle(const CallerStubs& caller) const {
    v1::SequenceHandle handle;
    EXPECT_TRUE(caller.CreateIndex("x").ok());
    EXPECT_TRUE(caller.CreateSequence("x", "s", &handle).ok());
    EXPECT_TRUE(caller.Append(handle, 0, 300, 1).ok());
    return handle;
  }
  static grpc::Status Retrieve(const CallerStubs& caller, const v1::SequenceHandle& handle) {
    v1::RetrieveRequest request;
    v1::RetrieveResponse response;
    *request.add_items() = Query(handle, 0);
    request.mutable_selector()->set_top_k(4);
    return caller.Call(*caller.retrieval, &v1::RetrievalService::Stub::Retrieve, request, &response);
  }
  // Keeps all workers busy until `release` is counted down.
  void Hold(std::shared_future<void> released) const {
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(server_->core().executor.Submit([released] { released.wait(); }));
    while (server_->core().executor.waiting() > 0) std::this_thread::yield();
  }
  TenantWork& WorkOf(const char* tenant) const { return server_->core().access->tenant(tenant)->work(); }
};

// One tenant fills the queue: its own calls are refused, the other's are answered.
TEST_F(FairnessTest, AFullQueueIsFullForWhoFilledIt) {
  const CallerStubs acme = As("acme"), beta = As("beta");
  const auto of_acme = Settle(acme), of_beta = Settle(beta);
  std::promise<void> release;
  Hold(release.get_future().share());
  const int64_t refused_before = server_->core().executor.refused();
  std::vector<std::future<grpc::Status>> flood;
  for (int i = 0; i < 20; ++i) {
    flood.push_back(std::async(std::launch::async, [&] { return Retrieve(acme, of_acme); }));
  }
  while (server_->core().executor.refused() < refused_before + 12) std::this_thread::yield();
  auto answer = std::async(std::launch::async, [&] { return Retrieve(beta, of_beta); });
  while (server_->core().executor.refused() < refused_before + 13) std::this_thread::yield();
  release.set_value();
  EXPECT_TRUE(answer.get().ok());
  int full = 0;
  for (auto& call : flood) {
    const grpc::Status status = call.get();
    if (status.ok()) continue;
    EXPECT_EQ(DetailsOf(status).reason, "QUEUE_FULL") << status.error_message();
    ++full;
  }
  EXPECT_EQ(full, 13);
}

// The other's call came last, behind ten of one tenant, and is not the last to be answered.
TEST_F(FairnessTest, CallsOfTenantsAreTakenInTurns) {
  const CallerStubs acme = As("acme"), beta = As("beta");
  const auto of_acme = Settle(acme), of_beta = Settle(beta);
  std::promise<void> release;
  Hold(release.get_future().share());
  std::vector<std::future<grpc::Status>> calls;
  const auto begin = [&](const CallerStubs& caller, const v1::SequenceHandle& handle) {
    const int before = server_->core().executor.waiting();
    calls.push_back(std::async(std::launch::async, [&] { return Retrieve(caller, handle); }));
    while (server_->core().executor.waiting() == before) std::this_thread::yield();
  };
  for (int i = 0; i < 7; ++i) begin(acme, of_acme);
  const int64_t waits_before = WorkOf("beta").waits().count();
  begin(beta, of_beta);
  release.set_value();
  for (auto& call : calls) EXPECT_TRUE(call.get().ok());
  EXPECT_EQ(WorkOf("beta").waits().count(), waits_before + 1);
  EXPECT_GE(WorkOf("acme").waits().count(), 7);
  const std::string metrics = Collector(server_->core()).Text();
  for (const char* sample :
       {"seine_queue_wait_seconds_count{tenant=\"acme\"}", "seine_queue_wait_seconds_count{tenant=\"beta\"}",
        "seine_queue_wait_seconds_count ", "seine_yielded_seconds_total{tenant=\"beta\"}"}) {
    EXPECT_NE(metrics.find(sample), std::string::npos) << sample;
  }
}

// A call that its client has given up is not worked on when its turn comes.
TEST_F(FairnessTest, ACancelledCallIsNotWorkedOn) {
  const CallerStubs acme = As("acme"), beta = As("beta");
  const auto of_acme = Settle(acme);
  Settle(beta);
  std::promise<void> release;
  Hold(release.get_future().share());
  v1::AppendRequest append;
  *append.mutable_item() = Item(of_acme, 0, 300, 100, 9);
  *append.mutable_item()->mutable_values() = Halves({100, kKvHeads, kDim}, 10);
  grpc::ClientContext context;
  acme.Show(&context);
  auto call = std::async(std::launch::async, [&] {
    v1::AppendResponse response;
    return acme.retrieval->Append(&context, append, &response);
  });
  while (server_->core().executor.waiting() == 0) std::this_thread::yield();
  context.TryCancel();
  EXPECT_EQ(call.get().error_code(), StatusCode::CANCELLED);
  // What is sent later over the same connection is heard later: the server knows by now.
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(acme.Info().ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  release.set_value();
  while (server_->core().open_calls.Count().count("Append") > 0) std::this_thread::yield();
  EXPECT_TRUE(acme.Append(of_acme, 300, 10, 77).ok());  // other keys there would be ALREADY_EXISTS
}

// A long append waits for the threads of long calls; short calls, of the same tenant too, are answered meanwhile.
TEST_F(FairnessTest, LongCallsHaveThreadsOfTheirOwn) {
  const CallerStubs acme = As("acme");
  const auto of_acme = Settle(acme);
  Executor& long_calls = server_->core().long_calls;
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  for (int i = 0; i < server_->core().options.workers; ++i) {
    ASSERT_TRUE(long_calls.Submit([released] { released.wait(); }));
  }
  while (long_calls.waiting() > 0) std::this_thread::yield();
  auto append = std::async(std::launch::async, [&] { return acme.Append(of_acme, 300, kLongTokens, 3); });
  while (long_calls.waiting() == 0) std::this_thread::yield();
  EXPECT_TRUE(Retrieve(acme, of_acme).ok());
  EXPECT_EQ(server_->core().QueuedCalls(), 1);
  release.set_value();
  EXPECT_TRUE(append.get().ok());
}

// Steps of one tenant without a pause, from more streams than there are processors: the other's prefills, whose threads
// have a low priority, come to their end.
TEST_F(FairnessTest, AFloodOfStepsLeavesPrefillsGoing) {
  const CallerStubs acme = As("acme"), beta = As("beta");
  const auto of_acme = Settle(acme), of_beta = Settle(beta);
  std::atomic<bool> stop{false};
  std::atomic<int> steps{0};
  std::vector<std::thread> flood;
  for (int t = 0; t < 4; ++t) {
    flood.emplace_back([&] {
      grpc::ClientContext context;
      beta.Show(&context);
      const auto stream = beta.retrieval->Decode(&context);
      v1::DecodeRequest request;
      v1::DecodeResponse answer;
      *request.add_items() = Query(of_beta, 0);
      request.mutable_selector()->set_top_k(4);
      while (!stop && stream->Write(request) && stream->Read(&answer)) ++steps;
      stream->WritesDone();
      EXPECT_TRUE(stream->Finish().ok());
    });
  }
  while (steps < 20) std::this_thread::yield();
  for (int64_t position = 300; position < 300 + 3 * kLongTokens; position += kLongTokens) {
    EXPECT_TRUE(acme.Append(of_acme, position, kLongTokens, 3).ok());
  }
  stop = true;
  for (std::thread& thread : flood) thread.join();
  EXPECT_GT(steps.load(), 20);
}

// One tenant sends prefills without a pause; the other's steps and calls are all answered meanwhile.
TEST_F(FairnessTest, AFloodOfPrefillsLeavesOthersAnswered) {
  const CallerStubs acme = As("acme"), beta = As("beta");
  const auto of_acme = Settle(acme), of_beta = Settle(beta);
  std::atomic<bool> stop{false};
  std::atomic<int> appended{0};
  std::vector<std::thread> flood;
  for (int t = 0; t < 3; ++t) {
    flood.emplace_back([&, t] {
      v1::SequenceHandle handle;
      for (int i = 0; !stop; ++i) {
        if (!acme.CreateSequence("x", "flood" + std::to_string(t) + "-" + std::to_string(i), &handle).ok()) continue;
        appended += acme.Append(handle, 0, 4000, 3).ok() ? 1 : 0;
      }
    });
  }
  while (appended < 3) std::this_thread::yield();
  grpc::ClientContext context;
  beta.Show(&context);
  const auto stream = beta.retrieval->Decode(&context);
  for (int step = 0; step < 30; ++step) {
    v1::DecodeRequest request;
    v1::DecodeResponse answer;
    request.set_step(step);
    *request.add_items() = Query(of_beta, 0);
    request.mutable_selector()->set_top_k(4);
    ASSERT_TRUE(stream->Write(request) && stream->Read(&answer));
    EXPECT_FALSE(answer.has_status());
    EXPECT_TRUE(Retrieve(beta, of_beta).ok());
  }
  stop = true;
  for (std::thread& thread : flood) thread.join();
  EXPECT_GT(appended.load(), 3);
  EXPECT_TRUE(server_->core().sharing.several());
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

}  // namespace
}  // namespace seine::test
