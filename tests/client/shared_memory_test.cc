// What a client makes of same-host channels beyond a stream's steps (decode_stream_test.cc): which transport is taken
// and why, steps above the limit, servers that hang or die, and that nothing is left behind.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "absl/strings/match.h"
#include "client/client.h"
#include "tests/client/process.h"
#include "tests/client/random_model.h"

namespace seine {
namespace {

using client::DecodeAnswer;
using client::DecodeStep;
using client::Transport;
using Clock = std::chrono::steady_clock;

constexpr int kHeldTokens = 600;

// A server with a sequence of some tokens.
struct ServedSequence {
  explicit ServedSequence(const std::vector<std::string>& flags = {}, const client::Options& options = {})
      : server(flags), client(server.Connect(options)) {
    EXPECT_TRUE(client->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS)).ok());
    sequence = *client->CreateSequence("m", "s");
  }
  // Appends `tokens` at the beginning.
  DecodeStep Step(int64_t tokens) const {
    DecodeStep step;
    step.appends = {{sequence, 0, 0, model.Keys(0, 0, tokens), {}}};
    return step;
  }
  Server server;
  std::unique_ptr<client::Client> client;
  RandomModel model{kHeldTokens};
  client::Sequence sequence;
};

int MappedChannels() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += absl::StrContains(line, "seine-channel") ? 1 : 0;
  return count;
}
int OpenFiles() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

TEST(SharedMemory, AutoTakesItWhereItIsOffered) {
  ServedSequence service;
  const auto stream = service.client->OpenDecodeStream(Transport::kAuto);
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_EQ((*stream)->transport(), Transport::kSharedMemory);
  EXPECT_EQ((*stream)->fallback(), "");
  DecodeAnswer answer;
  ASSERT_TRUE((*stream)->Write(service.Step(10)).ok() && (*stream)->Read(&answer).ok());
  EXPECT_TRUE(answer.append_status[0].ok()) << answer.append_status[0];
}

TEST(SharedMemory, AutoFallsBackAndSaysWhy) {
  ServedSequence service({"--channels", "0"});
  const auto stream = service.client->OpenDecodeStream(Transport::kAuto);
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_EQ((*stream)->transport(), Transport::kBlocking);
  EXPECT_TRUE(absl::StrContains((*stream)->fallback(), "--channels 0")) << (*stream)->fallback();
  DecodeAnswer answer;
  ASSERT_TRUE((*stream)->Write(service.Step(10)).ok() && (*stream)->Read(&answer).ok());
  const auto refused = service.client->OpenDecodeStream(Transport::kSharedMemory);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition) << refused.status();
}

TEST(SharedMemory, RingSizesAreTheServersToCheck) {
  client::Options options;
  options.ring_bytes = 1000;
  ServedSequence service({}, options);
  const auto stream = service.client->OpenDecodeStream(Transport::kSharedMemory);
  EXPECT_EQ(stream.status().code(), absl::StatusCode::kInvalidArgument) << stream.status();
  EXPECT_EQ(client::FieldOf(stream.status()), "ring_bytes");
}

TEST(SharedMemory, StepsAboveTheServersLimitAreNotSent) {
  client::Options options;
  options.ring_bytes = 64 << 10;
  ServedSequence service({"--max-message", "512KiB"}, options);
  const auto stream = service.client->OpenDecodeStream(Transport::kSharedMemory);
  ASSERT_TRUE(stream.ok()) << stream.status();
  DecodeStep step = service.Step(kHeldTokens);
  step.appends.assign(4, step.appends[0]);
  const absl::Status status = (*stream)->Write(step);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "524288")) << status;
  DecodeAnswer answer;
  ASSERT_TRUE((*stream)->Write(service.Step(kHeldTokens)).ok() &&
              (*stream)->Read(&answer).ok());  // larger than the ring
  EXPECT_TRUE(answer.append_status[0].ok()) << answer.append_status[0];
}

// Steps far beyond what the rings hold, none read until all are written: neither side may wait for the other for ever.
TEST(SharedMemory, ManyUnreadStepsDoNotLock) {
  client::Options options;
  options.ring_bytes = 64 << 10;
  ServedSequence service({}, options);
  const auto stream = service.client->OpenDecodeStream(Transport::kSharedMemory);
  ASSERT_TRUE(stream.ok()) << stream.status();
  DecodeAnswer answer;
  ASSERT_TRUE((*stream)->Write(service.Step(kHeldTokens)).ok() && (*stream)->Read(&answer).ok());
  DecodeStep step;
  step.items.assign(64, {service.sequence, 0, service.model.Query()});
  constexpr int kSteps = 100;
  for (int i = 0; i < kSteps; ++i) {
    step.step = i;
    ASSERT_TRUE((*stream)->Write(step).ok());
  }
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_TRUE((*stream)->Read(&answer).ok());
    EXPECT_EQ(answer.step, static_cast<uint64_t>(i));
    EXPECT_EQ(answer.answers.size(), 64u);
  }
  EXPECT_TRUE((*stream)->Finish().ok());
}

TEST(SharedMemory, AServerThatHangsIsGivenUp) {
  client::Options options;
  options.step_timeout = absl::Milliseconds(300);
  for (const Transport transport : {Transport::kSharedMemory, Transport::kSharedMemoryPolling}) {
    ServedSequence service({}, options);
    const auto stream = service.client->OpenDecodeStream(transport);
    ASSERT_TRUE(stream.ok()) << stream.status();
    service.server.Pause();
    DecodeAnswer answer;
    const auto begin = Clock::now();  // a step's time begins as it is written
    ASSERT_TRUE((*stream)->Write(service.Step(10)).ok());
    EXPECT_EQ((*stream)->Read(&answer).code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(300));
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
    EXPECT_EQ((*stream)->Write(service.Step(10)).code(), absl::StatusCode::kDeadlineExceeded);
    service.server.Resume();
  }
}

TEST(SharedMemory, AServerThatDiesIsNoticedAsleep) {
  for (const Transport transport : {Transport::kSharedMemory, Transport::kSharedMemoryPolling}) {
    ServedSequence service;
    const auto stream = service.client->OpenDecodeStream(transport);
    ASSERT_TRUE(stream.ok()) << stream.status();
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      service.server.Kill();
    });
    DecodeAnswer answer;
    const auto begin = Clock::now();
    EXPECT_EQ((*stream)->Read(&answer).code(), absl::StatusCode::kUnavailable);  // nothing was sent: it waits
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(3));
    killer.join();
  }
}

TEST(SharedMemory, NothingIsLeftOfIt) {
  ServedSequence service;
  DecodeAnswer answer;
  {
    const auto first = service.client->OpenDecodeStream(Transport::kSharedMemory);
    ASSERT_TRUE(first.ok()) << first.status();
  }
  const int descriptors = OpenFiles();
  for (int i = 0; i < 40; ++i) {  // more than may be open at once
    const auto stream = service.client->OpenDecodeStream(Transport::kSharedMemory);
    ASSERT_TRUE(stream.ok()) << stream.status();
    ASSERT_TRUE((*stream)->Write(service.Step(10)).ok());
    ASSERT_TRUE(i % 2 == 0 || (*stream)->Read(&answer).ok());
    EXPECT_EQ(MappedChannels(), 1);
  }
  EXPECT_EQ(MappedChannels(), 0);
  EXPECT_EQ(OpenFiles(), descriptors);
}

}  // namespace
}  // namespace seine
