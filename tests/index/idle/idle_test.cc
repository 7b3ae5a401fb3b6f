// The idle tier: families go to disk by time and for want of memory, and come back as they were with the next call.
#include <gtest/gtest.h>
#include <malloc.h>

#include "index/sequence/sequence.h"
#include "tests/index/idle/idle_fixture.h"

namespace seine {
namespace {

using testing::AnswersOf;
using testing::Extend;
using testing::IdleTest;
using testing::SnapshotOf;
using testing::StateCase;
using testing::StateOf;

TEST_F(IdleTest, AFamilyComesBackAsItWas) {
  Open();
  Make("a");
  ASSERT_TRUE(index_->Fork({"a", 0}, "b", 200).ok());
  Extend(index_.get(), "b", 50);
  const SequenceHandle handle = index_->GetSequence({"a", 0})->handle;
  const std::string a = StateOf(*index_, "a"), b = StateOf(*index_, "b");
  const int64_t held = budget_->used_bytes();
  budget_->SetLimit(held + 2 * SpilledSequenceBytes(Config()), Account::kHost);  // they go once both are back
  ASSERT_TRUE(tier_->SpillOldest(*budget_));
  EXPECT_TRUE(OnDisk("a") && OnDisk("b"));
  EXPECT_EQ(index_->GetSequence(handle)->layer_tokens, (std::vector<int64_t>{300, 300}));
  EXPECT_EQ(index_->num_tokens(), 550);
  EXPECT_LT(budget_->used_bytes(), held / 2);
  EXPECT_EQ(Files(), 1);
  EXPECT_EQ(index_->Gather(handle, 0, 0, {}, nullptr, nullptr), absl::OkStatus()) << "the generation is the same";
  EXPECT_FALSE(OnDisk("a") || OnDisk("b"));
  EXPECT_EQ(Files(), 0);
  EXPECT_EQ(budget_->used_bytes(), held) << "what was shared is shared";
  budget_->SetLimit(0, Account::kHost);  // a snapshot copies the last pieces
  EXPECT_TRUE(StateOf(*index_, "a") == a);
  EXPECT_TRUE(StateOf(*index_, "b") == b);
}

TEST_F(IdleTest, MemoryShortSpillsTheLeastRecentlyUsed) {
  budget_->SetLimit(2 << 20, Account::kHost);
  Open();
  Make("first");
  Make("second");
  Extend(index_.get(), "first", 1);
  Fill();
  EXPECT_TRUE(OnDisk("second"));
  EXPECT_FALSE(OnDisk("first"));
}

TEST_F(IdleTest, ADeletedForkDoesNotComeBack) {
  Open();
  Make("a");
  ASSERT_TRUE(index_->Fork({"a", 0}, "b", -1).ok());
  ASSERT_TRUE(tier_->SpillOldest(*budget_));
  ASSERT_TRUE(index_->DeleteSequence({"a", 0}).ok());
  EXPECT_TRUE(OnDisk("b"));
  Extend(index_.get(), "b", 1);
  EXPECT_EQ(index_->ListSequences().size(), 1u);
  ASSERT_TRUE(tier_->SpillOldest(*budget_));
  ASSERT_TRUE(index_->DeleteSequence({"b", 0}).ok());
  EXPECT_EQ(Files(), 0) << "the file goes with its last sequence";
}

TEST_F(IdleTest, ATenantsLimitSpillsItsOwnFamiliesAlone) {
  Open();
  Make("older");
  const auto tenant = std::make_shared<MemoryBudget>(1 << 20, 0, budget_);
  const auto other = Index::Create(Config(), backend_.get(), tenant, nullptr, nullptr, tier_);
  ASSERT_TRUE(other.ok()) << other.status();
  for (int i = 0; i < 100 && tier_->Read().families < 2; ++i) {
    const std::string id = "s" + std::to_string(i);
    ASSERT_TRUE((*other)->CreateSequence(id).ok());
    Extend(other->get(), id, 300);
  }
  EXPECT_TRUE((*other)->GetSequence({"s0", 0})->on_disk);
  EXPECT_FALSE(OnDisk("older"));
  ASSERT_TRUE(tier_->SpillOldest(*budget_)) << "the server's limit is everyone's";
  EXPECT_TRUE(OnDisk("older"));
}

TEST_F(IdleTest, WhatWasUsedLatelyStays) {
  Open(0, std::chrono::hours(1));
  Make("a");
  tier_->SpillIdle();
  EXPECT_FALSE(OnDisk("a"));
  index_ = nullptr;
  tier_ = nullptr;
  Open(0, std::chrono::milliseconds(1));
  Make("a");
  // It may go before its first tokens too, and come back with them.
  WaitUntil([this] { return OnDisk("a") && tier_->Read().spills_idle > 0; });
}

TEST_F(IdleTest, ForksAreInOneFile) {
  Open();
  Make("alone", 900);
  ASSERT_TRUE(tier_->SpillOldest(*budget_));
  const int64_t alone = tier_->Read().bytes;
  ASSERT_TRUE(index_->DeleteSequence({"alone", 0}).ok());
  Make("a", 900);
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(index_->Fork({"a", 0}, "", -1).ok());
  ASSERT_TRUE(tier_->SpillOldest(*budget_));
  EXPECT_FALSE(tier_->SpillOldest(*budget_)) << "all of them have gone";
  EXPECT_LT(tier_->Read().bytes, 2 * alone);
  EXPECT_EQ(Files(), 1);
}

TEST_F(IdleTest, ASpilledSequenceIsListedDeletedAndMadeAgain) {
  Open();
  Make("a");
  ASSERT_TRUE(tier_->SpillOldest(*budget_));
  const SequenceHandle old = index_->GetSequence({"a", 0})->handle;
  EXPECT_TRUE(index_->ListSequences().front().on_disk);
  EXPECT_TRUE(absl::IsAlreadyExists(index_->CreateSequence("a").status()));
  ASSERT_TRUE(index_->DeleteSequence(old).ok());
  Make("a", 10);
  EXPECT_TRUE(absl::IsFailedPrecondition(index_->GetSequence(old).status())) << "another generation";
  EXPECT_FALSE(OnDisk("a"));
}

TEST_F(IdleTest, AFamilyThatIsHeldBackStays) {
  bool free = false;
  std::vector<std::string> asked;
  std::weak_ptr<void> held;
  hooks_.hold = [&](const FamilyNames& family) -> std::shared_ptr<void> {
    asked.clear();
    for (const absl::string_view id : family.ids) asked.emplace_back(id);
    EXPECT_EQ(family.index, "test");
    const auto given = std::make_shared<int>();
    held = given;
    return free ? given : nullptr;
  };
  Open();
  Make("a");
  ASSERT_TRUE(index_->Fork({"a", 0}, "b", -1).ok());
  EXPECT_FALSE(tier_->SpillOldest(*budget_));
  EXPECT_FALSE(OnDisk("a"));
  EXPECT_EQ(asked, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(tier_->Read().spills_failed, 0);
  free = true;
  disk_.stands = true;
  std::thread spiller([this] { EXPECT_TRUE(tier_->SpillOldest(*budget_)); });
  WaitFor(disk_.waits);
  EXPECT_FALSE(held.expired()) << "until the family is written";
  disk_.stands = false;
  spiller.join();
  EXPECT_TRUE(held.expired());
  EXPECT_TRUE(OnDisk("b"));
}

TEST_F(IdleTest, ARequestForRoomIsMetInTheBackground) {
  Open();
  Make("a");
  tier_->MakeRoomSoon(*budget_);
  WaitUntil([this] { return tier_->Read().families == 1; });
  EXPECT_TRUE(OnDisk("a"));
}

TEST_F(IdleTest, ATierThatHasStoppedCallsNobodyAndSpillsNothing) {
  int failures = 0;
  hooks_.failed = [&](const absl::Status&) { ++failures; };
  Open();
  Make("a");
  Make("b");
  disk_.error = ENOSPC;
  EXPECT_FALSE(tier_->SpillOldest(*budget_));
  EXPECT_EQ(failures, 2) << "each was tried";
  disk_.error = 0;
  ASSERT_TRUE(tier_->SpillOldest(*budget_));
  std::filesystem::remove_all(folder_.Path("tier/idle"));
  tier_->Stop();
  EXPECT_FALSE(tier_->SpillOldest(*budget_));
  EXPECT_TRUE(absl::IsDataLoss(index_->Gather({"a", 0}, 0, 0, {}, nullptr, nullptr)));
  EXPECT_EQ(tier_->Read().restores_failed, 1);
  EXPECT_EQ(failures, 2);
}

TEST_F(IdleTest, RoomForAnIndexIsMadeToo) {
  Open();
  for (int i = 0; i < 8; ++i) Make("s" + std::to_string(i));
  budget_->SetLimit(budget_->used_bytes(), Account::kHost);
  IndexConfig large = Config();
  large.name = "large";
  large.geometry.num_layers = 128;
  large.subspace.emplace();
  large.subspace->key_rank = large.subspace->value_rank = 8;
  ASSERT_TRUE(absl::IsResourceExhausted(Index::Create(large, backend_.get(), budget_).status())) << "without a tier";
  const auto made = Index::Create(large, backend_.get(), budget_, nullptr, nullptr, tier_);
  EXPECT_TRUE(made.ok()) << made.status();
  EXPECT_GE(tier_->Read().spills_memory, 1);
}

TEST_F(IdleTest, WhatStaysOfSpilledSequencesIsCounted) {
  constexpr int kSequences = 64;
  constexpr int64_t kOfTheIndex = 16 << 10;  // its map's buckets
  Open();
  const auto allocated = [] {
    const struct mallinfo2 info = mallinfo2();  // a sanitizer's allocator tells nothing: 0
    return static_cast<int64_t>(info.uordblks + info.hblkhd);
  };
  const int64_t before = allocated();
  for (int i = 0; i < kSequences; ++i) Make("s" + std::to_string(i), 1);
  while (tier_->SpillOldest(*budget_)) {
  }
  EXPECT_EQ(tier_->Read().families, kSequences);
  EXPECT_GE(budget_->used_bytes(), kSequences * int64_t{sizeof(std::string)});
  EXPECT_LE(allocated() - before, budget_->used_bytes() + kOfTheIndex);
  for (int i = 0; i < kSequences; ++i) ASSERT_TRUE(index_->DeleteSequence({"s" + std::to_string(i), 0}).ok());
  EXPECT_EQ(budget_->used_bytes(), 0);
}

class IdleStateTest : public ::testing::TestWithParam<StateCase> {};

TEST_P(IdleStateTest, ComesBackBitForBit) {
  const TempFolder folder;
  const auto backend = MakeCpuBackend(1);
  const auto stays = testing::MakeState(GetParam(), backend.get());
  auto tier = IdleTier::Open({.folder = folder.Path("tier")});
  ASSERT_TRUE(tier.ok()) << tier.status();
  const auto budget = std::make_shared<MemoryBudget>(0);
  auto index = Index::Create(GetParam().config(), backend.get(), budget, nullptr, nullptr, *tier);
  ASSERT_TRUE(index.ok()) << index.status();
  ASSERT_TRUE(testing::RestoreFrom(SnapshotOf(*stays), index->get()).ok());
  const auto spill = [&] {
    ASSERT_TRUE((*tier)->SpillOldest(*budget));
    ASSERT_TRUE((*index)->GetSequence({"a", 0})->on_disk);
  };
  spill();
  EXPECT_TRUE(AnswersOf(**index, "a") == AnswersOf(*stays, "a"));
  spill();
  EXPECT_TRUE(StateOf(**index, "a") == StateOf(*stays, "a")) << "what the answers have taught it included";
  EXPECT_EQ((*tier)->Read().restores, 2);
}

INSTANTIATE_TEST_SUITE_P(All, IdleStateTest, ::testing::ValuesIn(testing::AllStates()),
                         [](const auto& parameter) { return parameter.param.name; });

}  // namespace
}  // namespace seine
