// Clients that mean no harm, and whose calls end early all the same: short deadlines, calls that nobody wants any more.
// They are told from a flood of stream resets (reset_window.h).
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "service/transport/sockets/connections.h"
#include "service/transport/sockets/reset_window.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::system_clock;

constexpr int kHonestThreads = 8;
constexpr int kHonestCalls = 2000;  // of all threads
constexpr int kHonestCancelled = 200;

class HonestTest : public ServerTest {
 protected:
  // Runs `call(i)` for all i below `calls`, on threads.
  template <typename Call>
  void InParallel(int calls, Call call) {
    std::atomic<int> next{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kHonestThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = next++; i < calls; i = next++) call(i);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  // A Decode stream without a step, until its deadline, or cancelled as soon as it is open.
  StatusCode Open(milliseconds deadline, bool cancelled) {
    grpc::ClientContext context;
    context.set_deadline(system_clock::now() + deadline);
    const auto stream = stubs_->retrieval->Decode(&context);
    if (cancelled) context.TryCancel();
    v1::DecodeResponse response;
    EXPECT_FALSE(stream->Read(&response));
    return stream->Finish().error_code();
  }
  // A step with a deadline that may be too short for it.
  StatusCode Step(const v1::SequenceHandle& handle, milliseconds deadline) {
    grpc::ClientContext context;
    context.set_deadline(system_clock::now() + deadline);
    const auto stream = stubs_->retrieval->Decode(&context);
    v1::DecodeRequest step;
    v1::DecodeResponse response;
    *step.add_items() = Query(handle, 0);
    if (stream->Write(step) && stream->Read(&response)) stream->WritesDone();
    return stream->Finish().error_code();
  }
  int64_t Cut() const { return server_->core().connections.cut_resets(); }
};

TEST_P(HonestTest, DeadlinesOfThousandsOfStepsMayPass) {
  const auto handle = NewSequence("keys");
  ASSERT_TRUE(Append(Item(handle, 0, 0, 300)).ok());
  std::atomic<int> others{0};
  InParallel(kHonestCalls, [&](int i) {
    const StatusCode code = Step(handle, milliseconds(i % 4));  // 0: it has passed when the call begins
    if (code != StatusCode::OK && code != StatusCode::DEADLINE_EXCEEDED) ++others;
  });
  EXPECT_EQ(others, 0);
  EXPECT_EQ(Cut(), 0);
}

// No message comes of these: for the server a reset at a deadline looks like one of a flood but for its time.
TEST_P(HonestTest, DeadlinesOfThousandsOfSilentStreamsMayPassAndSomeBeCancelled) {
  std::atomic<int> others{0};
  InParallel(kHonestCalls, [&](int i) {
    const bool cancelled = i % (kHonestCalls / kHonestCancelled) == 0;
    const StatusCode code = Open(cancelled ? std::chrono::seconds(20) : milliseconds(1 + i % 4), cancelled);
    if (code != StatusCode::DEADLINE_EXCEEDED && !(cancelled && code == StatusCode::CANCELLED)) ++others;
  });
  EXPECT_EQ(others, 0);
  EXPECT_EQ(Cut(), 0);
}

// One that cancels more than is allowed is cut off and refused for a second; the same channel then serves on.
TEST_P(HonestTest, AClientThatIsCutOffIsToldAndComesBackByItself) {
  for (int round = 0; round < 20 && Cut() == 0; ++round) {
    InParallel(4 * ResetWindow::kMostResets, [&](int) {
      if (Cut() > 0) return;
      const StatusCode code = Open(std::chrono::seconds(20), /*cancelled=*/true);
      EXPECT_TRUE(code == StatusCode::CANCELLED || code == StatusCode::UNAVAILABLE) << code;
    });
  }
  ASSERT_GT(Cut(), 0);
  // A call may still go out on the connection that is being cut, and is told so. The next one waits for a new
  // connection.
  const auto list = [&] {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(system_clock::now() + std::chrono::seconds(30));
    v1::ListIndexesResponse response;
    return stubs_->index->ListIndexes(&context, {}, &response);
  };
  grpc::Status status = list();
  if (status.error_code() == StatusCode::UNAVAILABLE) status = list();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

INSTANTIATE_TEST_SUITE_P(Serving, HonestTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "Polling" : "Default"; });

}  // namespace
}  // namespace seine::test
