// Attention through the client: by call and by Decode step over both transports, against the model's own, and the
// example program.
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/match.h"
#include "client/client.h"
#include "tests/client/process.h"
#include "tests/client/random_model.h"

namespace seine {
namespace {

using client::Attended;
using v1::Attention;

constexpr int kAttended = 700;

// Softmax attention of a query head over all of the first `tokens` tokens, in double. Returns the log-sum-exp.
double Dense(const RandomModel& model, int layer, int head, int64_t tokens, std::vector<double>* output) {
  constexpr int kDim = RandomModel::kHeadDim;
  const int begin = head / RandomModel::kGroup * kDim;
  output->assign(kDim, 0);
  double sum = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    double logit = 0;
    for (int j = 0; j < kDim; ++j) {
      logit += double{model.keys[layer][t * RandomModel::kRow + begin + j]} * model.query[head * kDim + j];
    }
    const double weight = std::exp(logit / std::sqrt(double{kDim}));
    sum += weight;
    for (int j = 0; j < kDim; ++j) (*output)[j] += weight * model.values[layer][t * RandomModel::kRow + begin + j];
  }
  for (double& x : *output) x /= sum;
  return std::log(sum);
}

void ExpectDense(const RandomModel& model, const Attended& answer, int layer, int64_t tokens) {
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  ASSERT_EQ(answer.num_q_heads, RandomModel::kQHeads);
  ASSERT_EQ(answer.head_dim, RandomModel::kHeadDim);
  EXPECT_EQ(answer.num_tokens, tokens);
  EXPECT_EQ(answer.attended_tokens, tokens * RandomModel::kQHeads);
  for (int h = 0; h < answer.num_q_heads; ++h) {
    std::vector<double> want;
    EXPECT_NEAR(answer.log_sum_exp[h], Dense(model, layer, h, tokens, &want), 1e-5);
    for (int j = 0; j < answer.head_dim; ++j) ASSERT_NEAR(answer.head(h)[j], want[j], 1e-5);
  }
}

class ClientAttendTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(client_, nullptr);
    ASSERT_TRUE(client_->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS_VALUES)).ok());
    sequence_ = *client_->CreateSequence("m", "s");
    ASSERT_TRUE(client_->Append({sequence_, 1, 0, model_.Keys(1, 0, 640), model_.Values(1, 0, 640)}).ok());
  }
  Server server_;
  std::unique_ptr<client::Client> client_ = server_.Connect();
  RandomModel model_{kAttended};
  client::Sequence sequence_;
};

TEST_F(ClientAttendTest, ByCall) {
  v1::Selector all;
  all.set_top_k(1000);
  auto result = client_->Attend({{sequence_, 1, model_.Query()}, {sequence_, 7, model_.Query()}}, all, {});
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->answers.size(), 2u);
  ExpectDense(model_, result->answers[0], 1, 640);
  EXPECT_EQ(result->answers[0].selected.num_sets, 0);
  EXPECT_EQ(client::FieldOf(result->answers[1].status), "items[1].layer");
  v1::Selector few;
  few.set_top_k(8);
  few.set_exact(true);
  Attention with_positions, with_tail, negative;
  with_positions.set_with_positions(true);
  with_tail.set_tail(true);
  negative.set_scale(-1);
  result = client_->Attend({{sequence_, 1, model_.Query()}}, few, with_positions);
  ASSERT_TRUE(result.ok()) << result.status();
  const Attended answer = result->answers[0];
  EXPECT_EQ(answer.path, client::SearchMode::kExact);
  EXPECT_FALSE(answer.tail);
  ASSERT_EQ(answer.selected.num_sets, RandomModel::kQHeads);
  for (int h = 0; h < RandomModel::kQHeads; ++h) {
    const auto set = answer.selected.set(h);
    EXPECT_EQ(std::vector<int32_t>(set.begin(), set.end()),
              model_.ExactTopK(1, h, 8, answer.selected.zone_begin, answer.selected.zone_end));
  }
  result = client_->Attend({{sequence_, 1, model_.Query()}}, few, with_tail);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->answers[0].tail);
  EXPECT_GT(result->answers[0].log_sum_exp[0], answer.log_sum_exp[0]);
  const absl::Status refused = client_->Attend({{sequence_, 1, model_.Query()}}, few, negative).status();
  EXPECT_EQ(client::FieldOf(refused), "attention.scale");
}

TEST_F(ClientAttendTest, ByDecodeStepsThatAlsoRetrieve) {
  int64_t position = 640;
  for (const client::Transport transport : {client::Transport::kBlocking, client::Transport::kPolling}) {
    auto stream = client_->OpenDecodeStream(transport);
    ASSERT_TRUE(stream.ok()) << stream.status();
    client::DecodeAnswer answer;
    for (int i = 0; i < 6; ++i, ++position) {
      client::DecodeStep step;
      step.appends = {{sequence_, 1, position, model_.Keys(1, position, 1), model_.Values(1, position, 1)}};
      step.items = {{sequence_, 1, model_.Query()}};
      step.selector.set_top_k(1000);
      if (i % 3 != 2) step.attention = Attention{};
      ASSERT_TRUE((*stream)->Write(step).ok());
      ASSERT_TRUE((*stream)->Read(&answer).ok());
      ASSERT_TRUE(answer.status.ok()) << answer.status;
      ASSERT_TRUE(answer.append_status[0].ok()) << answer.append_status[0];
      ASSERT_EQ(answer.attended.size(), step.attention ? 1u : 0u);
      ASSERT_EQ(answer.answers.size(), step.attention ? 0u : 1u);
      if (step.attention) ExpectDense(model_, answer.attended[0], 1, position + 1);
    }
    EXPECT_TRUE((*stream)->Finish().ok());
  }
}

TEST_F(ClientAttendTest, TheDecodeLoopExampleRuns) {
  const Outcome outcome = RunProgram({SEINE_DECODE_LOOP_PROGRAM, server_.endpoint()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(absl::StrContains(outcome.out, "32 tokens decoded")) << outcome.out;
  EXPECT_TRUE(absl::StrContains(outcome.out, "counted the others in by windows")) << outcome.out;
  EXPECT_EQ(client_->ListIndexes()->size(), 1u);  // it cleans up
  const Outcome nowhere = RunProgram({SEINE_DECODE_LOOP_PROGRAM, "unix:///nowhere.sock"});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_TRUE(absl::StrContains(nowhere.err, "seine-decode-loop: ")) << nowhere.err;
}

}  // namespace
}  // namespace seine
