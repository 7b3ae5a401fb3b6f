// Attend for a prompt's tokens against direct attention in float64, over every history of a layer, and its errors.
#include <random>

#include "tests/index/direct_attention.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::AttendTest;
using testing::Direct;
using testing::Exact;
using testing::MakeIndex;
using testing::Names;
using testing::Queries;
using testing::UpTo;

class PromptAttendTest : public AttendTest {
 protected:
  // [tokens, num_q_heads, head_dim]
  static std::vector<float> Prompt(const Geometry& g, int64_t tokens) {
    std::vector<float> rows;
    for (int64_t t = 0; t < tokens; ++t) {
      const std::vector<float> row = Queries(g, static_cast<int>(100 + t));
      rows.insert(rows.end(), row.begin(), row.end());
    }
    return rows;
  }
  static AttendAnswer Ask(const Index& index, const SequenceHandle& seq, const std::vector<float>& prompt,
                          const AttentionParams& attention = {}) {
    const Geometry& g = index.config().geometry;
    RetrieveItem item{seq, 1, prompt.data()};
    item.prompt_tokens = static_cast<int64_t>(prompt.size()) / (g.num_q_heads * g.head_dim);
    auto answers = index.Attend({item}, Params(), attention);
    if (answers.ok()) return (*answers)[0];
    AttendAnswer failed;
    failed.status = answers.status();
    return failed;
  }
  // held(kv_head): positions that the head holds, ascending. Every `step`-th token is compared.
  template <typename Held>
  static void ExpectCausal(const Index& index, const SequenceHandle& seq, int64_t tokens, int64_t length, Held held,
                           int64_t step = 7, double scale = 0) {
    const Geometry& g = index.config().geometry;
    const std::vector<float> prompt = Prompt(g, tokens);
    const AttendAnswer answer = Ask(index, seq, prompt, {.scale = static_cast<float>(scale)});
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.num_tokens, length);
    EXPECT_EQ(answer.path, SearchMode::kDense);
    EXPECT_FALSE(answer.tail);
    const int64_t row = int64_t{g.num_q_heads} * g.head_dim;
    ASSERT_EQ(static_cast<int64_t>(answer.output.size()), tokens * row);
    ASSERT_EQ(static_cast<int64_t>(answer.log_sum_exp.size()), tokens * g.num_q_heads);
    int64_t attended = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int h = 0; h < g.num_q_heads; ++h) {
        std::vector<int32_t> seen = held(h / g.group());
        seen.erase(std::upper_bound(seen.begin(), seen.end(), length - tokens + t), seen.end());
        attended += static_cast<int64_t>(seen.size());
        if (t % step != 0 && t + 1 != tokens) continue;
        const std::vector<float> queries(prompt.begin() + t * row, prompt.begin() + (t + 1) * row);
        const Exact exact = Direct(g, queries, h, seen, 1, scale);
        const float log_sum_exp = answer.log_sum_exp[t * g.num_q_heads + h];
        if (seen.empty()) {
          EXPECT_EQ(log_sum_exp, -INFINITY);
        } else {
          EXPECT_NEAR(log_sum_exp, exact.log_sum_exp, 2e-5);
        }
        for (int j = 0; j < g.head_dim; ++j) {
          ASSERT_NEAR(answer.output[t * row + h * g.head_dim + j], seen.empty() ? 0 : exact.output[j], 1e-5) << t;
        }
      }
    }
    EXPECT_EQ(answer.attended_tokens, attended);
  }
};

TEST_F(PromptAttendTest, EqualsDirectAttentionInEveryShape) {
  for (const int dim : kHeadDims) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      SCOPED_TRACE(::testing::Message() << dim << " " << static_cast<int>(dtype));
      auto index = MakeIndex(Config(dtype, dim), &backend_);
      const SequenceHandle seq = *index->CreateSequence("s");
      ASSERT_TRUE(AppendNames(index.get(), seq, 1, 0, Names(1, 421)).ok());
      ExpectCausal(
          *index, seq, 150, 421, [](int) { return UpTo(421); }, 75);
    }
  }
}

TEST_F(PromptAttendTest, WholePromptsAndPartsOfAnyLength) {
  auto index = MakeIndex(Config(), &backend_);
  const SequenceHandle seq = *index->CreateSequence("s");
  int64_t length = 0;
  for (const int64_t part : {1, 2, 63, 64, 65, 300, 1, 129}) {
    ASSERT_TRUE(AppendNames(index.get(), seq, 1, length, Names(1 + length, part)).ok());
    length += part;
    const auto all = [&](int) { return UpTo(length); };
    ExpectCausal(*index, seq, part, length, all);
    ExpectCausal(*index, seq, length, length, all, 97);
  }
  ExpectCausal(
      *index, seq, 40, length, [&](int) { return UpTo(length); }, 7, .5);
}

TEST_F(PromptAttendTest, FollowsTruncationForksAndEviction) {
  IndexConfig config = Config();
  config.zones.dense_threshold = 4000;  // so that an answer lists all that a head holds
  auto index = MakeIndex(config, &backend_);
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 1, 0, Names(5000, 700)).ok());
  ASSERT_TRUE(index->Truncate(seq, 0).ok());
  ASSERT_TRUE(AppendNames(index.get(), seq, 1, 0, Names(1, 600)).ok());
  const SequenceHandle fork = *index->Fork(seq, "f", 500);
  ASSERT_TRUE(AppendNames(index.get(), seq, 1, 600, Names(601, 100)).ok());
  ExpectCausal(*index, seq, 200, 700, [](int) { return UpTo(700); });
  ExpectCausal(*index, fork, 200, 500, [](int) { return UpTo(500); });
  EvictParams evict;
  evict.scorer.name = "keydiff";
  evict.budget.tokens = 300;
  ASSERT_TRUE(index->Evict(seq, 1, evict, {}).ok());
  ASSERT_TRUE(AppendNames(index.get(), seq, 1, 700, Names(701, 90)).ok());
  const AttendAnswer holds = One(*index, seq, 1, Queries(config.geometry, 3), Params());
  ASSERT_EQ(holds.selected.dense_positions.size(), 2u);
  ASSERT_NE(holds.selected.dense_positions[0], holds.selected.dense_positions[1]);
  for (const int64_t tokens : {90, 400, 790}) {  // the prompt's own tokens are held, in part, and from the first on
    ExpectCausal(
        *index, seq, tokens, 790, [&](int head) { return holds.selected.dense_positions[head]; }, 31);
  }
}

TEST_F(PromptAttendTest, ATokenAloneIsAttendedAsAStepOverEverything) {
  auto index = MakeIndex(Config(), &backend_);
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 1, 0, Names(1, 900)).ok());
  const std::vector<float> query = Prompt(index->config().geometry, 1);
  const AttendAnswer prompt = Ask(*index, seq, query);
  SearchParams exact = Params(Scope::kPerQHead, 900);
  exact.method = Method::kExact;
  const AttendAnswer step = One(*index, seq, 1, query, exact);
  ASSERT_EQ(prompt.output.size(), step.output.size());
  for (size_t i = 0; i < step.output.size(); ++i) EXPECT_NEAR(prompt.output[i], step.output[i], 1e-5);
  EXPECT_EQ(prompt.attended_tokens, step.attended_tokens);
}

TEST_F(PromptAttendTest, ChosenRunsKeepTheShareThatIsAskedFor) {
  auto index = MakeIndex(Config(), &backend_);
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 1, 0, Names(1, 6000)).ok());
  const Geometry& g = index->config().geometry;
  std::vector<float> prompt = Prompt(g, 256);
  const std::vector<float> base = Queries(g, 5);  // that all tokens have in common, so that they look at the same keys
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = 8 * base[i % base.size()] + .5f * prompt[i];
  const AttendAnswer exact = Ask(*index, seq, prompt);
  double last = 0;
  for (const double mass : {.95, .6}) {
    const AttendAnswer chosen = Ask(*index, seq, prompt, {.prompt_mass = mass});
    ASSERT_TRUE(chosen.status.ok());
    EXPECT_EQ(chosen.path, SearchMode::kIndex);
    EXPECT_LT(chosen.attended_tokens, exact.attended_tokens);
    double lost = 0;  // 1 - what is kept of the softmax
    for (size_t i = 0; i < exact.log_sum_exp.size(); ++i) {
      EXPECT_LE(chosen.log_sum_exp[i], exact.log_sum_exp[i] + 1e-4);
      lost += 1 - std::exp(chosen.log_sum_exp[i] - exact.log_sum_exp[i]);
    }
    lost /= static_cast<double>(exact.log_sum_exp.size());
    EXPECT_LT(lost, 1 - mass);
    EXPECT_GT(lost, last);
    last = lost;
  }
  EXPECT_EQ(Ask(*index, seq, prompt, {.prompt_mass = 1}).output, exact.output);
}

TEST_F(PromptAttendTest, StepsAndPromptsOfACallAnswerEachForThemselves) {
  auto index = MakeIndex(Config(), &backend_);
  const Geometry& g = index->config().geometry;
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 1, 0, Names(1, 300)).ok());
  std::vector<float> prompt = Prompt(g, 20), spoilt = prompt, step = Queries(g, 4);
  spoilt[(7 * g.num_q_heads + 2) * g.head_dim] = NAN;
  const std::vector<std::vector<int32_t>> sets(6);
  const auto item = [&](const std::vector<float>& queries, int64_t tokens) {
    RetrieveItem made{seq, 1, queries.data()};
    made.prompt_tokens = tokens;
    return made;
  };
  std::vector<RetrieveItem> items = {item(prompt, 20), item(step, 0),    item(spoilt, 20), item(prompt, 301),
                                     item(prompt, 20), item(prompt, 20), item(prompt, 5)};
  std::vector<float> long_prompt = Prompt(g, 301);
  items[3].queries = long_prompt.data();
  items[4].positions = &sets;
  items[5].dense_from = 10;
  const auto answers = index->Attend(items, Params(), AttentionParams());
  ASSERT_TRUE(answers.ok()) << answers.status();
  EXPECT_EQ((*answers)[0].output, Ask(*index, seq, prompt).output);
  EXPECT_EQ((*answers)[1].output, One(*index, seq, 1, step, Params(), AttentionParams()).output);
  const auto says = [&](int i, const std::string& what) {
    EXPECT_EQ((*answers)[i].status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE((*answers)[i].status.message().find(what), std::string::npos) << (*answers)[i].status;
  };
  says(2, "queries: token 7, head 2 holds NaN");
  says(3, "queries: of 301 tokens, and the layer holds 300");
  says(4, "positions: not with a prompt's queries");
  says(5, "dense_from: not with a prompt's queries");
  EXPECT_EQ((*answers)[6].output.size(), 5u * 6 * 64);
  const auto found = index->Retrieve({items[0]}, Params());
  EXPECT_EQ((*found)[0].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Ask(*index, seq, prompt, {.with_positions = true}).status.code(), absl::StatusCode::kInvalidArgument);
  for (const double mass : {0.0, -1.0, 1.1, std::nan("")}) {
    EXPECT_EQ(Ask(*index, seq, prompt, {.prompt_mass = mass}).status.message().substr(0, 21), "attention.prompt_mass");
  }
}

}  // namespace
}  // namespace seine
