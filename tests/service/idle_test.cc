// A server with an idle tier: more sequences than memory, the folder, and how it ends.
#include <gtest/gtest.h>

#include <map>

#include "index/idle/idle_tier.h"
#include "index/memory/memory_budget.h"
#include "service/calls/convert/convert.h"
#include "service/catalog.h"
#include "service/snapshots/exit_snapshots.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

class IdleServerTest : public ::testing::Test {
 protected:
  ServerOptions Options() const {
    ServerOptions options;
    options.listen = "unix:" + dir_.path + "/seine.sock";
    options.core.threads = 1;
    options.core.workers = 2;
    options.core.memory_limit_bytes = 1 << 20;
    options.idle = {.folder = dir_.path + "/idle"};
    options.indexes.push_back(*ConfigFrom(Spec("a", v1::KV_STORE_KEYS_VALUES), "spec", nullptr));
    return options;
  }
  void Start(const ServerOptions& options) {
    server_ = nullptr;
    auto server = Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stubs_ = std::make_unique<Stubs>(server_->address());
  }
  static v1::SequenceHandle Named(int number) {
    v1::SequenceHandle handle;
    handle.set_index("a");
    handle.set_id("s" + std::to_string(number));
    return handle;
  }
  // A sequence of 200 tokens that no other has.
  void Make(int number) {
    v1::CreateSequenceRequest create;
    v1::CreateSequenceResponse created;
    create.set_index("a");
    create.set_id(Named(number).id());
    const grpc::Status status = Call(*stubs_->sequence, &v1::SequenceService::Stub::CreateSequence, create, &created);
    ASSERT_TRUE(status.ok()) << status.error_message();
    for (int layer = 0; layer < kLayers; ++layer) {
      v1::AppendRequest request;
      v1::AppendResponse response;
      *request.mutable_item() = Item(Named(number), layer, 0, 200, 2 * number);
      *request.mutable_item()->mutable_values() = Halves({200, kKvHeads, kDim}, 2 * number + 1);
      const grpc::Status appended = Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Append, request, &response);
      ASSERT_TRUE(appended.ok()) << appended.error_message();
    }
  }
  std::string Ask(int number) {
    v1::AttendRequest request;
    v1::AttendResponse response;
    *request.add_items() = Query(Named(number), 0);
    const grpc::Status status = Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Attend, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.answers_size() == 1 ? response.answers(0).SerializeAsString() : "";
  }
  int64_t OnDisk() {
    v1::ListSequencesRequest request;
    v1::ListSequencesResponse response;
    request.set_index("a");
    EXPECT_TRUE(Call(*stubs_->sequence, &v1::SequenceService::Stub::ListSequences, request, &response).ok());
    return std::count_if(response.sequences().begin(), response.sequences().end(),
                         [](const v1::SequenceInfo& sequence) { return sequence.on_disk(); });
  }

  TempDir dir_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Stubs> stubs_;
};

TEST_F(IdleServerTest, HoldsMoreSequencesThanMemoryDoesAndRefusesNone) {
  constexpr int kSequences = 30;
  Start(Options());
  std::map<int, std::string> answers;
  for (int i = 0; i < kSequences; ++i) {
    Make(i);
    answers[i] = Ask(i);
  }
  const int64_t on_disk = OnDisk();
  EXPECT_GT(on_disk, kSequences / 2);
  EXPECT_EQ(on_disk, server_->core().idle->Read().families);
  for (int i = 0; i < kSequences; ++i) EXPECT_EQ(Ask(i), answers[i]) << i;
  EXPECT_LE(server_->core().budget->used_bytes(), 1 << 20);
  EXPECT_GT(server_->core().idle->Read().restores, kSequences / 2);
}

TEST_F(IdleServerTest, ASecondServerIsRefusedTheFolder) {
  Start(Options());
  ServerOptions second = Options();
  second.listen = "unix:" + dir_.path + "/second.sock";
  const absl::Status status = Server::Start(second).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message().substr(0, 9), "idle.dir:") << status;
}

// The tier's thread fails, and says so in the log, while servers end under it.
TEST_F(IdleServerTest, EndsWhileItsTierWorks) {
  ServerOptions options = Options();
  options.idle.spill_after = std::chrono::nanoseconds(1);
  options.idle.pause = {};
  options.idle.limit_bytes = 1;
  for (int i = 0; i < 3; ++i) {
    Start(options);
    Make(0);
    while (server_->core().idle->Read().spills_failed < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST_F(IdleServerTest, WhatIsOnDiskIsWrittenAtExitLikeTheRest) {
  ServerOptions options = Options();
  options.snapshots.folder = dir_.path + "/snapshots";
  options.snapshots.at_exit = options.snapshots.restore_on_start = true;
  Start(options);
  for (int i = 0; i < 16; ++i) Make(i);
  const std::string answer = Ask(0);
  ASSERT_GT(OnDisk(), 5);
  server_->Shutdown(absl::Seconds(10));
  ASSERT_TRUE(WriteExitSnapshots(&server_->core(), absl::Seconds(30)));
  Start(options);
  EXPECT_EQ(server_->core().catalog.Find("", "a")->stats().num_sequences, 16);
  EXPECT_GT(OnDisk(), 5) << "as many as memory does not hold";
  EXPECT_EQ(Ask(0), answer);
}

}  // namespace
}  // namespace seine::test
