// The decode stream over every transport, against a server that sleeps and one that polls.
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "tests/client/process.h"
#include "tests/client/random_model.h"

namespace seine {
namespace {

using client::DecodeAnswer;
using client::DecodeStep;
using client::Transport;

constexpr int kPrefill = 600;
constexpr int kSteps = 16;

class DecodeStreamTest : public testing::TestWithParam<std::tuple<Transport, bool>> {
 protected:
  DecodeStreamTest()
      : server_(std::get<1>(GetParam()) ? std::vector<std::string>{"--polling"} : std::vector<std::string>{}),
        client_(server_.Connect()),
        model_(kPrefill + kSteps) {}

  void SetUp() override {
    ASSERT_NE(client_, nullptr);
    ASSERT_TRUE(client_->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS)).ok());
    sequence_ = *client_->CreateSequence("m", "s");
    for (int layer = 0; layer < RandomModel::kLayers; ++layer) {
      ASSERT_TRUE(client_->AppendStream({{sequence_, layer, 0, model_.Keys(layer, 0, kPrefill), {}}}).ok());
    }
  }

  std::unique_ptr<client::DecodeStream> Open() {
    auto stream = client_->OpenDecodeStream(std::get<0>(GetParam()));
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *std::move(stream);
  }

  // Appends the token at `position` to a layer, then retrieves exactly.
  DecodeStep Step(int layer, int64_t position) const {
    DecodeStep step;
    step.step = position * 10 + layer;
    step.appends = {{sequence_, layer, position, model_.Keys(layer, position, 1), {}}};
    step.items = {{sequence_, layer, model_.Query()}};
    step.selector.set_top_k(8);
    step.selector.set_exact(true);
    return step;
  }

  void ExpectRight(const DecodeAnswer& answer, int layer, int64_t position) {
    EXPECT_EQ(answer.step, static_cast<uint64_t>(position * 10 + layer));
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    ASSERT_EQ(answer.append_status.size(), 1u);
    EXPECT_TRUE(answer.append_status[0].ok()) << answer.append_status[0];
    ASSERT_EQ(answer.answers.size(), 1u);
    const client::Answer& item = answer.answers[0];
    ASSERT_TRUE(item.status.ok()) << item.status;
    EXPECT_EQ(item.num_tokens, position + 1);
    ASSERT_EQ(item.num_sets, RandomModel::kQHeads);
    for (int head = 0; head < item.num_sets; ++head) {
      EXPECT_EQ(std::vector<int32_t>(item.set(head).begin(), item.set(head).end()),
                model_.ExactTopK(layer, head, 8, item.zone_begin, item.zone_end));
    }
  }

  Server server_;
  std::unique_ptr<client::Client> client_;
  RandomModel model_;
  client::Sequence sequence_;
};

TEST_P(DecodeStreamTest, DecodesStepByStep) {
  const auto stream = Open();
  DecodeAnswer answer;
  for (int64_t position = kPrefill; position < kPrefill + kSteps; ++position) {
    for (int layer = 0; layer < RandomModel::kLayers; ++layer) {
      ASSERT_TRUE(stream->Write(Step(layer, position)).ok());
      ASSERT_TRUE(stream->Read(&answer).ok());
      ExpectRight(answer, layer, position);
    }
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(client_->GetSequence(sequence_)->layer_tokens,
            (std::vector<int64_t>{kPrefill + kSteps, kPrefill + kSteps}));
  EXPECT_EQ(stream->Write(Step(0, 0)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(stream->Read(&answer).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_P(DecodeStreamTest, AnswersStepsInFlightInOrder) {
  const auto stream = Open();
  for (int64_t position = kPrefill; position < kPrefill + 4; ++position)
    ASSERT_TRUE(stream->Write(Step(1, position)).ok());
  DecodeAnswer answer;
  for (int64_t position = kPrefill; position < kPrefill + 4; ++position) {
    ASSERT_TRUE(stream->Read(&answer).ok());
    ExpectRight(answer, 1, position);
  }
  EXPECT_TRUE(stream->Finish().ok());
}

// Messages and answers are reused: nothing of a larger step may stay in a smaller one.
TEST_P(DecodeStreamTest, ReusedMessagesHoldNothingOfStepsBefore) {
  const auto stream = Open();
  DecodeAnswer answer;
  DecodeStep large = Step(0, kPrefill);
  large.items.push_back({sequence_, 1, model_.Query()});
  large.selector.set_with_scores(true);
  ASSERT_TRUE(stream->Write(large).ok() && stream->Read(&answer).ok());
  ASSERT_EQ(answer.answers.size(), 2u);
  EXPECT_FALSE(answer.answers[1].scores.empty());

  DecodeStep queries_only = Step(0, kPrefill);
  queries_only.appends.clear();
  queries_only.selector = {};  // the index's own defaults
  ASSERT_TRUE(stream->Write(queries_only).ok() && stream->Read(&answer).ok());
  EXPECT_TRUE(answer.append_status.empty());
  ASSERT_EQ(answer.answers.size(), 1u);
  EXPECT_TRUE(answer.answers[0].scores.empty());
  EXPECT_EQ(answer.answers[0].path, client::SearchMode::kIndex);
  EXPECT_EQ(answer.answers[0].counts[0], 100);

  DecodeStep appends_only = Step(1, kPrefill);
  appends_only.items.clear();
  ASSERT_TRUE(stream->Write(appends_only).ok() && stream->Read(&answer).ok());
  ASSERT_EQ(answer.append_status.size(), 1u);
  EXPECT_TRUE(answer.append_status[0].ok()) << answer.append_status[0];
  EXPECT_TRUE(answer.answers.empty());
  EXPECT_EQ(client_->GetSequence(sequence_)->layer_tokens, (std::vector<int64_t>{kPrefill + 1, kPrefill + 1}));
  EXPECT_TRUE(stream->Finish().ok());
}

// A step of many items takes long enough to be announced to a client that sleeps; its answers are as ever.
TEST_P(DecodeStreamTest, LongStepsAreAnnounced) {
  const auto stream = Open();
  DecodeAnswer answer;
  int announced = 0;
  const Transport transport = std::get<0>(GetParam());
  const bool wanted = transport == Transport::kBlocking || transport == Transport::kSharedMemory;
#ifdef __SANITIZE_ADDRESS__
  constexpr size_t kItems = 24;  // each takes long enough: the moment is before the last one alone
  constexpr int kTries = 4;
#else
  constexpr size_t kItems = 256;
  constexpr int kTries = 400;
#endif
  for (int tries = 0; tries < (wanted && announced == 0 ? kTries : 4); ++tries) {  // load may leave no moment for it
    DecodeStep step = Step(0, kPrefill);
    step.items.assign(kItems, step.items[0]);
    ASSERT_TRUE(stream->Write(step).ok() && stream->Read(&answer).ok());
    announced += answer.announced ? 1 : 0;
    ASSERT_EQ(answer.answers.size(), kItems);
    answer.answers.resize(1);
    ExpectRight(answer, 0, kPrefill);
  }
#ifdef __SANITIZE_ADDRESS__
  EXPECT_TRUE(wanted || announced == 0);  // a slow machine under a sanitizer may never have that moment
#else
  EXPECT_EQ(announced > 0, wanted);
#endif
  DecodeStep nothing = Step(0, kPrefill);
  nothing.items.clear();
  ASSERT_TRUE(stream->Write(nothing).ok() && stream->Read(&answer).ok());
  EXPECT_FALSE(answer.announced);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_P(DecodeStreamTest, ErrorsStayWithTheirItems) {
  const auto stream = Open();
  DecodeAnswer answer;
  DecodeStep step = Step(0, kPrefill);
  step.appends.push_back({sequence_, 1, kPrefill + 5, model_.Keys(1, 0, 1), {}});  // a gap
  step.items.push_back({sequence_, 7, model_.Query()});                            // no such layer
  ASSERT_TRUE(stream->Write(step).ok() && stream->Read(&answer).ok());
  ASSERT_EQ(answer.append_status.size(), 2u);
  EXPECT_TRUE(answer.append_status[0].ok()) << answer.append_status[0];
  EXPECT_EQ(answer.append_status[1].code(), absl::StatusCode::kOutOfRange) << answer.append_status[1];
  ASSERT_EQ(answer.answers.size(), 2u);
  EXPECT_TRUE(answer.answers[0].status.ok()) << answer.answers[0].status;
  EXPECT_EQ(answer.answers[1].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(client::FieldOf(answer.answers[1].status), "layer")) << answer.answers[1].status;

  DecodeStep wrong = Step(0, kPrefill + 1);
  wrong.selector.set_top_k(-1);
  ASSERT_TRUE(stream->Write(wrong).ok() && stream->Read(&answer).ok());
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument) << answer.status;

  DecodeStep null = Step(0, kPrefill + 1);
  null.items[0].queries.data = nullptr;
  EXPECT_EQ(stream->Write(null).code(), absl::StatusCode::kInvalidArgument);  // never sent: no answer follows

  ASSERT_TRUE(stream->Write(Step(0, kPrefill + 1)).ok() && stream->Read(&answer).ok());
  ExpectRight(answer, 0, kPrefill + 1);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_P(DecodeStreamTest, TellsOfALostServer) {
  const auto stream = Open();
  DecodeAnswer answer;
  ASSERT_TRUE(stream->Write(Step(0, kPrefill)).ok() && stream->Read(&answer).ok());
  server_.Kill();
  EXPECT_EQ(stream->Read(&answer).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(stream->Write(Step(0, kPrefill + 1)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(stream->Finish().code(), absl::StatusCode::kUnavailable);
}

TEST_P(DecodeStreamTest, SaysWhatCarriesIt) {
  const auto stream = Open();
  EXPECT_EQ(stream->transport(), std::get<0>(GetParam()));
  EXPECT_EQ(stream->fallback(), "");
}

TEST_P(DecodeStreamTest, MayBeDroppedAtAnyPoint) {
  Open();
  {
    const auto stream = Open();
    ASSERT_TRUE(stream->Write(Step(0, kPrefill)).ok());
  }
  const auto stream = Open();
  ASSERT_TRUE(stream->Write(Step(1, kPrefill)).ok());
  EXPECT_TRUE(stream->Finish().ok());  // the unread answer is dropped
  EXPECT_EQ(client_->GetSequence(sequence_)->layer_tokens[1], kPrefill + 1);
}

std::string NameOf(const testing::TestParamInfo<std::tuple<Transport, bool>>& test) {
  constexpr const char* kNames[] = {"Blocking", "Polling", "Shared", "SharedPolling"};
  return absl::StrCat(kNames[static_cast<int>(std::get<0>(test.param))], "Client",
                      std::get<1>(test.param) ? "PollingServer" : "BlockingServer");
}

INSTANTIATE_TEST_SUITE_P(Transports, DecodeStreamTest,
                         testing::Combine(testing::Values(Transport::kBlocking, Transport::kPolling,
                                                          Transport::kSharedMemory, Transport::kSharedMemoryPolling),
                                          testing::Bool()),
                         NameOf);

}  // namespace
}  // namespace seine
