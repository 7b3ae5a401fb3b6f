// Tables of cells and texts over a session that holds no rows, with limits that are reached soon.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engines/llama.cpp/remote/remote_texts.h"
#include "engines/llama.cpp/tests/remote/fake_session.h"

namespace seine::llama {
namespace {

// Holds at most so many sequences.
class FewSequences final : public FakeSession {
 public:
  FewSequences(size_t most, std::set<int>* live, const std::vector<FoundSequence>& found = {})
      : FakeSession(found), most_(most), live_(live) {
    for (const FoundSequence& sequence : found) live_->insert(sequence.id);
  }

  absl::StatusOr<int> Create() override {
    if (live_->size() >= most_) return absl::ResourceExhaustedError("no more sequences");
    absl::StatusOr<int> made = FakeSession::Create();
    live_->insert(*made);
    return made;
  }
  absl::StatusOr<int> Fork(int sequence, int64_t) override {
    EXPECT_TRUE(live_->count(sequence));
    return Create();
  }
  absl::Status Truncate(int sequence, int64_t) override {
    EXPECT_TRUE(live_->count(sequence));
    return absl::OkStatus();
  }
  void Delete(int sequence) override { EXPECT_EQ(live_->erase(sequence), 1u); }

 private:
  const size_t most_;
  std::set<int>* const live_;
};

// A token at `position` in a cell of its own, behind the row in another; -1: none. nullptr: it has no text.
RemoteText* WriteToken(RemoteTexts* texts, int64_t cell, int64_t position, int64_t before, std::string* why) {
  texts->StartPlan();
  texts->Write(cell, position);
  RemoteText* const text = before < 0 ? texts->Begin(why) : texts->Behind(before, position, {}, why);
  if (text != nullptr) texts->Add(text, cell);
  return text;
}

constexpr int64_t kPrefix = 50, kAnswer = 30;

// One slot: a prefix that stays, and behind it another answer each time, in the cells of the one before.
void AnswerOften(int chats, size_t most, size_t most_left) {
  std::set<int> live;
  RemoteTexts texts;
  texts.SetCells(kPrefix + kAnswer, kPrefix + kAnswer, /*kept=*/false);
  texts.Open(std::make_unique<FewSequences>(most, &live), 1);
  std::string why;
  for (int64_t p = 0; p < kPrefix; ++p) ASSERT_NE(WriteToken(&texts, p, p, p - 1, &why), nullptr) << why;
  for (int chat = 0; chat < chats; ++chat) {
    for (int64_t p = kPrefix; p < kPrefix + kAnswer; ++p) {
      RemoteText* const text = WriteToken(&texts, p, p, p - 1, &why);
      ASSERT_NE(text, nullptr) << why << " " << chat;
      ASSERT_EQ(text->length(), p + 1);
      for (int64_t cell = 0; cell <= p; ++cell) ASSERT_TRUE(texts.IsOf(*text, cell)) << chat << " " << cell;
    }
  }
  EXPECT_LE(live.size(), most_left);
}

TEST(Texts, AnswersBehindAPrefixDoNotFillTheServer) {
  AnswerOften(400, 300, 70);  // the newest 64 stay
  AnswerOften(400, 5, 5);     // a server with less room makes some
}

TEST(Texts, OfTextsThatShareWhatIsHeldOneStays) {
  std::set<int> live;
  RemoteTexts texts;
  texts.SetCells(100, 100, /*kept=*/false);
  texts.Open(std::make_unique<FewSequences>(9, &live), 1);
  std::string why;
  for (int64_t p = 0; p < 40; ++p) ASSERT_NE(WriteToken(&texts, p, p, p - 1, &why), nullptr) << why;
  for (int64_t p = 20; p < 40; ++p) ASSERT_NE(WriteToken(&texts, p + 30, p, p == 20 ? 19 : p + 29, &why), nullptr);
  for (int chat = 0; chat < 2; ++chat) {
    for (int64_t p = 0; p < 20; ++p) ASSERT_NE(WriteToken(&texts, p + 70, p, p == 0 ? -1 : p + 69, &why), nullptr);
  }
  EXPECT_EQ(live.size(), 4u);
  for (int64_t cell = 20; cell < 100; ++cell) texts.Lose(cell, "overwritten", /*fresh=*/false);
  texts.StartPlan();
  while (texts.Free() && !live.empty()) {
  }
  EXPECT_EQ(live.size(), 1u);  // it alone has the rows of 20 cells
  EXPECT_NE(WriteToken(&texts, 99, 20, 19, &why), nullptr) << why;
}

TEST(Texts, ACacheThatSlidesLeavesWhatIsFound) {
  std::set<int> live;
  RemoteTexts texts;
  texts.SetCells(10, 10, /*kept=*/true);
  texts.Open(std::make_unique<FewSequences>(9, &live, std::vector<FoundSequence>{{1, 30}, {2, 40}}), 1);
  std::string why;
  ASSERT_NE(WriteToken(&texts, 0, 0, -1, &why), nullptr) << why;
  EXPECT_EQ(live.size(), 3u);
  texts.RemoveMade();
  EXPECT_EQ(live, (std::set<int>{1, 2}));
}

TEST(Texts, ReasonsWithoutEnd) {
  RemoteTexts texts;
  texts.SetCells(2, 2, /*kept=*/false);
  texts.Lose(0, "the first", /*fresh=*/false);
  for (int i = 0; i < 66000; ++i) {
    const std::string why = "sequence " + std::to_string(i) + " is gone";
    texts.Lose(1, why, /*fresh=*/false);
    ASSERT_EQ(texts.WhyLost(1), why);
  }
  EXPECT_EQ(texts.WhyLost(0), "the first");
}

}  // namespace
}  // namespace seine::llama
