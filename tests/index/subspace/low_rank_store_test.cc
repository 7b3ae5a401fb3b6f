// Codes in blocks and versions: what is read back, by which basis, after cuts, forks and failures, and what it takes.
#include "index/subspace/low_rank_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "index/memory/memory.h"
#include "index/subspace/low_rank.h"
#include "kernels/backend.h"
#include "kernels/math.h"
#include "tests/index/subspace/streams.h"

namespace seine {
namespace {

constexpr int kRowDim = 64, kBlock = 64;

double Fading(int i) { return std::pow(i + 1, -.7); }

// Keys and values of a head, drifting slowly: an axis more matters from a block to the next.
struct Tokens {
  explicit Tokens(int64_t count, uint64_t seed = 1) {
    for (auto* rows : {&keys, &values}) {
      for (int64_t b = 0; b * kBlock < count; ++b) {
        const auto deviation = [b](int i) { return Fading((i + static_cast<int>(b)) % kRowDim); };
        const uint64_t own = seed * 1000 + (rows == &keys ? 100 : 500) + b;
        const std::vector<float> part = Stream(RandomAxes(kRowDim, 10), kBlock, own, deviation);
        rows->insert(rows->end(), part.begin(), part.end());
      }
      for (float& x : *rows) x = HalfToFloat(FloatToHalf(x));  // as fp16 holds it
    }
  }
  std::vector<float> keys, values;  // [count, D]
};

constexpr int32_t kFirstPosition = 16;

std::vector<int32_t> PositionsFrom(int64_t place, int64_t count) {
  std::vector<int32_t> positions(count);
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(kFirstPosition + place));
  return positions;
}

// Appends tokens [first, first + count) of `tokens`, a block of `block` first.
absl::Status Append(LowRankStore* store, const Tokens& tokens, int64_t first, int64_t count, int64_t block = kBlock) {
  const HeadRows rows = {{tokens.keys.data() + first * kRowDim, kRowDim * 4, DType::kFloat32},
                         {tokens.values.data() + first * kRowDim, kRowDim * 4, DType::kFloat32}};
  auto staged = store->Stage(rows, PositionsFrom(store->size(), count).data(), count, block);
  if (!staged.ok()) return staged.status();
  store->Install(*std::move(staged));
  return absl::OkStatus();
}

std::vector<float> Read(const LowRankStore& store, bool of_values, int64_t begin, int64_t end) {
  std::vector<int64_t> places(end - begin);
  std::iota(places.begin(), places.end(), begin);
  std::vector<float> out((end - begin) * kRowDim);
  const std::vector<int32_t> positions = PositionsFrom(begin, end - begin);
  store.Read(places, positions.data(), of_values ? nullptr : out.data(), of_values ? out.data() : nullptr);
  return out;
}

LowRankShape Shape(double full_rank = 0, KeyFrame frame = KeyFrame::kPostRope) {
  LowRankShape shape;
  LowRankOptions& o = shape.options;
  o.head_dim = kRowDim;
  o.dtype = DType::kFloat32;
  o.frame = frame;
  o.rope = ParseRope(R"({"rope_theta": 10000})", kRowDim, Rope::Style::kHalfSplit, 4096).value();
  o.key_rank = 20;
  o.value_rank = 33;
  o.block_tokens = kBlock;
  o.version_tokens = 4 * kBlock;
  o.full_rank = full_rank;
  return shape;
}

class LowRankStoreTest : public ::testing::Test {
 protected:
  static std::vector<float> Keys(const LowRankStore& store, int64_t begin, int64_t end) {
    return Read(store, false, begin, end);
  }
  static std::vector<float> Values(const LowRankStore& store, int64_t begin, int64_t end) {
    return Read(store, true, begin, end);
  }
  static double Error(const std::vector<float>& got, const float* want) {
    double residual = 0, energy = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      residual += std::pow(got[i] - want[i], 2);
      energy += std::pow(want[i], 2);
    }
    return residual / energy;
  }

  std::unique_ptr<Backend> backend_ = MakeCpuBackend(1);
  MemoryLedger ledger_{backend_.get(), 0, 0, nullptr};
};

TEST_F(LowRankStoreTest, ReadsTheProjectionOnTheVersionsBasis) {
  const LowRankShape shape = Shape();
  const Tokens tokens(10 * kBlock);
  LowRankStore store(&shape, &ledger_);
  ASSERT_TRUE(Append(&store, tokens, 0, 10 * kBlock).ok());
  EXPECT_EQ(store.size(), 10 * kBlock);
  EXPECT_EQ(store.metrics().num_versions, 3);
  for (int64_t place : {0, 63, 64, 300, 639}) {
    const Eigen::MatrixXd u = ToEigen(store.BasisOf(place, false));
    const Eigen::VectorXd k = Eigen::Map<const Eigen::VectorXf>(&tokens.keys[place * kRowDim], kRowDim).cast<double>();
    const Eigen::VectorXd want = u * (u.transpose() * k);
    const std::vector<float> got = Keys(store, place, place + 1);
    for (int j = 0; j < kRowDim; ++j) ASSERT_NEAR(got[j], want(j), 1e-5) << place;
  }
  EXPECT_LT(OrthonormalityError(store.BasisOf(0, true)), 2e-3);  // as fp16 keeps it
  EXPECT_EQ(store.BasisOf(0, true).rank, 33);
}

TEST_F(LowRankStoreTest, OldCodesAreReadByTheirOwnVersion) {
  const LowRankShape shape = Shape();
  const Tokens tokens(16 * kBlock);
  LowRankStore store(&shape, &ledger_);
  ASSERT_TRUE(Append(&store, tokens, 0, 4 * kBlock).ok());
  const std::vector<float> before = Keys(store, 0, 4 * kBlock);
  const double error = Error(before, tokens.keys.data());
  ASSERT_TRUE(Append(&store, tokens, 4 * kBlock, 12 * kBlock).ok());
  EXPECT_EQ(Keys(store, 0, 4 * kBlock), before);

  // By the newest basis the same codes would be something else.
  const Basis old = store.BasisOf(0, false), now = store.BasisOf(16 * kBlock - 1, false);
  EXPECT_GT(PrincipalAngle(old, now), .3);
  std::vector<float> codes(4 * kBlock * old.stride()), wrong(before.size());
  Project(old, before.data(), 4 * kBlock, codes.data(), old.stride());
  Reconstruct(now, codes.data(), now.stride(), 4 * kBlock, wrong.data());
  EXPECT_GT(Error(wrong, tokens.keys.data()), error + .1);
}

TEST_F(LowRankStoreTest, PreRopeKeysComeBackAtTheirPositions) {
  const LowRankShape shape = Shape(0, KeyFrame::kPreRope);
  Tokens tokens(4 * kBlock);
  ApplyRopeToRows(shape.options.rope, kFirstPosition, 4 * kBlock, tokens.keys.data());
  LowRankStore before(&shape, &ledger_);
  ASSERT_TRUE(Append(&before, tokens, 0, 4 * kBlock).ok());
  const LowRankShape after_shape = Shape();
  LowRankStore after(&after_shape, &ledger_);
  ASSERT_TRUE(Append(&after, tokens, 0, 4 * kBlock).ok());
  const double pre = Error(Keys(before, 0, 4 * kBlock), tokens.keys.data());
  EXPECT_LT(pre, .6);
  EXPECT_LT(pre, Error(Keys(after, 0, 4 * kBlock), tokens.keys.data()));
  // A part that begins inside a block is turned by its own positions.
  const std::vector<float> whole = Keys(before, 0, 4 * kBlock), part = Keys(before, 70, 200);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 70 * kRowDim));
}

TEST_F(LowRankStoreTest, FullRankTokensAreThoseThatLoseMostAndComeBackExactly) {
  for (const bool with_queries : {false, true}) {
    LowRankShape shape = Shape(.125);
    const Eigen::MatrixXd axes = RandomAxes(kRowDim, 77);
    if (with_queries) shape.query_moment = axes.leftCols(3) * axes.leftCols(3).transpose();
    const LowRankShape bare = Shape();
    const Tokens tokens(2 * kBlock);
    LowRankStore store(&shape, &ledger_), plain(&bare, &ledger_);
    ASSERT_TRUE(Append(&store, tokens, 0, 2 * kBlock).ok());
    ASSERT_TRUE(Append(&plain, tokens, 0, 2 * kBlock).ok());
    for (int64_t b = 0; b < 2; ++b) {
      const std::vector<float> lost = Keys(plain, b * kBlock, (b + 1) * kBlock);
      std::vector<float> losses(kBlock);
      for (int64_t t = 0; t < kBlock; ++t) {
        Eigen::VectorXd r(kRowDim);
        for (int j = 0; j < kRowDim; ++j) r(j) = tokens.keys[(b * kBlock + t) * kRowDim + j] - lost[t * kRowDim + j];
        losses[t] = static_cast<float>(with_queries ? (axes.leftCols(3).transpose() * r).norm() : r.norm());
      }
      const std::vector<int32_t> kept = FullRankSet(losses, 8);
      const std::vector<float> keys = Keys(store, b * kBlock, (b + 1) * kBlock);
      const std::vector<float> values = Values(store, b * kBlock, (b + 1) * kBlock);
      for (int64_t t = 0; t < kBlock; ++t) {
        const bool exact =
            std::equal(&keys[t * kRowDim], &keys[t * kRowDim] + kRowDim, &tokens.keys[(b * kBlock + t) * kRowDim]);
        EXPECT_EQ(exact, std::binary_search(kept.begin(), kept.end(), t)) << with_queries << " " << b << " " << t;
        EXPECT_EQ(exact, std::equal(&values[t * kRowDim], &values[t * kRowDim] + kRowDim,
                                    &tokens.values[(b * kBlock + t) * kRowDim]));
      }
    }
  }
}

TEST_F(LowRankStoreTest, CallsDoNotMatter) {
  const LowRankShape shape = Shape(.1);
  const Tokens tokens(9 * kBlock);
  LowRankStore one(&shape, &ledger_), many(&shape, &ledger_);
  ASSERT_TRUE(Append(&one, tokens, 0, 9 * kBlock).ok());
  for (int64_t b = 0; b < 9; ++b) ASSERT_TRUE(Append(&many, tokens, b * kBlock, kBlock).ok());
  EXPECT_EQ(Keys(one, 0, 9 * kBlock), Keys(many, 0, 9 * kBlock));
  EXPECT_EQ(Values(one, 0, 9 * kBlock), Values(many, 0, 9 * kBlock));
  EXPECT_EQ(one.bytes().total(), many.bytes().total());
  EXPECT_EQ(one.key_basis()->u, many.key_basis()->u);
}

TEST_F(LowRankStoreTest, CutsMayFallAnywhereAndForksGoTheirOwnWay) {
  const LowRankShape shape = Shape(.1);
  const Tokens tokens(8 * kBlock), others(8 * kBlock, 2);
  LowRankStore store(&shape, &ledger_);
  ASSERT_TRUE(Append(&store, tokens, 0, 6 * kBlock).ok());
  const std::vector<float> before = Keys(store, 0, 6 * kBlock);
  LowRankStore fork = store;
  fork.Truncate(100);
  EXPECT_EQ(fork.size(), 100);
  ASSERT_TRUE(Append(&fork, others, 0, 2 * kBlock).ok());
  EXPECT_EQ(fork.size(), 100 + 2 * kBlock);
  EXPECT_EQ(Keys(store, 0, 6 * kBlock), before);
  const std::vector<float> kept = Keys(fork, 0, 100);
  EXPECT_TRUE(std::equal(kept.begin(), kept.end(), before.begin()));
  EXPECT_LT(Error(Keys(fork, 100, 100 + 2 * kBlock), others.keys.data()), .6);
  EXPECT_GT(Error(Keys(fork, 100, 100 + 2 * kBlock), &tokens.keys[100 * kRowDim]), .9);
  fork.Truncate(0);
  EXPECT_EQ(fork.size(), 0);
  EXPECT_EQ(fork.bytes().codes, 0);
  ASSERT_TRUE(Append(&fork, others, 0, kBlock).ok());
  EXPECT_EQ(fork.size(), kBlock);
  fork.Truncate(1000);  // beyond the end: nothing
  EXPECT_EQ(fork.size(), kBlock);
}

TEST_F(LowRankStoreTest, KeptTokensReadAsBefore) {
  for (const KeyFrame frame : {KeyFrame::kPostRope, KeyFrame::kPreRope}) {
    const LowRankShape shape = Shape(.1, frame);
    const Tokens tokens(10 * kBlock);
    LowRankStore store(&shape, &ledger_);
    ASSERT_TRUE(Append(&store, tokens, 0, 10 * kBlock, 40).ok());  // blocks of 40, 64, ..., 24
    std::vector<int64_t> places;
    std::vector<int32_t> positions;
    for (int64_t place = 5; place < 10 * kBlock; place += 1 + place % 3) {
      places.push_back(place);
      positions.push_back(static_cast<int32_t>(kFirstPosition + place));
    }
    const auto count = static_cast<int64_t>(places.size());
    std::vector<float> keys(count * kRowDim), values(keys.size()), kept_keys(keys.size()), kept_values(keys.size());
    store.Read(places, positions.data(), keys.data(), values.data());
    auto kept = store.Keep(places);
    ASSERT_TRUE(kept.ok());
    EXPECT_EQ(kept->size(), count);
    std::vector<int64_t> all(count);
    std::iota(all.begin(), all.end(), 0);
    kept->Read(all, positions.data(), kept_keys.data(), kept_values.data());
    EXPECT_EQ(kept_keys, keys);
    EXPECT_EQ(kept_values, values);
    EXPECT_EQ(kept->metrics().num_versions, 3);
    EXPECT_EQ(kept->bytes().codes, count * (20 + 33) * 4);
    EXPECT_EQ(kept->bytes().full_rank, kept->metrics().num_full_rank * (2 * kRowDim * 4 + 2));
    // What is learnt goes on from where it was.
    ASSERT_TRUE(Append(&*kept, tokens, 0, kBlock).ok());
    EXPECT_EQ(kept->metrics().keys.rows, 10 * kBlock + kBlock);
  }
  const LowRankShape shape = Shape();
  LowRankStore store(&shape, &ledger_);
  ASSERT_TRUE(Append(&store, Tokens(kBlock), 0, kBlock).ok());
  auto none = store.Keep({});
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->size(), 0);
  EXPECT_EQ(none->bytes().codes, 0);
}

TEST_F(LowRankStoreTest, BytesAreTheFormulaAndAreGivenBack) {
  LowRankShape shape = Shape();
  LowRankOptions& o = shape.options;
  o.dtype = DType::kFloat16;
  o.key_rank = o.value_rank = 38;
  o.version_tokens = LowRankOptions().version_tokens;
  constexpr int64_t kTokens = 8192;
  const Tokens tokens(kTokens);
  {
    LowRankStore store(&shape, &ledger_);
    ASSERT_TRUE(Append(&store, tokens, 0, kTokens).ok());
    const LowRankBytes bytes = store.bytes();
    const int64_t formula = kTokens * (38 + 38) * 2;  // A.4.2
    EXPECT_EQ(bytes.codes, formula);
    EXPECT_EQ(bytes.full_rank, 0);
    EXPECT_EQ(bytes.total(), ledger_.held(MemoryKind::kSubspace));
    EXPECT_EQ(store.metrics().num_versions, 3);
    EXPECT_EQ(bytes.bases, 3 * kRowDim * (38 + 38) * 2 + 2 * PackedTracker::Bytes(kRowDim, 38, 0));
    EXPECT_LE(static_cast<double>(bytes.total()), 1.03 * static_cast<double>(formula));
    LowRankStore fork = store;
    EXPECT_EQ(bytes.total(), ledger_.held(MemoryKind::kSubspace));  // shared
  }
  EXPECT_EQ(ledger_.held(MemoryKind::kSubspace), 0);
}

TEST_F(LowRankStoreTest, NoMemoryChangesNothing) {
  const LowRankShape shape = Shape(.1);
  const Tokens tokens(4 * kBlock);
  MemoryLedger small(backend_.get(), 100000, 0, nullptr);
  LowRankStore store(&shape, &small);
  ASSERT_TRUE(Append(&store, tokens, 0, kBlock).ok());
  const std::vector<float> before = Keys(store, 0, kBlock);
  const int64_t held = small.held(MemoryKind::kStore);
  EXPECT_EQ(Append(&store, tokens, 0, 4 * kBlock).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store.size(), kBlock);
  EXPECT_EQ(Keys(store, 0, kBlock), before);
  EXPECT_EQ(small.held(MemoryKind::kStore), held);
}

TEST_F(LowRankStoreTest, StartsFromTheProfilesBasesOrTheFirstBlock) {
  LowRankShape calibrated = Shape();
  calibrated.key_start = FromEigen(RandomAxes(kRowDim, 5).leftCols(20), 0);
  calibrated.value_start = FromEigen(RandomAxes(kRowDim, 6).leftCols(33), 0);
  const LowRankShape own = Shape();
  const Tokens tokens(kBlock);
  LowRankStore a(&calibrated, &ledger_), b(&own, &ledger_);
  ASSERT_TRUE(Append(&a, tokens, 0, kBlock).ok());
  ASSERT_TRUE(Append(&b, tokens, 0, kBlock).ok());
  EXPECT_GT(Overlap(a.BasisOf(0, false), *calibrated.key_start), .8);
  EXPECT_LT(Error(Keys(b, 0, kBlock), tokens.keys.data()), .2);
  EXPECT_EQ(b.metrics().keys.rows, kBlock);
  EXPECT_EQ(b.metrics().angle < .1, true);

  LowRankStore zeros(&own, &ledger_);  // nothing to learn from
  const std::vector<float> nothing(kBlock * kRowDim);
  auto staged = zeros.Stage({RowsOf(nothing, kRowDim), RowsOf(nothing, kRowDim)}, PositionsFrom(0, kBlock).data(),
                            kBlock, kBlock);
  ASSERT_TRUE(staged.ok());
  zeros.Install(*std::move(staged));
  EXPECT_EQ(Keys(zeros, 0, kBlock), nothing);
}

TEST_F(LowRankStoreTest, GivenBasesStayWholeUntilTheNextBlockBeginsWithThem) {
  const LowRankShape shape = Shape();
  const Tokens tokens(4 * kBlock);
  const Basis keys = FromEigen(RandomAxes(kRowDim, 8).leftCols(20), 3);
  const Basis values = FromEigen(RandomAxes(kRowDim, 9).leftCols(33), 3);
  {
    LowRankStore store(&shape, &ledger_);
    EXPECT_FALSE(store.key_basis());
    ASSERT_TRUE(Append(&store, tokens, 0, 2 * kBlock).ok());
    const int64_t learnt = store.bytes().bases;
    ASSERT_TRUE(store.SetBases(keys, values).ok());
    EXPECT_EQ(store.key_basis()->u, keys.u);
    EXPECT_EQ(store.value_basis()->u, values.u);
    EXPECT_EQ(store.metrics().keys.rows, 0);
    EXPECT_EQ(store.metrics().num_versions, 1);
    EXPECT_GT(store.metrics().angle, .5);
    EXPECT_EQ(store.bytes().total(), ledger_.held(MemoryKind::kSubspace));
    auto part = store.Keep({1, 2, 100});
    ASSERT_TRUE(part.ok());
    EXPECT_EQ(part->key_basis()->u, keys.u);
    ASSERT_TRUE(Append(&store, tokens, 2 * kBlock, 2 * kBlock).ok());
    EXPECT_EQ(store.metrics().num_versions, 2);
    EXPECT_EQ(store.metrics().keys.rows, 2 * kBlock);
    EXPECT_GT(Overlap(store.BasisOf(3 * kBlock, true), values), .8);
    EXPECT_EQ(store.bytes().bases, learnt + kRowDim * (20 + 33) * 2);  // a version more, nothing else
  }
  EXPECT_EQ(ledger_.held(MemoryKind::kSubspace), 0);
  MemoryLedger small(backend_.get(), 1000, 0, nullptr);
  LowRankStore store(&shape, &small);
  EXPECT_EQ(store.SetBases(keys, values).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(store.key_basis());
}

TEST_F(LowRankStoreTest, OptionsAreRefusedByField) {
  const auto message = [](auto set) {
    LowRankOptions options = Shape().options;
    set(&options);
    return std::string(Validate(options).message());
  };
  EXPECT_EQ(message([](LowRankOptions*) {}), "");
  EXPECT_EQ(message([](LowRankOptions* o) { o->key_rank = 0; }).find("key_rank"), 0);
  EXPECT_EQ(message([](LowRankOptions* o) { o->value_rank = 65; }).find("value_rank"), 0);
  EXPECT_EQ(message([](LowRankOptions* o) { o->block_tokens = 65537; }).find("block_tokens"), 0);
  EXPECT_EQ(message([](LowRankOptions* o) { o->version_tokens = 0; }).find("version_tokens"), 0);
  EXPECT_EQ(message([](LowRankOptions* o) { o->full_rank = 1; }).find("full_rank"), 0);
  EXPECT_EQ(message([](LowRankOptions* o) { o->oja.interval = 0; }).find("interval"), 0);
  EXPECT_EQ(message([](LowRankOptions* o) { o->frame = KeyFrame::kPreRope, o->rope = Rope(); }).find("frame"), 0);
}

}  // namespace
}  // namespace seine
