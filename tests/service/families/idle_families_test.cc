// Families that the idle tier has on disk, or may not have there: frozen, moved, deleted, read.
#include "index/idle/idle_tier.h"
#include "index/memory/memory_budget.h"
#include "service/catalog.h"
#include "tests/service/families/family_node.h"

namespace seine::test {
namespace {

class IdleFamiliesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* id : {"chat", "chat-7"}) {
      ASSERT_TRUE(source_.Create(id).ok());
      for (int layer = 0; layer < kLayers; ++layer) ASSERT_TRUE(source_.Append(id, 0, 200, layer).ok());
    }
    ASSERT_TRUE(source_.Fork("chat", "chat/draft").ok());
  }
  bool SpillOne() { return source_.core().idle->SpillOldest(*source_.core().budget); }
  int64_t Spilled() { return source_.core().idle->Read().families; }
  bool OnDisk(const std::string& id) { return source_.core().catalog.Find("", "a")->GetSequence({id, 0})->on_disk; }

  TempDir dir_;
  Node source_{dir_.path, "n0", /*idle=*/true}, target_{dir_.path, "n1"};
};

TEST_F(IdleFamiliesTest, AFrozenFamilyIsNotSpilled) {
  const std::string freeze = source_.Freeze(2);
  EXPECT_TRUE(SpillOne());
  EXPECT_FALSE(SpillOne());
  EXPECT_TRUE(OnDisk("chat-7"));
  EXPECT_FALSE(OnDisk("chat"));
  ASSERT_TRUE(source_.Thaw(freeze).ok());
  EXPECT_TRUE(SpillOne());
  EXPECT_TRUE(OnDisk("chat"));
  EXPECT_TRUE(OnDisk("chat/draft"));
}

TEST_F(IdleFamiliesTest, WhatSharesWithAFrozenFamilyStaysToo) {
  ASSERT_TRUE(source_.Fork("chat-7", "chat/of-7").ok());
  const std::string freeze = source_.Freeze(3);
  EXPECT_FALSE(SpillOne());
  ASSERT_TRUE(source_.Thaw(freeze).ok());
  EXPECT_TRUE(SpillOne() && SpillOne());
}

TEST_F(IdleFamiliesTest, ASpilledFamilyIsReadWhileItIsFrozen) {
  const std::string before = source_.Ask("chat/draft").SerializeAsString();
  ASSERT_TRUE(SpillOne() && SpillOne());
  const std::string freeze = source_.Freeze(2);
  EXPECT_TRUE(OnDisk("chat")) << "a freeze alone brings nothing back";
  EXPECT_EQ(source_.Append("chat", 200, 1).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(OnDisk("chat")) << "what is refused neither";
  EXPECT_EQ(source_.Ask("chat/draft").SerializeAsString(), before);
  EXPECT_FALSE(OnDisk("chat"));
  EXPECT_FALSE(SpillOne());
  ASSERT_TRUE(source_.Thaw(freeze).ok());
  EXPECT_TRUE(source_.Append("chat", 200, 1).ok());
}

TEST_F(IdleFamiliesTest, ASpilledFamilyMoves) {
  const std::string before = source_.Ask("chat/draft").SerializeAsString();
  ASSERT_TRUE(SpillOne() && SpillOne());
  const std::string freeze = source_.Freeze(2);
  ASSERT_TRUE(source_.Snapshot("chat", "move").ok());
  ASSERT_TRUE(target_.Restore("move").ok());
  ASSERT_TRUE(source_.GiveUp(freeze).ok());
  EXPECT_EQ(target_.Ask("chat/draft").SerializeAsString(), before);
  EXPECT_TRUE(target_.Append("chat", 200, 1).ok());
  EXPECT_EQ(Spilled(), 1) << "chat-7 alone";
}

TEST_F(IdleFamiliesTest, ASpilledFamilyThatIsGivenUpLeavesNoFile) {
  ASSERT_TRUE(SpillOne() && SpillOne());
  ASSERT_TRUE(source_.GiveUp(source_.Freeze(2)).ok());
  EXPECT_EQ(Spilled(), 1);
  EXPECT_TRUE(source_.Delete("chat-7").ok());
  EXPECT_EQ(Spilled(), 0);
}

}  // namespace
}  // namespace seine::test
