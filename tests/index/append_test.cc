// Append: zones, streaming against one shot, replays, gaps, wrong input, stores and memory limits.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/index/test_util.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::MakeIndex;
using testing::Names;
using testing::Probe;
using testing::Rows;
using testing::SameAnswers;
using testing::SmallConfig;
using testing::TestBackend;
using testing::View;

using absl::StatusCode;

TEST(ZoneTest, FollowsFromTheLengthAlone) {
  TestBackend backend;
  for (const auto& [sink, local, buffer] : {std::tuple{16, 32, 64}, {0, 0, 64}, {7, 100, 128}}) {
    IndexConfig config = SmallConfig();
    config.zones = {.sink = sink, .local = local, .update_buffer = buffer, .dense_threshold = 0};
    auto index = MakeIndex(config, &backend);
    auto seq = *index->CreateSequence("");
    for (int64_t n = 1; n <= 420; ++n) {
      ASSERT_EQ(*AppendNames(index.get(), seq, 0, n - 1, Names(n, 1)), n);
      const HeadInfo info = *index->DescribeHead(seq, 0, 1);
      const int64_t zone = n > sink + local ? (n - sink - local) / buffer * buffer : 0;
      ASSERT_EQ(info.zone_end - info.zone_begin, zone) << n;
      ASSERT_EQ(info.zone_begin, std::min<int64_t>(n, sink));
      ASSERT_EQ(info.num_tokens, n);
      ASSERT_EQ(info.num_segments, zone > 0 ? 1 : 0);
    }
  }
}

// Codes and answers are the same bits however the tokens came in.
class StreamingTest : public ::testing::TestWithParam<std::tuple<KvStore, Centre, Coarse, DType>> {
 protected:
  IndexConfig Config() const {
    IndexConfig config = SmallConfig(std::get<0>(GetParam()));
    config.codec.centre = std::get<1>(GetParam());
    config.search.coarse = std::get<2>(GetParam());
    config.geometry.dtype = std::get<3>(GetParam());
    config.zones = {.sink = 10, .local = 32, .update_buffer = 128, .dense_threshold = 0};
    config.codec.centre_window = 128;
    return config;
  }
};

TEST_P(StreamingTest, EqualsOneShot) {
  TestBackend backend;
  auto index = MakeIndex(Config(), &backend);
  const int64_t n = 2500;  // crosses the edges of segments (2048 keys) and of chunks (256 or 2048 positions)
  const std::vector<uint64_t> names = Names(1, n);
  auto once = *index->CreateSequence("once");
  ASSERT_TRUE(AppendNames(index.get(), once, 1, 0, names).ok());
  const auto expected = Probe(*index, once, 1);
  EXPECT_EQ(expected[0].path, SearchMode::kIndex);
  EXPECT_TRUE(expected[0].all_returned);
  EXPECT_EQ(expected[0].positions[0].size(), 2432u);  // floor((2500 - 42) / 128) * 128
  for (const int64_t step : {1, 63, 777}) {
    auto streamed = *index->CreateSequence("");
    for (int64_t p = 0; p < n; p += step) {
      const std::vector<uint64_t> piece(names.begin() + p, names.begin() + std::min(n, p + step));
      ASSERT_TRUE(AppendNames(index.get(), streamed, 1, p, piece).ok());
    }
    EXPECT_TRUE(SameAnswers(Probe(*index, streamed, 1), expected)) << "steps of " << step;
  }
  EXPECT_FALSE(SameAnswers(Probe(*index, once, 0), expected));  // the other layer is empty: the probe does look
}

INSTANTIATE_TEST_SUITE_P(All, StreamingTest,
                         ::testing::Combine(::testing::Values(KvStore::kNone, KvStore::kKeys),
                                            ::testing::Values(Centre::kNone, Centre::kGlobal),
                                            ::testing::Values(Coarse::kSignIp, Coarse::kCollision),
                                            ::testing::Values(DType::kFloat16)));
INSTANTIATE_TEST_SUITE_P(Windows, StreamingTest,
                         ::testing::Combine(::testing::Values(KvStore::kNone, KvStore::kKeys),
                                            ::testing::Values(Centre::kWindow), ::testing::Values(Coarse::kSignIp),
                                            ::testing::Values(DType::kFloat16)));
INSTANTIATE_TEST_SUITE_P(DTypes, StreamingTest,
                         ::testing::Combine(::testing::Values(KvStore::kKeysValues), ::testing::Values(Centre::kWindow),
                                            ::testing::Values(Coarse::kSignIp),
                                            ::testing::Values(DType::kFloat32, DType::kBFloat16)));

class ReplayTest : public ::testing::TestWithParam<KvStore> {};
INSTANTIATE_TEST_SUITE_P(Stores, ReplayTest, ::testing::Values(KvStore::kNone, KvStore::kKeys, KvStore::kKeysValues));

TEST_P(ReplayTest, IdenticalIsNoOpOthersAreRefused) {
  TestBackend backend;
  auto index = MakeIndex(SmallConfig(GetParam()), &backend);
  auto seq = *index->CreateSequence("s");
  ASSERT_EQ(*AppendNames(index.get(), seq, 0, 0, Names(1, 300)), 300);
  const auto before = Probe(*index, seq, 0);
  const int64_t held = index->stats().store_bytes;

  EXPECT_EQ(*AppendNames(index.get(), seq, 0, 0, Names(1, 300)), 300);
  EXPECT_EQ(*AppendNames(index.get(), seq, 0, 299, Names(300, 1)), 300);
  EXPECT_EQ(*AppendNames(index.get(), seq, 0, 20, Names(21, 100)), 300);
  EXPECT_EQ(*AppendNames(index.get(), seq, 0, 300, {}), 300);
  EXPECT_EQ(*AppendNames(index.get(), seq, 0, 10, {}), 300);

  for (const int64_t wrong : {0, 17, 100, 299}) {  // one token of another name, anywhere in the zones
    std::vector<uint64_t> names = Names(1, 310);
    names[wrong] = 9999;
    const absl::Status status = AppendNames(index.get(), seq, 0, 0, names).status();
    EXPECT_EQ(status.code(), StatusCode::kAlreadyExists);
    EXPECT_NE(status.message().find("position " + std::to_string(wrong) + " "), std::string::npos) << status;
  }
  const absl::Status gap = AppendNames(index.get(), seq, 0, 301, Names(302, 1)).status();
  EXPECT_EQ(gap.code(), StatusCode::kOutOfRange);
  EXPECT_EQ(AppendNames(index.get(), seq, 0, 301, {}).status().code(), StatusCode::kOutOfRange);
  EXPECT_TRUE(SameAnswers(Probe(*index, seq, 0), before));
  EXPECT_EQ(index->stats().store_bytes, held);

  // A replay that runs past the end appends the rest.
  EXPECT_EQ(*AppendNames(index.get(), seq, 0, 250, Names(251, 150)), 400);
  auto fresh = *index->CreateSequence("fresh");
  ASSERT_TRUE(AppendNames(index.get(), fresh, 0, 0, Names(1, 400)).ok());
  EXPECT_TRUE(SameAnswers(Probe(*index, seq, 0), Probe(*index, fresh, 0)));
}

TEST(ReplayValuesTest, OtherValuesAreAConflict) {
  TestBackend backend;
  auto index = MakeIndex(SmallConfig(KvStore::kKeysValues), &backend);
  const Geometry& g = index->config().geometry;
  auto seq = *index->CreateSequence("s");
  const std::string keys = Rows(g, Names(1, 8));
  std::string values = Rows(g, Names(100, 8));
  ASSERT_TRUE(index->Append(seq, 0, 0, View(g, keys), View(g, values)).ok());
  values[values.size() - 1] ^= 1;
  const absl::Status status = index->Append(seq, 0, 0, View(g, keys), View(g, values)).status();
  EXPECT_EQ(status.code(), StatusCode::kAlreadyExists);
  EXPECT_NE(status.message().find("values: position 7 "), std::string::npos) << status;
}

struct WrongAppend {
  StatusCode code;
  std::string message;  // its beginning
  SequenceHandle handle;
  int layer = 0;
  int64_t position = 0;
  TensorView keys, values;
};

TEST(AppendErrorTest, EveryArgumentWrongOnce) {
  TestBackend backend;
  auto index = MakeIndex(SmallConfig(), &backend);
  const Geometry& g = index->config().geometry;
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 200)).ok());
  const auto before = Probe(*index, seq, 0);
  const IndexStats stats = index->stats();
  const std::string rows = Rows(g, Names(201, 3));
  const TensorView good = View(g, rows);
  const size_t bytes = good.bytes;
  const int64_t huge = int64_t{1} << 62, max = INT32_MAX;
  const std::vector<WrongAppend> cases = {
      {StatusCode::kNotFound, "handle: ", {"t", 0}, 0, 200, good, {}},
      {StatusCode::kFailedPrecondition, "handle: ", {"s", seq.generation + 1}, 0, 200, good, {}},
      {StatusCode::kInvalidArgument, "layer: ", seq, -1, 200, good, {}},
      {StatusCode::kInvalidArgument, "layer: ", seq, 2, 200, good, {}},
      {StatusCode::kInvalidArgument, "position: ", seq, 0, -1, good, {}},
      {StatusCode::kOutOfRange, "position: ", seq, 0, 201, good, {}},
      {StatusCode::kOutOfRange, "position: ", seq, 0, max, good, {}},
      {StatusCode::kOutOfRange, "position: ", seq, 0, INT64_MAX, good, {}},
      {StatusCode::kInvalidArgument, "keys: ", seq, 0, 200, {rows.data(), 3, bytes - 1}, {}},
      {StatusCode::kInvalidArgument, "keys: ", seq, 0, 200, {rows.data(), 3, bytes + 2}, {}},
      {StatusCode::kInvalidArgument, "keys: ", seq, 0, 200, {rows.data(), 2, bytes}, {}},
      {StatusCode::kInvalidArgument, "keys: ", seq, 0, 200, {rows.data(), -3, bytes}, {}},
      {StatusCode::kInvalidArgument, "keys: ", seq, 0, 200, {rows.data(), huge, 0}, {}},
      {StatusCode::kInvalidArgument, "keys: ", seq, 0, 200, {rows.data(), huge + 3, bytes}, {}},
      {StatusCode::kInvalidArgument, "keys: ", seq, 0, 200, {nullptr, 3, bytes}, {}},
      {StatusCode::kInvalidArgument, "values: ", seq, 0, 200, good, good},
      {StatusCode::kInvalidArgument, "values: ", seq, 0, 200, good, {nullptr, 3, 0}},
  };
  for (const WrongAppend& test : cases) {
    const absl::Status status = index->Append(test.handle, test.layer, test.position, test.keys, test.values).status();
    EXPECT_EQ(status.code(), test.code) << status << " where expected " << test.message;
    EXPECT_EQ(std::string(status.message()).substr(0, test.message.size()), test.message) << status;
  }
  EXPECT_TRUE(SameAnswers(Probe(*index, seq, 0), before));
  EXPECT_EQ(index->stats().store_bytes, stats.store_bytes);
  EXPECT_EQ(index->stats().code_bytes, stats.code_bytes);
  EXPECT_EQ(*index->Append(seq, 0, 200, good, {}), 203);
}

TEST(AppendErrorTest, ValuesMustMatchWhereTheyAreKept) {
  TestBackend backend;
  auto index = MakeIndex(SmallConfig(KvStore::kKeysValues), &backend);
  const Geometry& g = index->config().geometry;
  const SequenceHandle seq = *index->CreateSequence("s");
  const std::string rows = Rows(g, Names(1, 3)), two = Rows(g, Names(1, 2));
  for (const TensorView& values : {TensorView{}, View(g, two), TensorView{rows.data(), 3, rows.size() - 1}}) {
    const absl::Status status = index->Append(seq, 0, 0, View(g, rows), values).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message().substr(0, 8), "values: ") << status;
  }
  EXPECT_EQ(index->GetSequence(seq)->layer_tokens[0], 0);
}

TEST(AppendErrorTest, NonFiniteKeysNameTheFirstPosition) {
  TestBackend backend;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    IndexConfig config = SmallConfig();
    config.geometry.dtype = dtype;
    auto index = MakeIndex(config, &backend);
    const Geometry& g = index->config().geometry;
    const SequenceHandle seq = *index->CreateSequence("s");
    ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 100)).ok());
    const size_t element = SizeOf(dtype), token = g.num_kv_heads * g.head_dim * element;
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (const size_t lane : {size_t{0}, size_t{63}, size_t{64}, size_t{127}}) {
        std::string rows = Rows(g, Names(101, 20));
        std::string bits;
        testing::PutFloat(dtype, bad, &bits);
        rows.replace(7 * token + lane * element, element, bits);
        rows.replace(9 * token, element, bits);
        const absl::Status status = index->Append(seq, 0, 100, View(g, rows), {}).status();
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
        EXPECT_NE(status.message().find("position 107, KV head " + std::to_string(lane / 64)), std::string::npos)
            << status;
      }
    }
    EXPECT_EQ(index->GetSequence(seq)->layer_tokens[0], 100);
  }
  // A norm beyond fp32 though every coordinate is finite.
  IndexConfig config = SmallConfig();
  config.geometry.dtype = DType::kFloat32;
  auto index = MakeIndex(config, &backend);
  std::string rows = Rows(config.geometry, Names(1, 4));
  std::string bits;
  testing::PutFloat(DType::kFloat32, 1e25f, &bits);
  rows.replace(0, 4, bits);
  EXPECT_EQ(index->Append(*index->CreateSequence("s"), 0, 0, View(config.geometry, rows), {}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(AppendTest, ZeroKeysAreAcceptedAndScoreZero) {
  TestBackend backend;
  IndexConfig config = SmallConfig(KvStore::kNone);
  config.codec.centre = Centre::kNone;
  auto index = MakeIndex(config, &backend);
  const SequenceHandle seq = *index->CreateSequence("s");
  const std::string zeros(200 * 2 * 64 * 2, '\0');
  ASSERT_TRUE(index->Append(seq, 0, 0, View(config.geometry, zeros), {}).ok());
  const auto answers = Probe(*index, seq, 0);
  ASSERT_EQ(answers[0].scores.size(), 4u);
  for (const auto& scores : answers[0].scores) {
    ASSERT_EQ(scores.size(), 128u);
    for (const float score : scores) EXPECT_EQ(score, 0.0f);
  }
}

TEST(GatherTest, GivesTheBytesBack) {
  TestBackend backend;
  auto index = MakeIndex(SmallConfig(KvStore::kKeysValues), &backend);
  const Geometry& g = index->config().geometry;
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 1, 0, Names(1, 2100)).ok());
  const std::vector<int32_t> positions = {2099, 0, 2048, 2047, 0};
  for (int head = 0; head < 2; ++head) {
    std::string keys, values;
    ASSERT_TRUE(index->Gather(seq, 1, head, positions, &keys, &values).ok());
    std::string expected_keys, expected_values;
    for (const int32_t p : positions) {
      expected_keys += testing::TokenRow(g, 1 + p).substr(head * 128, 128);
      expected_values += testing::TokenRow(g, 1 + p + testing::kValueNames).substr(head * 128, 128);
    }
    EXPECT_EQ(keys, expected_keys);
    EXPECT_EQ(values, expected_values);
  }
  std::string out = "untouched";
  EXPECT_EQ(index->Gather(seq, 2, 0, positions, &out, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index->Gather(seq, 1, 2, positions, &out, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index->Gather(seq, 1, -1, positions, &out, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index->Gather({"none", 0}, 1, 0, positions, &out, nullptr).code(), StatusCode::kNotFound);
  const absl::Status beyond = index->Gather(seq, 1, 0, {5, 2100, 3000}, &out, nullptr);
  EXPECT_EQ(beyond.code(), StatusCode::kOutOfRange);
  EXPECT_EQ(beyond.message().substr(0, 19), "positions[1]: 2100 ") << beyond;
  EXPECT_EQ(index->Gather(seq, 1, 0, {-1}, &out, nullptr).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(out, "untouched");

  auto keys_only = MakeIndex(SmallConfig(KvStore::kKeys), &backend);
  auto none = MakeIndex(SmallConfig(KvStore::kNone), &backend);
  for (Index* i : {keys_only.get(), none.get()}) {
    ASSERT_TRUE(AppendNames(i, *i->CreateSequence("s"), 0, 0, Names(1, 4)).ok());
    EXPECT_EQ(i->Gather({"s", 0}, 0, 0, {1}, nullptr, &out).code(), StatusCode::kFailedPrecondition);
  }
  EXPECT_TRUE(keys_only->Gather({"s", 0}, 0, 0, {1}, &out, nullptr).ok());
  EXPECT_EQ(none->Gather({"s", 0}, 0, 0, {1}, &out, nullptr).code(), StatusCode::kFailedPrecondition);
}

TEST(MemoryTest, NoneKeepsOnlyWhatIsDense) {
  TestBackend backend;
  auto none = MakeIndex(SmallConfig(KvStore::kNone), &backend);
  auto keys = MakeIndex(SmallConfig(KvStore::kKeys), &backend);
  const int64_t n = 8192, token_bytes = 2 * 64 * 2;
  for (Index* index : {none.get(), keys.get()}) {
    const SequenceHandle once = *index->CreateSequence("once"), streamed = *index->CreateSequence("streamed");
    ASSERT_TRUE(AppendNames(index, once, 0, 0, Names(1, n)).ok());
    for (int64_t p = 0; p < n; p += 64) ASSERT_TRUE(AppendNames(index, streamed, 0, p, Names(1 + p, 64)).ok());
  }
  for (const char* id : {"once", "streamed"}) {
    EXPECT_EQ(keys->GetSequence({id, 0})->store_bytes, n * token_bytes);
    // The sink's chunk of 256, the newest chunks, and eight bytes of checksum a token.
    EXPECT_LE(none->GetSequence({id, 0})->store_bytes, 3 * 256 * token_bytes + n * 8);
  }
}

TEST(MemoryTest, LimitRefusesAndLosesNothing) {
  TestBackend backend;
  IndexConfig config = SmallConfig();
  config.memory_limit_bytes = 400000;
  auto index = MakeIndex(config, &backend);
  const SequenceHandle seq = *index->CreateSequence("s");
  int64_t n = 0;
  absl::Status status;
  while (status.ok()) {
    ASSERT_LT(n, 10000);
    status = AppendNames(index.get(), seq, 0, n, Names(n + 1, 50)).status();
    if (status.ok()) n += 50;
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("400000"), std::string::npos) << status;
  EXPECT_GT(n, 300);
  const IndexStats stats = index->stats();
  EXPECT_LE(stats.code_bytes + stats.store_bytes, 400000);
  EXPECT_EQ(index->GetSequence(seq)->layer_tokens[0], n);
  auto unlimited = MakeIndex(SmallConfig(), &backend);
  ASSERT_TRUE(AppendNames(unlimited.get(), *unlimited->CreateSequence("s"), 0, 0, Names(1, n)).ok());
  EXPECT_TRUE(SameAnswers(Probe(*index, seq, 0), Probe(*unlimited, {"s", 0}, 0)));
  // Reads and deletes still work, and deletion makes room.
  ASSERT_TRUE(index->DeleteSequence(seq).ok());
  EXPECT_EQ(index->stats().code_bytes + index->stats().store_bytes, 0);
  EXPECT_TRUE(AppendNames(index.get(), *index->CreateSequence("t"), 0, 0, Names(1, 300)).ok());
}

TEST(MemoryTest, BudgetIsSharedByIndexes) {
  TestBackend backend;
  auto budget = std::make_shared<MemoryBudget>(400000);
  auto a = MakeIndex(SmallConfig(), &backend, budget), b = MakeIndex(SmallConfig(), &backend, budget);
  ASSERT_TRUE(AppendNames(a.get(), *a->CreateSequence("s"), 0, 0, Names(1, 700)).ok());
  ASSERT_TRUE(b->CreateSequence("s").ok());
  EXPECT_EQ(AppendNames(b.get(), {"s", 0}, 0, 0, Names(1, 700)).status().code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(a->DeleteSequence({"s", 0}).ok());
  EXPECT_TRUE(AppendNames(b.get(), {"s", 0}, 0, 0, Names(1, 700)).ok());
  a.reset();
  b.reset();
  EXPECT_EQ(budget->used_bytes(), 0);
}

TEST(MemoryTest, SequencesThemselvesAreLimited) {
  TestBackend backend;
  IndexConfig config = SmallConfig();
  config.memory_limit_bytes = 100000;
  auto index = MakeIndex(config, &backend);
  absl::Status status;
  for (int i = 0; status.ok() && i < 1000; ++i) status = index->CreateSequence("").status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
}

TEST(MemoryTest, FailureAtEveryAllocationChangesNothing) {
  for (const KvStore store : {KvStore::kNone, KvStore::kKeysValues}) {
    TestBackend backend;
    IndexConfig config = SmallConfig(store);
    config.search.coarse = Coarse::kCollision;
    config.codec.centre = Centre::kNone;
    auto index = MakeIndex(config, &backend);
    const SequenceHandle seq = *index->CreateSequence("s");
    ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 300)).ok());
    ASSERT_TRUE(index->Fork(seq, "fork", -1).ok());  // all pieces are shared: the next append must copy
    const auto before = Probe(*index, seq, 0);
    const IndexStats stats = index->stats();
    int failures = 0;
    for (int fail = 0;; ++fail) {
      backend.fail_after = fail;
      const auto result = AppendNames(index.get(), seq, 0, 300, Names(301, 2000));
      backend.fail_after = -1;
      if (result.ok()) break;
      ++failures;
      ASSERT_EQ(result.status().code(), StatusCode::kResourceExhausted);
      ASSERT_EQ(index->stats().store_bytes, stats.store_bytes);
      ASSERT_EQ(index->stats().code_bytes, stats.code_bytes);
      ASSERT_TRUE(SameAnswers(Probe(*index, seq, 0), before));
    }
    EXPECT_GE(failures, 5);
    auto fresh = *index->CreateSequence("fresh");
    ASSERT_TRUE(AppendNames(index.get(), fresh, 0, 0, Names(1, 2300)).ok());
    EXPECT_TRUE(SameAnswers(Probe(*index, seq, 0), Probe(*index, fresh, 0)));
    EXPECT_TRUE(SameAnswers(Probe(*index, {"fork", 0}, 0), before));
  }
}

// As under a device: each operation on codes refuses once, in an append that copies shared pieces, encodes and counts.
TEST(MemoryTest, RefusalOfEveryOperationChangesNothing) {
  for (const KvStore store : {KvStore::kNone, KvStore::kKeysValues}) {
    TestBackend backend;
    backend.apart = true;
    IndexConfig config = SmallConfig(store);
    config.search.coarse = Coarse::kCollision;
    config.codec.centre = Centre::kNone;
    auto index = MakeIndex(config, &backend);
    const SequenceHandle seq = *index->CreateSequence("s");
    ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 300)).ok());
    const auto before = Probe(*index, seq, 0);
    int failures = 0;
    for (int fail = 0;; ++fail) {
      ASSERT_TRUE(index->Fork(seq, "fork" + std::to_string(fail), -1).ok());  // all pieces are shared again
      backend.fail_operation = fail;
      const auto result = AppendNames(index.get(), seq, 0, 300, Names(301, 2000));
      backend.fail_operation = -1;
      if (result.ok()) break;
      ++failures;
      ASSERT_EQ(result.status().code(), StatusCode::kResourceExhausted) << result.status();
      ASSERT_EQ(index->GetSequence(seq)->layer_tokens[0], 300);
      ASSERT_TRUE(SameAnswers(Probe(*index, seq, 0), before));
    }
    EXPECT_EQ(failures, 3) << "copy, encode, count";
    auto fresh = *index->CreateSequence("fresh");
    ASSERT_TRUE(AppendNames(index.get(), fresh, 0, 0, Names(1, 2300)).ok());
    EXPECT_TRUE(SameAnswers(Probe(*index, seq, 0), Probe(*index, fresh, 0)));
    EXPECT_TRUE(SameAnswers(Probe(*index, {"fork0", 0}, 0), before));
  }
}

TEST(MemoryTest, ALostDeviceIsSaidAndStaysLost) {
  TestBackend backend;
  backend.apart = true;
  backend.failure = Outcome::kLost;
  auto index = MakeIndex(SmallConfig(KvStore::kKeysValues), &backend);
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 300)).ok());
  backend.fail_operation = 0;
  const std::vector<float> queries(4 * 64, 1.0f);
  const absl::Status lost = index->Retrieve({{seq, 0, queries.data()}}, index->config().search).status();
  EXPECT_EQ(lost.code(), StatusCode::kUnavailable);
  EXPECT_NE(lost.message().find("planted"), absl::string_view::npos) << lost;
  EXPECT_EQ(AppendNames(index.get(), seq, 0, 300, Names(301, 200)).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(index->GetSequence(seq)->layer_tokens[0], 300);
  std::string keys, values;  // lie in the host's memory
  const int32_t positions[] = {0, 299};
  EXPECT_TRUE(index->Gather(seq, 0, 1, positions, &keys, &values).ok());
  EXPECT_TRUE(index->DeleteSequence(seq).ok());
}

TEST(MemoryTest, BytesAKeyCountCapacity) {
  TestBackend backend;
  auto index = MakeIndex(SmallConfig(), &backend);
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 16 + 32 + 2048)).ok());
  const HeadInfo full = *index->DescribeHead(seq, 0, 0);
  EXPECT_EQ(full.code_bytes, static_cast<int64_t>(CodeBytes(full.layout, 2048)));
  EXPECT_DOUBLE_EQ(full.bytes_per_key, full.code_bytes / 2048.0);
  EXPECT_EQ(full.codec, "rsq");
  EXPECT_EQ(full.coarse, "sign_ip");
  EXPECT_EQ(full.centre, "window");
  EXPECT_EQ(index->GetSequence(seq)->code_bytes, 2 * full.code_bytes);
  EXPECT_EQ(index->stats().code_bytes, 2 * full.code_bytes);
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 2096, Names(2097, 64)).ok());
  const HeadInfo more = *index->DescribeHead(seq, 0, 0);
  EXPECT_EQ(more.num_segments, 2);
  EXPECT_EQ(more.code_bytes, full.code_bytes + static_cast<int64_t>(CodeBytes(full.layout, 256)));
}

}  // namespace
}  // namespace seine
