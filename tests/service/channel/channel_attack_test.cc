// What a client can do to its channel's memory, and how it can die: the server lives, others' steps are answered as
// ever, and whatever the channel took comes back.
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "proto/channel/wait.h"
#include "service/channel_offers.h"
#include "service/transport/sockets/descriptors.h"
#include "service/under_way/in_flight.h"
#include "tests/service/channel/raw_channel.h"

namespace seine::test {
namespace {

using channel::FrameKind;

int Threads() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int count = 0;
    if (word == "Threads:" && status >> count) return count;
  }
  return -1;
}

// How many clients are killed: SEINE_KILLS, or 50.
int Kills() {
  const char* text = std::getenv("SEINE_KILLS");
  return text != nullptr ? std::atoi(text) : 50;
}

constexpr std::string_view kTwoTensors[] = {"abcd", "efgh"};

// A step of so many items whose tensors have no bytes.
v1::DecodeRequest Emptied(int items) {
  v1::DecodeRequest step;
  for (int i = 0; i < items; ++i) step.add_items()->mutable_queries()->set_dtype(v1::D_TYPE_FLOAT32);
  return step;
}

class ChannelAttackTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    handle_ = NewSequence("keys");
    ASSERT_TRUE(Append(Item(handle_, 0, 0, 1000)).ok());
    bystander_ = RawChannel::Open(*stubs_);
    ASSERT_NE(bystander_, nullptr);
    *step_.add_items() = Query(handle_, 0);
    step_.set_step(1);
    ASSERT_TRUE(bystander_->Send(step_) && bystander_->Read(&right_));
    right_.clear_server_us();
    ASSERT_EQ(right_.answers_size(), 1);
    ASSERT_EQ(right_.answers(0).status().code(), 0);
  }
  // A step of the bystander's, which must be answered as before.
  void ExpectUnharmed() {
    v1::DecodeResponse answer;
    ASSERT_TRUE(bystander_->Send(step_) && bystander_->Read(&answer));
    answer.clear_server_us();
    EXPECT_EQ(answer.SerializeAsString(), right_.SerializeAsString());
  }
  bool BecomesOpen(int count) {
    auto& channels = server_->core().channels;
    for (int i = 0; i < 200 && channels.open() != count; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return channels.open() == count;
  }

  v1::SequenceHandle handle_;
  std::unique_ptr<RawChannel> bystander_;
  v1::DecodeRequest step_;
  v1::DecodeResponse right_;
};

TEST_P(ChannelAttackTest, NonsenseEndsItsChannelAlone) {
  using Spoil = void (*)(RawChannel&);
  const std::pair<const char*, Spoil> kSpoils[] = {
      {"a counter beyond the ring", [](RawChannel& c) { c.header().requests.written.fetch_add((1 << 20) + 1); }},
      {"a counter that goes back", [](RawChannel& c) { c.header().requests.written.fetch_sub(1); }},
      {"an unknown kind of frame", [](RawChannel& c) { c.SendFrame(static_cast<FrameKind>(77), "x"); }},
      {"bytes that are no message", [](RawChannel& c) { c.SendFrame(FrameKind::kMessage, "\xff\xff\xff"); }},
      {"tensors of no message", [](RawChannel& c) { c.SendFrame(FrameKind::kMessage, "", kTwoTensors); }},
      {"fewer tensors than the message has",
       [](RawChannel& c) { c.SendFrame(FrameKind::kMessage, Emptied(3).SerializeAsString(), kTwoTensors); }},
      {"more tensors than the message has",
       [](RawChannel& c) { c.SendFrame(FrameKind::kMessage, Emptied(1).SerializeAsString(), kTwoTensors); }},
      {"tensors both apart and within",
       [](RawChannel& c) {
         v1::DecodeRequest step = Emptied(2);
         step.mutable_items(1)->mutable_queries()->set_raw("x");
         c.SendFrame(FrameKind::kMessage, step.SerializeAsString(), kTwoTensors);
       }},
      {"tensors without end",
       [](RawChannel& c) {
         for (size_t i = 0; i <= channel::kMostTensors; ++i) {
           if (!c.SendFrame(FrameKind::kTensor, "")) return;
         }
       }},
      {"more read than was written",
       [](RawChannel& c) {
         c.header().answers.read.fetch_add(5);
         c.Send({});
       }},
  };
  for (const auto& [what, spoil] : kSpoils) {
    SCOPED_TRACE(what);
    const auto channel = RawChannel::Open(*stubs_);
    ASSERT_NE(channel, nullptr);
    spoil(*channel);
    channel::Wake(channel->header().requests.written);
    EXPECT_TRUE(channel->HangsUp());
    EXPECT_TRUE(BecomesOpen(1));
    ExpectUnharmed();
  }
}

// The kernel lets a client move the server's sleeping thread to a futex that nobody wakes. It comes back all the same.
TEST_P(ChannelAttackTest, ASleeperThatIsMovedElsewhere) {
  auto channel = RawChannel::Open(*stubs_);
  ASSERT_NE(channel, nullptr);
  channel::Cursors& requests = channel->header().requests;
  for (int i = 0; i < 1000 && requests.reader_sleeps.load() == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(requests.reader_sleeps.load(), GetParam() ? 0u : 1u);  // one that polls never sleeps
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto moved = syscall(SYS_futex, &requests.written, FUTEX_REQUEUE, 0, 1L, channel->memory() + 2048, 0);
  EXPECT_EQ(moved, GetParam() ? 0 : 1);
  channel = nullptr;
  EXPECT_TRUE(BecomesOpen(1));
  ExpectUnharmed();
}

// Random words into every byte of the memory, over and over, while honest steps run in it. Whatever the server reads,
// it ends that channel at worst.
TEST_P(ChannelAttackTest, AWriterThatRacesWithSteps) {
  constexpr int kRounds = 30;
  int ended = 0;
  for (int round = 0; round < kRounds; ++round) {
    auto channel = RawChannel::Open(*stubs_, channel::kLeastRing);
    ASSERT_NE(channel, nullptr);
    std::atomic<bool> stop{false};
    std::thread racer([&] {
      std::mt19937_64 random(round + 1);
      const size_t words = channel->bytes() / 8;
      // Rings alone in every third round, counters alone in every other third: so that steps go on for a while.
      const size_t begin = round % 3 == 0 ? channel::kHeaderBytes / 8 : 0;
      const size_t end = round % 3 == 1 ? sizeof(channel::Header) / 8 : words;
      while (!stop.load()) {
        for (int i = 0; i < 64; ++i) {
          const uint64_t word = random();
          memcpy(channel->memory() + 8 * (begin + random() % (end - begin)), &word, 8);
        }
        if (round % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
    v1::DecodeRequest step = step_;
    for (int i = 0; i < 20; ++i) {
      if (channel->HangsUp(std::chrono::milliseconds(0))) break;
      const std::string bytes = step.SerializeAsString(), apart = Emptied(2).SerializeAsString();
      // Apart: over what is midway, and never to be continued.
      if (i % 2 == 0) channel->writer().TryWrite(FrameKind::kMessage, bytes);
      if (i % 2 == 1) channel->writer().Write(FrameKind::kMessage, apart, kTwoTensors);
      channel::Wake(channel->header().requests.written);
      channel->reader().Read();  // whatever it is
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    stop.store(true);
    racer.join();
    ended += channel->HangsUp(std::chrono::milliseconds(20)) ? 1 : 0;
    channel = nullptr;
    ExpectUnharmed();
  }
  EXPECT_GT(ended, kRounds / 3);
  EXPECT_TRUE(BecomesOpen(1));
}

// Clients die by SIGKILL while their steps run. A child is a fork that has the channel alone and sends long steps.
TEST_P(ChannelAttackTest, KilledClientsLeaveNothing) {
  const int kills = Kills();
  v1::DecodeRequest heavy;
  for (int i = 0; i < 64; ++i) *heavy.add_items() = Query(handle_, 0, i);
  heavy.mutable_selector()->set_exact(true);
  const std::string message = heavy.SerializeAsString();
  Core& core = server_->core();
  const int descriptors = OpenDescriptors(), threads = Threads();
  const int64_t held = core.in_flight.used_bytes();
  std::atomic<bool> stop{false};
  std::atomic<int> served{0};
  std::thread bystander([&] {
    for (; !stop.load(); ++served) ExpectUnharmed();
  });
  std::mt19937 random(5);
  int midway = 0;
  for (int i = 0; i < kills; ++i) {
    auto channel = RawChannel::Open(*stubs_);
    ASSERT_NE(channel, nullptr);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {  // no allocation from here on
      auto& answers = channel->reader().ring();
      char scratch[4096];
      const auto skip = [&] {
        const int64_t skipped = answers.Take(scratch, sizeof(scratch));
        answers.Release();
        return skipped;
      };
      for (;;) {
        if (channel->writer().Write(FrameKind::kMessage, message) == channel::Progress::kBroken) _exit(1);
        do {
          while (channel->writer().Continue() == channel::Progress::kWait) skip();
        } while (skip() > 0);
      }
    }
    channel = nullptr;  // the child's alone
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    midway += core.channels.open() > 1 ? 1 : 0;
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    ASSERT_TRUE(BecomesOpen(1)) << "after kill " << i;  // within a second
  }
  stop.store(true);
  bystander.join();
  EXPECT_EQ(midway, kills);
  EXPECT_GT(served.load(), 0);
  // The bystander's own message may count at one moment and not at another; a channel would be two mebibytes.
  EXPECT_LT(std::abs(core.in_flight.used_bytes() - held), 64 << 10);
  EXPECT_LE(OpenDescriptors(), descriptors);
  EXPECT_LE(Threads(), threads + 4);  // gRPC makes some as it needs them; a leak would be one a kill
  std::cout << kills << " clients killed, " << served.load() << " steps of another meanwhile\n";
}

INSTANTIATE_TEST_SUITE_P(Serving, ChannelAttackTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "Polling" : "Default"; });

}  // namespace
}  // namespace seine::test
