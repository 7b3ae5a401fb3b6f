// A family that is copied while it serves, and what came since: whatever changes between the rounds, and a target that
// has forgotten the first ones.
#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "client/fleet/claim.h"
#include "client/fleet/family_copy.h"
#include "tests/client/process.h"
#include "tests/client/random_model.h"

namespace seine::client {
namespace {

class FamilyCopyTest : public testing::Test {
 protected:
  FamilyCopyTest() {
    for (const auto& client : {source_.get(), target_.get()}) MakeIndex(client);
    for (const char* id : {"chat", "chat/apart", "chat/gone"}) Create(id);
    EXPECT_TRUE(source_->ForkSequence({"m", "chat", 0}, "chat/draft", 120).ok());
  }
  static void MakeIndex(Client* client) {
    EXPECT_TRUE(client->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS_VALUES)).ok());
  }
  void Create(const std::string& id) {
    EXPECT_TRUE(source_->CreateSequence("m", id).ok());
    EXPECT_TRUE(Append(source_.get(), id, 0, 200).ok());
  }
  absl::Status Append(Client* client, const std::string& id, int64_t begin, int64_t end) const {
    return client
        ->Append({{"m", id, 0}, 0, begin, model_.Keys(0, begin, end - begin), model_.Values(0, begin, end - begin)})
        .status();
  }
  absl::Status Finish() {
    return copy_.FinishThere(absl::Now() + absl::Seconds(30), [&] {
      ++arrived_;
      return absl::OkStatus();
    });
  }
  void ExpectThere(Client* target, const std::string& id, int64_t tokens) {
    const auto info = target->GetSequence({"m", id, 0});
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->layer_tokens[0], tokens) << id;
    EXPECT_TRUE(Append(target, id, 0, tokens).ok()) << id << " holds the same bytes";
  }

  const TempFolder folder_;
  const RandomModel model_{300};
  const std::vector<std::string> flags_ = {"--snapshots-dir", folder_.Path("snapshots")};
  const Server source_server_{flags_};
  const Server target_server_{flags_};
  std::unique_ptr<Client> source_ = source_server_.Connect(), target_ = target_server_.Connect();
  FamilyCopy copy_{source_.get(), target_.get(), "m", "chat", 1};
  int arrived_ = 0;
};

TEST_F(FamilyCopyTest, WhateverChangesBetweenRoundsIsThere) {
  ASSERT_TRUE(copy_.CopyAhead().ok());
  EXPECT_TRUE(target_->ListSequences("m")->empty());
  const int64_t ahead = copy_.totals.bytes;
  ASSERT_TRUE(Append(source_.get(), "chat", 200, 250).ok());
  ASSERT_TRUE(source_->TruncateSequence({"m", "chat/draft", 0}, 50).ok());
  ASSERT_TRUE(source_->ForkSequence({"m", "chat/draft", 0}, "chat/late", 40).ok());
  ASSERT_TRUE(source_->DeleteSequence({"m", "chat/gone", 0}).ok());
  Create("chat/new");
  const absl::Status status = Finish();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(copy_.totals.why_whole, "");
  EXPECT_EQ(copy_.totals.bytes - ahead, copy_.totals.last_bytes);
  EXPECT_EQ(arrived_, 1);
  EXPECT_EQ(target_->ListSequences("m")->size(), 5u);
  ExpectThere(target_.get(), "chat", 250);
  ExpectThere(target_.get(), "chat/draft", 50);
  ExpectThere(target_.get(), "chat/late", 40);
  ExpectThere(target_.get(), "chat/apart", 200);
  ExpectThere(target_.get(), "chat/new", 200);
}

TEST_F(FamilyCopyTest, WhatCameSinceIsHeldUntilItIsClaimed) {
  ASSERT_TRUE(copy_.CopyAhead().ok());
  ASSERT_TRUE(Append(source_.get(), "chat", 200, 250).ok());
  ASSERT_TRUE(source_->DeleteSequence({"m", "chat/gone", 0}).ok());
  ASSERT_TRUE(source_->DeleteSequence({"m", "chat/draft", 0}).ok());
  const absl::Status status = copy_.Finish(absl::Now() + absl::Seconds(30));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(copy_.totals.why_whole, "");
  EXPECT_EQ(copy_.totals.sequences.size(), 2u);
  EXPECT_TRUE(target_->ListSequences("m")->empty());
  FamilyState left;
  left.generation = 1;
  left.held = copy_.held();
  const auto there = ClaimFamily(target_.get(), "m", left, absl::Now());
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_EQ(there->size(), 2u);
  EXPECT_EQ(target_->ListSequences("m")->size(), 2u) << "what was deleted meanwhile does not come back";
  ExpectThere(target_.get(), "chat", 250);
  ExpectThere(target_.get(), "chat/apart", 200);
}

TEST_F(FamilyCopyTest, ATargetThatHasForgottenHoldsEverything) {
  ASSERT_TRUE(copy_.CopyAhead().ok());
  ASSERT_TRUE(target_->DeleteIndex("m").ok());
  MakeIndex(target_.get());
  ASSERT_TRUE(copy_.Finish(absl::Now() + absl::Seconds(30)).ok());
  EXPECT_NE(copy_.totals.why_whole, "");
  EXPECT_TRUE(target_->ListSequences("m")->empty());
  FamilyState left;
  left.generation = 1;
  left.held = copy_.held();
  ASSERT_TRUE(ClaimFamily(target_.get(), "m", left, absl::Now()).ok());
  ExpectThere(target_.get(), "chat", 200);
  ExpectThere(target_.get(), "chat/draft", 120);
}

TEST_F(FamilyCopyTest, ATargetThatHasForgottenGetsEverything) {
  ASSERT_TRUE(copy_.CopyAhead().ok());
  ASSERT_TRUE(target_->DeleteIndex("m").ok());  // and what was held for it
  MakeIndex(target_.get());
  const absl::Status status = Finish();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_NE(copy_.totals.why_whole, "");
  ExpectThere(target_.get(), "chat", 200);
  ExpectThere(target_.get(), "chat/draft", 120);
}

TEST_F(FamilyCopyTest, WhatIsReleasedLeavesNoMemory) {
  const auto held = [&] { return target_->GetServerInfo()->memory_bytes(); };
  const int64_t before = held();
  ASSERT_TRUE(copy_.CopyAhead().ok());
  EXPECT_GT(held(), before + 3 * 200 * 64);
  copy_.Release();
  EXPECT_EQ(held(), before);
  EXPECT_TRUE(target_->ListSequences("m")->empty());
}

TEST_F(FamilyCopyTest, AFullTargetSaysSoWhileTheFamilyServes) {
  ASSERT_TRUE(target_->DeleteIndex("m").ok());
  v1::IndexSpec spec = RandomModel::Spec("m", v1::KV_STORE_KEYS_VALUES);
  spec.set_memory_limit_bytes(source_->GetServerInfo()->memory_bytes() / 2);
  ASSERT_TRUE(target_->CreateIndex(spec).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(copy_.CopyAhead()));
  EXPECT_TRUE(Append(source_.get(), "chat", 200, 210).ok()) << "nothing is frozen";
}

}  // namespace
}  // namespace seine::client
