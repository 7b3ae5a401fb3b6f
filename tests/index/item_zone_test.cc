// What an item says of its zone: where tokens become dense, and the positions that are attended in place of a search.
#include "tests/index/direct_attention.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::AttendTest;
using testing::MakeIndex;
using testing::Names;
using testing::Queries;

class ItemZoneTest : public AttendTest {
 protected:
  // 420 tokens: sink 16, zone of 320, the rest dense.
  std::unique_ptr<Index> Filled(int local, std::optional<EvictParams> evict = {}) {
    IndexConfig config = Config();
    config.zones.local = local;
    auto index = MakeIndex(config, &backend_);
    EXPECT_TRUE(AppendNames(index.get(), *index->CreateSequence("s"), 1, 0, Names(1, 420)).ok());
    if (evict) {
      EXPECT_TRUE(index->Evict({"s"}, 1, *evict, {}).ok());
    }
    return index;
  }
  RetrieveItem Item(int64_t dense_from) const { return {{"s"}, 1, queries_.data(), dense_from}; }
  AttendAnswer Attend(const Index& index, const RetrieveItem& item, const SearchParams& params,
                      const AttentionParams& attention) const {
    auto answers = index.Attend({item}, params, attention);
    EXPECT_TRUE(answers.ok()) << answers.status();
    return (*answers)[0];
  }
  const std::vector<float> queries_ = Queries(Config().geometry, 4);
};

// The zone that a longer local window leaves is the one that an item cuts: answers have the same bits.
TEST_F(ItemZoneTest, DenseFromIsALongerLocalWindow) {
  auto index = Filled(32), longer = Filled(160);
  for (const Method method : {Method::kIndex, Method::kExact}) {
    for (const Scope scope : {Scope::kPerQHead, Scope::kPerKvHead}) {
      SearchParams params = Params(scope);
      params.method = method;
      for (const int64_t from : {208, 230, 271}) {  // the longer window's zone ends at 208; 64 keys on is 272
        const auto got = *index->Retrieve({Item(from)}, params), want = *longer->Retrieve({Item(-1)}, params);
        EXPECT_EQ(got[0].zone_end, 208);
        EXPECT_TRUE(testing::SameAnswers(got, want)) << from;
        const AttentionParams tail = {.tail = true};
        const AttendAnswer one = Attend(*index, Item(from), params, tail);
        const AttendAnswer other = Attend(*longer, Item(-1), params, tail);
        EXPECT_EQ(one.output, other.output);
        EXPECT_EQ(one.log_sum_exp, other.log_sum_exp);
        EXPECT_EQ(one.attended_tokens, other.attended_tokens);
      }
    }
  }
}

TEST_F(ItemZoneTest, DenseFromWidensNothingAndMayTakeAll) {
  auto index = Filled(32);
  const auto usual = *index->Retrieve({Item(-1)}, Params());
  EXPECT_TRUE(testing::SameAnswers(*index->Retrieve({Item(1 << 30)}, Params()), usual));
  for (const int64_t from : {0, 16, 79}) {
    const AttendAnswer all = Attend(*index, Item(from), Params(), {.with_positions = true});
    EXPECT_EQ(all.path, SearchMode::kDense);
    EXPECT_EQ(all.selected.zone_end, 420);
    ExpectDirect(index->config().geometry, queries_, all, {testing::UpTo(420)});
  }
}

TEST_F(ItemZoneTest, TokensThatShareACentreAreSearchedTogether) {
  IndexConfig config = Config();
  config.codec.centre_window = config.zones.update_buffer = 128;
  auto index = MakeIndex(config, &backend_);
  ASSERT_TRUE(AppendNames(index.get(), *index->CreateSequence("s"), 1, 0, Names(1, 420)).ok());
  for (const auto& [from, end] : {std::pair{144, 144}, {271, 144}, {272, 272}}) {
    EXPECT_EQ((*index->Retrieve({Item(from)}, Params()))[0].zone_end, end);
  }
}

TEST_F(ItemZoneTest, DenseFromCountsInPositionsAfterAnEviction) {
  EvictParams evict;
  evict.scorer.name = "keydiff";
  evict.budget.tokens = 300;
  auto index = Filled(32, evict);
  const AttendAnswer answer = Attend(*index, Item(250), Params(), {.tail = false, .with_positions = true});
  ASSERT_EQ(answer.selected.dense_positions.size(), 2u);
  for (const std::vector<int32_t>& dense : answer.selected.dense_positions) {
    EXPECT_GE(dense.back(), 419);
    EXPECT_LE(dense[16], 250);  // the first behind the sink
  }
  ExpectAsSelected(index->config().geometry, queries_, answer);
}

TEST_F(ItemZoneTest, GivenPositionsAreAttended) {
  auto index = Filled(32);
  for (const Scope scope : {Scope::kPerQHead, Scope::kPerKvHead}) {
    for (const int64_t from : {-1, 230}) {
      RetrieveItem item = Item(from);
      const AttendAnswer found = Attend(*index, item, Params(scope), {.tail = false, .with_positions = true});
      item.positions = &found.selected.positions;
      const AttendAnswer given = Attend(*index, item, Params(scope, 1), {});
      EXPECT_EQ(given.path, SearchMode::kExact);
      EXPECT_FALSE(given.tail);
      EXPECT_EQ(given.attended_tokens, found.attended_tokens);
      for (size_t i = 0; i < found.output.size(); ++i) EXPECT_NEAR(given.output[i], found.output[i], 1e-6);
      const AttendAnswer tail = Attend(*index, item, Params(scope, 1), {.tail = true});
      EXPECT_TRUE(tail.tail);
    }
  }
}

TEST_F(ItemZoneTest, WrongPositionsAreTheItemsOwnError) {
  auto index = Filled(32);
  using Sets = std::vector<std::vector<int32_t>>;
  const std::vector<int32_t> good = {16, 20, 335};
  for (const std::vector<int32_t>& bad : {std::vector<int32_t>{15}, {336}, {-1}, {20, 20}, {21, 20}, {1 << 30}}) {
    const Sets right(6, good);
    Sets wrong = right;
    wrong[4] = bad;
    RetrieveItem items[] = {Item(-1), Item(-1)};
    items[0].positions = &wrong, items[1].positions = &right;
    const auto answers = *index->Attend(items, Params(), {});
    EXPECT_EQ(answers[0].status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(answers[0].status.message().find("positions: set 4"), std::string::npos) << answers[0].status;
    EXPECT_TRUE(answers[1].status.ok());
    EXPECT_EQ(answers[1].attended_tokens, 6 * (3 + 420 - 320));
  }
  const Sets few(2, good), none(6);
  RetrieveItem item = Item(-1);
  item.positions = &few;
  EXPECT_FALSE(Attend(*index, item, Params(), {}).status.ok());
  EXPECT_TRUE(Attend(*index, item, Params(Scope::kPerKvHead), {}).status.ok());
  item.positions = &none;
  EXPECT_EQ(Attend(*index, item, Params(), {}).attended_tokens, 6 * 100);
  EXPECT_FALSE(Attend(*index, item, Params(), {.with_positions = true}).status.ok());
  EXPECT_FALSE((*index->Retrieve({item}, Params()))[0].status.ok());
}

}  // namespace
}  // namespace seine
