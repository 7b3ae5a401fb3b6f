// The program seined: SIGTERM under load.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/service/seined/seined_process.h"

namespace seine::test {
namespace {

// What a client saw of a server that was told to end while it was busy.
struct Load {
  std::atomic<int64_t> answered{0};
  std::atomic<int> wrong_ends{0};
  void Ended(const grpc::Status& status) {
    const auto code = status.error_code();
    if (code != grpc::UNAVAILABLE && code != grpc::CANCELLED && code != grpc::OK) ++wrong_ends;
  }
};

void DecodeUntilTheEnd(const Stubs& stubs, v1::SequenceHandle handle, Load* load) {
  grpc::ClientContext context;
  auto stream = stubs.retrieval->Decode(&context);
  v1::DecodeRequest step;
  v1::DecodeResponse response;
  for (int64_t position = 0;; ++position) {
    step.Clear();
    *step.add_appends() = Item(handle, 0, position, 1);
    *step.add_items() = Query(handle, 0);
    if (!stream->Write(step) || !stream->Read(&response)) break;
    if (response.append_status(0).code() != 0) ++load->wrong_ends;
    ++load->answered;
  }
  load->Ended(stream->Finish());
}

void AppendUntilTheEnd(const Stubs& stubs, v1::SequenceHandle handle, Load* load) {
  grpc::Status status;
  for (int64_t position = 0; status.ok(); position += 64) {
    v1::AppendRequest request;
    v1::AppendResponse response;
    *request.mutable_item() = Item(handle, 1, position, 64);
    status = Call(*stubs.retrieval, &v1::RetrievalService::Stub::Append, request, &response);
    if (status.ok()) ++load->answered;
  }
  load->Ended(status);
}

class SeinedLoadTest : public SeinedTest, public ::testing::WithParamInterface<bool> {};

TEST_P(SeinedLoadTest, SigtermUnderLoadEndsWithZero) {
  std::vector<std::string> flags = {"--listen", socket(), "--threads", "1"};
  if (GetParam()) flags.push_back("--polling");
  Process seined(dir_.path, flags);
  ASSERT_TRUE(seined.WaitForLine("listens on")) << seined.err();
  const Stubs stubs(socket());
  v1::CreateIndexRequest create;
  v1::CreateIndexResponse created;
  *create.mutable_spec() = Spec("load");
  ASSERT_TRUE(Call(*stubs.index, &v1::IndexService::Stub::CreateIndex, create, &created).ok());
  Load load;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    v1::CreateSequenceRequest request;
    v1::CreateSequenceResponse response;
    request.set_index("load");
    ASSERT_TRUE(Call(*stubs.sequence, &v1::SequenceService::Stub::CreateSequence, request, &response).ok());
    threads.emplace_back(i % 2 == 0 ? DecodeUntilTheEnd : AppendUntilTheEnd, std::cref(stubs), response.handle(),
                         &load);
  }
  grpc::ClientContext idle_context;
  auto idle = stubs.retrieval->Decode(&idle_context);  // open, and silent: must not hold the end up
  while (load.answered < 100) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const auto begin = std::chrono::steady_clock::now();
  seined.Signal(SIGTERM);
  EXPECT_EQ(seined.Wait(), 0) << seined.err();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(load.wrong_ends.load(), 0);
  EXPECT_NE(seined.err().find("ended after"), std::string::npos) << seined.err();
}

INSTANTIATE_TEST_SUITE_P(Serving, SeinedLoadTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "Polling" : "Default"; });

}  // namespace
}  // namespace seine::test
