// Snapshots that add to others: what is read in rounds is what is written at once, whatever happens between them. What
// is held is no sequence of the index, and an error leaves a base as it was.
#include <gtest/gtest.h>

#include "index/snapshot/snapshot_base.h"
#include "tests/index/snapshot/states.h"

namespace seine {
namespace {

using absl::StatusCode;
using testing::AllStates;
using testing::AnswersOf;
using testing::Extend;
using testing::MakeIndex;
using testing::MakeState;
using testing::SmallConfig;
using testing::StateCase;
using testing::StateOf;
using testing::TestBackend;
using testing::WaitForBackground;

// The two sides of a move.
struct Sides {
  explicit Sides(const StateCase& c) : from(MakeState(c, &backend)), to(MakeIndex(c.config(), &backend)) {}
  std::string Write(const std::string& id = "a") {
    StringSink sink;
    const auto info = from->Snapshot({id, 0}, SnapshotScope::kFamily, &sink, &written);
    EXPECT_TRUE(info.ok()) << info.status();
    return sink.text();
  }
  absl::Status Read(const std::string& snapshot, bool hold) {
    StringSource source(snapshot);
    return to->Restore(&source, {.base = &read, .hold = hold}).status();
  }

  void GrowBoth() {
    for (Index* index : {from.get(), to.get()}) {
      for (const SequenceInfo& info : from->ListSequences()) Extend(index, info.handle.id, 65);
      WaitForBackground(*index);
    }
  }

  TestBackend backend;
  std::unique_ptr<Index> from, to;
  WrittenBase written;
  ReadBase read;
};

StateCase Plain(int64_t tokens) {
  return {.name = "Plain", .config = [] { return SmallConfig(KvStore::kKeysValues); }, .tokens = tokens};
}

class SnapshotBaseStateTest : public ::testing::TestWithParam<StateCase> {};

TEST_P(SnapshotBaseStateTest, RoundsGiveWhatOneCopyGives) {
  Sides sides(GetParam());
  ASSERT_TRUE(sides.Read(sides.Write(), /*hold=*/true).ok());
  EXPECT_TRUE(sides.to->ListSequences().empty());
  Extend(sides.from.get(), "a", 3);
  Extend(sides.from.get(), "a", 130);
  WaitForBackground(*sides.from);
  ASSERT_TRUE(sides.Read(sides.Write(), /*hold=*/true).ok());
  const int64_t length = sides.from->GetSequence({"a", 0})->layer_tokens[0];
  ASSERT_TRUE(sides.from->Truncate({"a", 0}, length - 1).ok());
  ASSERT_TRUE(sides.from->Fork({"a", 0}, "late", -1).ok());
  Extend(sides.from.get(), "a", 70);
  WaitForBackground(*sides.from);
  const absl::Status done = sides.Read(sides.Write("late"), /*hold=*/false);
  ASSERT_TRUE(done.ok()) << done;
  sides.read = {};
  sides.written = {};
  ASSERT_EQ(sides.to->ListSequences().size(), sides.from->ListSequences().size());
  for (const SequenceInfo& info : sides.from->ListSequences()) {
    const std::string& id = info.handle.id;
    EXPECT_TRUE(StateOf(*sides.from, id) == StateOf(*sides.to, id)) << id;
  }
  sides.GrowBoth();
  for (const SequenceInfo& info : sides.from->ListSequences()) {
    const std::string& id = info.handle.id;
    EXPECT_TRUE(AnswersOf(*sides.from, id) == AnswersOf(*sides.to, id)) << id;
  }
}

INSTANTIATE_TEST_SUITE_P(All, SnapshotBaseStateTest, ::testing::ValuesIn(AllStates()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

TEST(SnapshotBaseTest, WhatCameSinceIsSmall) {
  Sides sides(Plain(9000));
  const std::string first = sides.Write();
  ASSERT_TRUE(sides.Read(first, /*hold=*/true).ok());
  Extend(sides.from.get(), "a", 5);
  const std::string second = sides.Write();
  EXPECT_LT(second.size(), first.size() / 3);
  ASSERT_TRUE(sides.Read(second, /*hold=*/false).ok());
  EXPECT_EQ(sides.to->GetSequence({"a", 0})->layer_tokens[0], 9005);
  EXPECT_TRUE(AnswersOf(*sides.from, "a") == AnswersOf(*sides.to, "a"));
}

TEST(SnapshotBaseTest, WhatIsHeldIsMemoryAndNoSequence) {
  Sides sides(Plain(3000));
  const std::string snapshot = sides.Write();
  const int64_t before = sides.to->stats().store_bytes;
  ASSERT_TRUE(sides.Read(snapshot, /*hold=*/true).ok());
  EXPECT_GT(sides.to->stats().store_bytes, before + 3000 * 64);
  EXPECT_FALSE(sides.to->GetSequence({"a", 0}).ok());
  EXPECT_EQ(sides.to->stats().num_sequences, 0);
  sides.read = {};
  EXPECT_EQ(sides.to->stats().store_bytes, before);
}

// A base that holds a family brings it up without a file, as it was read last.
TEST(SnapshotBaseTest, WhatIsHeldIsThereOnceItIsAskedFor) {
  Sides sides(Plain(3000));
  ASSERT_TRUE(sides.Read(sides.Write(), /*hold=*/true).ok());
  Extend(sides.from.get(), "a", 130);
  ASSERT_TRUE(sides.from->Fork({"a", 0}, "late", 50).ok());
  ASSERT_TRUE(sides.Read(sides.Write(), /*hold=*/true).ok());
  const int64_t held = sides.to->stats().store_bytes;
  const auto there = sides.to->RestoreHeld({.base = &sides.read});
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_EQ(sides.to->stats().store_bytes, held) << "nothing is copied";
  sides.read = {};
  sides.written = {};
  ASSERT_EQ(there->sequences.size(), 2u);
  for (const SequenceInfo& one : there->sequences) {
    const auto found = sides.to->GetSequence(one.handle);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->layer_tokens, one.layer_tokens);
    EXPECT_TRUE(StateOf(*sides.from, one.handle.id) == StateOf(*sides.to, one.handle.id)) << one.handle.id;
  }
  sides.GrowBoth();
  EXPECT_TRUE(AnswersOf(*sides.from, "a") == AnswersOf(*sides.to, "a"));
}

TEST(SnapshotBaseTest, WhatIsHeldStaysHeldWhereItCannotBeThere) {
  Sides sides(Plain(300));
  EXPECT_EQ(sides.to->RestoreHeld({.base = &sides.read}).status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(sides.Read(sides.Write(), /*hold=*/true).ok());
  const auto refused = [](const std::vector<SequenceInfo>& one) {
    EXPECT_EQ(one.size(), 1u);
    return absl::FailedPreconditionError("stale");
  };
  EXPECT_EQ(sides.to->RestoreHeld({.accept = refused, .base = &sides.read}).status().message(), "stale");
  const auto full = [](int64_t sequences) {
    EXPECT_EQ(sequences, 1);
    return absl::ResourceExhaustedError("full");
  };
  EXPECT_EQ(sides.to->RestoreHeld({.admit = full, .base = &sides.read}).status().message(), "full");
  ASSERT_TRUE(sides.to->CreateSequence("a").ok());
  EXPECT_EQ(sides.to->RestoreHeld({.base = &sides.read}).status().code(), StatusCode::kAlreadyExists);
  ASSERT_TRUE(sides.to->DeleteSequence({"a", 0}).ok());
  const auto there = sides.to->RestoreHeld({.base = &sides.read});
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_TRUE(AnswersOf(*sides.from, "a") == AnswersOf(*sides.to, "a"));
  // Whoever writes to it writes to copies of what a base holds, so that it may be brought back.
  Extend(sides.to.get(), "a", 3);
  ASSERT_TRUE(sides.to->DeleteSequence({"a", 0}).ok());
  ASSERT_TRUE(sides.to->RestoreHeld({.base = &sides.read}).ok());
  EXPECT_EQ(sides.to->GetSequence({"a", 0})->layer_tokens[0], 303) << "what was acknowledged meanwhile";
}

TEST(SnapshotBaseTest, ATargetThatIsFullSaysSoAtOnce) {
  Sides sides(Plain(3000));
  IndexConfig config = sides.to->config();
  config.memory_limit_bytes = sides.from->stats().store_bytes / 2;
  sides.to = MakeIndex(config, &sides.backend);
  EXPECT_EQ(sides.Read(sides.Write(), /*hold=*/true).code(), StatusCode::kResourceExhausted);
}

TEST(SnapshotBaseTest, AnIdThatIsInUseIsToldWhileItIsHeld) {
  Sides sides(Plain(100));
  ASSERT_TRUE(sides.to->CreateSequence("a").ok());
  EXPECT_EQ(sides.Read(sides.Write(), /*hold=*/true).code(), StatusCode::kAlreadyExists);
}

TEST(SnapshotBaseTest, ASnapshotIsReadWithItsOwnBaseAlone) {
  Sides sides(Plain(300)), others(Plain(300));
  const std::string first = sides.Write();
  ASSERT_TRUE(sides.Read(first, /*hold=*/true).ok());
  const std::string second = sides.Write();
  ASSERT_TRUE(others.Read(others.Write(), /*hold=*/true).ok());
  EXPECT_EQ(others.Read(second, /*hold=*/false).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(testing::RestoreFrom(second, others.to.get()).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(sides.Read(first, /*hold=*/false).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(others.to->ListSequences().empty());
  EXPECT_TRUE(testing::RestoreFrom(first, others.to.get()).ok()) << "the first of a chain stands alone too";
}

TEST(SnapshotBaseTest, AnErrorLeavesTheBaseAsItWas) {
  Sides sides(Plain(300));
  ASSERT_TRUE(sides.Read(sides.Write(), /*hold=*/true).ok());
  Extend(sides.from.get(), "a", 100);
  const std::string second = sides.Write();
  for (size_t at = second.size() - 5; at > 40; at -= second.size() / 40) {
    std::string damaged = second;
    damaged[at] ^= 1;
    EXPECT_EQ(sides.Read(damaged, /*hold=*/false).code(), StatusCode::kDataLoss) << at;
  }
  EXPECT_EQ(sides.Read(second.substr(0, second.size() / 2), /*hold=*/false).code(), StatusCode::kDataLoss);
  ASSERT_TRUE(sides.Read(second, /*hold=*/false).ok());
  EXPECT_TRUE(StateOf(*sides.from, "a") == StateOf(*sides.to, "a"));
}

// The sink of a disk that is full.
class FullSink : public ByteSink {
 public:
  absl::Status Write(const uint8_t*, int64_t) override { return absl::ResourceExhaustedError("full"); }
};

TEST(SnapshotBaseTest, WhatWasNotWrittenIsInNoBase) {
  Sides sides(Plain(300));
  ASSERT_TRUE(sides.Read(sides.Write(), /*hold=*/true).ok());
  Extend(sides.from.get(), "a", 100);
  FullSink full;
  EXPECT_FALSE(sides.from->Snapshot({"a", 0}, SnapshotScope::kFamily, &full, &sides.written).ok());
  ASSERT_TRUE(sides.Read(sides.Write(), /*hold=*/false).ok());
  EXPECT_TRUE(StateOf(*sides.from, "a") == StateOf(*sides.to, "a"));
}

}  // namespace
}  // namespace seine
