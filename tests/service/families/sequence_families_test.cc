// The states of families: what each lets through, when it ends, and that a freeze waits for changes.
#include "service/families/sequence_families.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace seine {
namespace {

using std::chrono::seconds;

class FamiliesTest : public ::testing::Test {
 protected:
  std::string Frozen(const FamilyKey& key) {
    std::string freeze;
    EXPECT_TRUE(families_.Freeze(key, seconds(60), 0, &freeze).ok());
    return freeze;
  }
  absl::Status GiveUp(const std::string& freeze) {
    return families_.GiveUp(kKey, freeze, {"n1", "host:1", 3}, seconds(100));
  }
  bool MayChange(const FamilyKey& key) {
    SequenceFamilies::Change change;
    return families_.BeginChange(key, &change).ok();
  }

  static constexpr FamilyKey kKey{"", "a", "chat"};
  SequenceFamilies::Clock::time_point now_;
  SequenceFamilies families_{[this] { return now_; }, /*most_of_a_shard=*/4};
};

TEST_F(FamiliesTest, FamilyIsWhatStandsBeforeTheFirstSlash) {
  EXPECT_EQ(FamilyOfId("chat"), "chat");
  EXPECT_EQ(FamilyOfId("chat/a/b"), "chat");
  EXPECT_EQ(FamilyOfId("/a"), "");
}

TEST_F(FamiliesTest, AFrozenFamilyIsReadAndNotChanged) {
  const std::string freeze = Frozen(kKey);
  EXPECT_TRUE(families_.CheckHere(kKey).ok());
  EXPECT_FALSE(MayChange(kKey));
  for (const FamilyKey& other : {FamilyKey{"", "a", "chat-7"}, {"", "b", "chat"}, {"t", "a", "chat"}}) {
    EXPECT_TRUE(MayChange(other));
  }
  EXPECT_FALSE(families_.Thaw(kKey, "another").ok());
  EXPECT_TRUE(families_.Thaw(kKey, freeze).ok());
  EXPECT_TRUE(MayChange(kKey));
}

TEST_F(FamiliesTest, FamiliesAreCountedByTheirState) {
  EXPECT_EQ(families_.Count().frozen, 0);
  const std::string freeze = Frozen(kKey);
  EXPECT_EQ(families_.Count().frozen, 1);
  ASSERT_TRUE(GiveUp(freeze).ok());
  EXPECT_EQ(families_.Count().frozen, 0);
  EXPECT_EQ(families_.Count().moved, 1);
  now_ += seconds(100);
  EXPECT_EQ(families_.Count().moved, 0);
}

TEST_F(FamiliesTest, AFreezeEndsByItselfAndThenGivesNothingUp) {
  const std::string freeze = Frozen(kKey);
  now_ += seconds(59);
  EXPECT_FALSE(MayChange(kKey));
  now_ += seconds(1);
  EXPECT_TRUE(MayChange(kKey));
  EXPECT_FALSE(GiveUp(freeze).ok());
  EXPECT_NE(Frozen(kKey), freeze);
  EXPECT_FALSE(GiveUp(freeze).ok()) << "the freeze of another, later try";
  EXPECT_TRUE(families_.CheckHere(kKey).ok());
}

TEST_F(FamiliesTest, WhatHasMovedIsRememberedForAWhile) {
  ASSERT_TRUE(GiveUp(Frozen(kKey)).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(families_.CheckHere(kKey)));
  EXPECT_FALSE(MayChange(kKey));
  std::string freeze;
  EXPECT_FALSE(families_.Freeze(kKey, seconds(1), 0, &freeze).ok());
  now_ += seconds(100);
  EXPECT_TRUE(families_.CheckHere(kKey).ok());
}

TEST_F(FamiliesTest, AFamilyComesBackAndADeletedIndexIsForgotten) {
  ASSERT_TRUE(GiveUp(Frozen(kKey)).ok());
  families_.Arrive(kKey, 0);
  EXPECT_TRUE(MayChange(kKey));
  Frozen(kKey);
  families_.Arrive(kKey, 0);
  EXPECT_FALSE(MayChange(kKey)) << "a freeze stays";
  families_.ForgetIndex("", "b");
  EXPECT_FALSE(MayChange(kKey));
  families_.ForgetIndex("", "a");
  EXPECT_TRUE(MayChange(kKey));
}

TEST_F(FamiliesTest, MovesAreForgottenBeforeTheyAreTooMany) {
  constexpr int kMany = 1000;
  for (int i = 0; i < kMany; ++i) {
    const std::string family = absl::StrCat("f", i);
    const FamilyKey key{"", "a", family};
    now_ += seconds(i == 0 ? 0 : 1);
    ASSERT_TRUE(families_.GiveUp(key, Frozen(key), {"n1", "host:1", 1}, std::chrono::hours(1000)).ok());
  }
  EXPECT_TRUE(families_.CheckHere({"", "a", "f0"}).ok());
  EXPECT_FALSE(families_.CheckHere({"", "a", absl::StrCat("f", kMany - 1)}).ok());
}

TEST_F(FamiliesTest, AFreezeWaitsForChangesThatHaveBegun) {
  SequenceFamilies::Change change;
  ASSERT_TRUE(families_.BeginChange(kKey, &change).ok());
  std::future<std::string> freeze = std::async(std::launch::async, [&] { return Frozen(kKey); });
  while (MayChange(kKey)) std::this_thread::yield();  // until the freeze has begun
  EXPECT_EQ(freeze.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  change = SequenceFamilies::Change();
  EXPECT_FALSE(freeze.get().empty());
}

TEST_F(FamiliesTest, AFreezeEndsThoughItsIndexIsDeletedMeanwhile) {
  SequenceFamilies::Change change;
  ASSERT_TRUE(families_.BeginChange(kKey, &change).ok());
  std::future<std::string> freeze = std::async(std::launch::async, [&] { return Frozen(kKey); });
  while (MayChange(kKey)) std::this_thread::yield();
  families_.ForgetIndex(kKey.tenant, kKey.index);
  change = SequenceFamilies::Change();  // is to wake the freeze
  EXPECT_FALSE(freeze.get().empty());
}

// Each change counts while it is under way. Nothing may change between a freeze and its thaw, and each freeze ends
// although changes never pause.
TEST_F(FamiliesTest, NothingChangesWhileFrozen) {
  std::atomic<int64_t> changes{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (int i = 0; i < 3; ++i) {
    writers.emplace_back([&] {
      while (!stop) {
        SequenceFamilies::Change change;
        if (families_.BeginChange(kKey, &change).ok()) ++changes;
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    const std::string freeze = Frozen(kKey);
    const int64_t seen = changes;
    std::this_thread::yield();
    EXPECT_EQ(changes, seen);
    EXPECT_TRUE(families_.Thaw(kKey, freeze).ok());
  }
  stop = true;
  for (std::thread& writer : writers) writer.join();
}

TEST_F(FamiliesTest, AnOlderGenerationIsRefused) {
  std::string freeze;
  families_.Arrive(kKey, 5);
  EXPECT_EQ(families_.Generation(kKey), 5u);
  EXPECT_FALSE(families_.CheckArrival(kKey, 4).ok());
  EXPECT_TRUE(families_.CheckArrival(kKey, 5).ok()) << "a further part of the same copy";
  EXPECT_TRUE(families_.CheckArrival(kKey, 0).ok()) << "nothing is compared";
  EXPECT_FALSE(families_.Freeze(kKey, seconds(60), 4, &freeze).ok());
  ASSERT_TRUE(families_.Freeze(kKey, seconds(60), 5, &freeze).ok());
  EXPECT_FALSE(families_.GiveUp(kKey, freeze, {"n1", "host:1", 5}, seconds(100)).ok());
  ASSERT_TRUE(families_.GiveUp(kKey, freeze, {"n1", "host:1", 6}, seconds(100)).ok());
  EXPECT_FALSE(families_.CheckArrival(kKey, 6).ok()) << "that one is elsewhere";
  EXPECT_TRUE(families_.CheckArrival(kKey, 7).ok());
  families_.Arrive(kKey, 7);
  EXPECT_EQ(families_.Generation(kKey), 7u);
  families_.Forget(kKey);
  EXPECT_EQ(families_.Generation(kKey), 0u);
}

TEST_F(FamiliesTest, WithoutAGenerationTheNextOneCounts) {
  ASSERT_TRUE(families_.GiveUp(kKey, Frozen(kKey), {"n1", "host:1", 0}, seconds(100)).ok());
  EXPECT_EQ(families_.Generation(kKey), 1u);
  families_.Arrive(kKey, 0);
  EXPECT_EQ(families_.Generation(kKey), 2u);
  families_.ForgetIndex("", "a");
  EXPECT_EQ(families_.Generation(kKey), 0u);
}

TEST_F(FamiliesTest, AnIndexsFamiliesAreListed) {
  families_.Arrive({"", "a", "b"}, 2);
  families_.Arrive({"", "a", "served"}, 1);
  families_.Arrive({"t", "a", "another tenant's"}, 1);
  Frozen({"", "a", "b"});
  ASSERT_TRUE(GiveUp(Frozen(kKey)).ok());
  const std::vector<KnownFamily> known = families_.List("", "a");
  ASSERT_EQ(known.size(), 3u);
  EXPECT_EQ(known[0].family, "b");
  EXPECT_TRUE(known[0].frozen && !known[0].moved);
  EXPECT_EQ(known[0].home.generation, 2u);
  EXPECT_EQ(known[0].seconds_left, 60);
  EXPECT_EQ(known[1].family, "chat");
  EXPECT_TRUE(known[1].moved && !known[1].frozen);
  EXPECT_EQ(known[1].home.node, "n1");
  EXPECT_EQ(known[2].family, "served");
  EXPECT_FALSE(known[2].moved || known[2].frozen);
  now_ += seconds(101);
  EXPECT_EQ(families_.List("", "a").size(), 2u) << "generations stay";
}

}  // namespace
}  // namespace seine
