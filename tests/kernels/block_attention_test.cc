// Attention of blocks of rows: near float64 under random masks, runs and shapes, the same bits on every target that
// fuses.
#include "kernels/ops/attend/block_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/amx.h"
#include "tests/kernels/same_bits.h"

namespace seine {
namespace {

using cpu::KeyTile;
using cpu::kRunKeys;
using cpu::kTileKeys;
using cpu::kTileRuns;

struct Shape {
  int dim, group, tokens, places, tiles;
  DType dtype;
};

// A block of random rows over random runs; some tiles are seen whole, some in part, some by a part of the tokens, some
// not at all.
class Block {
 public:
  Block(const Shape& s, uint32_t seed, float size)
      : shape_(s),
        keys_(Gaussian(s.places * s.dim, static_cast<int>(seed)), s.dim, s.dtype),
        values_(Gaussian(s.places * s.dim, static_cast<int>(seed + 1)), s.dim, s.dtype),
        queries_(Gaussian(s.tokens * s.group * s.dim, static_cast<int>(seed + 2))),
        seen_(static_cast<size_t>(s.tiles) * s.tokens) {
    for (float& q : queries_) q *= size;
    std::mt19937_64 random(seed);
    std::vector<int32_t> runs((s.places + kRunKeys - 1) / kRunKeys);
    for (size_t i = 0; i < runs.size(); ++i) runs[i] = static_cast<int32_t>(i) * kRunKeys;
    std::shuffle(runs.begin(), runs.end(), random);
    size_t next = 0;
    for (int t = 0; t < s.tiles; ++t) {
      KeyTile tile;
      for (int32_t& run : tile.runs) run = next < runs.size() && random() % 9 != 0 ? runs[next++] : -1;
      const uint64_t kind = random() % 5;
      const int first = static_cast<int>(random() % s.tokens);  // with kind 4: that sees anything, and then everything
      for (int i = 0; i < s.tokens; ++i) {
        uint64_t& word = seen_[static_cast<size_t>(t) * s.tokens + i];
        word = kind == 0 || (kind == 4 && i < first) ? 0 : kind == 1 || kind == 4 ? ~uint64_t{0} : random() & random();
      }
      if (kind != 3) tile.seen = &seen_[static_cast<size_t>(t) * s.tokens];
      tiles_.push_back(tile);
    }
    for (int r = 0; r < s.tokens * s.group; ++r) rows_.push_back(&queries_[static_cast<size_t>(r) * s.dim]);
    first_key_ = static_cast<const uint8_t*>(keys_.rows.data);
    first_value_ = static_cast<const uint8_t*>(values_.rows.data);
    task.queries = rows_.data();
    task.num_rows = s.tokens * s.group;
    task.group = s.group;
    task.scale = 1.5f / std::sqrt(static_cast<float>(s.dim));
    task.keys = {&first_key_, 1 << 30, s.dim, s.dtype, keys_.rows.stride_bytes};
    task.values = {&first_value_, 1 << 30, s.dim, s.dtype, values_.rows.stride_bytes};
    task.num_places = s.places;
    task.tiles = tiles_.data();
    task.num_tiles = s.tiles;
  }

  struct Answer {
    std::vector<float> out, log_sum_exp;
  };
  Answer Attend() const {
    Answer a{std::vector<float>(queries_.size(), 7), std::vector<float>(task.num_rows, 7)};
    std::vector<float*> outputs;
    for (int r = 0; r < task.num_rows; ++r) outputs.push_back(&a.out[static_cast<size_t>(r) * shape_.dim]);
    cpu::AttendBlock(task, outputs.data(), a.log_sum_exp.data());
    return a;
  }
  std::vector<float> Masses() const {
    std::vector<float> masses(task.num_tiles * kTileRuns * task.num_rows, 7);
    cpu::RunMasses(task, masses.data());
    return masses;
  }

  // In float64. shares [num_tiles][kTileKeys] of row r.
  std::vector<double> Shares(int r, double* log_sum_exp) const {
    std::vector<double> logits(task.num_tiles * kTileKeys, -INFINITY);
    double most = -INFINITY, sum = 0;
    ForEachSeen(r, [&](size_t i, int64_t place) {
      double dot = 0;
      for (int j = 0; j < shape_.dim; ++j) dot += double{keys_.values[place * shape_.dim + j]} * rows_[r][j];
      logits[i] = dot * task.scale;
      if (task.softcap > 0) logits[i] = task.softcap * std::tanh(logits[i] / task.softcap);
      most = std::max(most, logits[i]);
    });
    for (double& x : logits) sum += x = x == -INFINITY ? 0 : std::exp(x - most);
    for (double& x : logits) x /= std::max(sum, 1e-300);
    *log_sum_exp = sum > 0 ? most + std::log(sum) : -INFINITY;
    return logits;
  }
  template <typename Use>
  void ForEachSeen(int r, Use use) const {
    for (int t = 0; t < task.num_tiles; ++t) {
      for (int i = 0; i < kTileKeys; ++i) {
        const int32_t run = tiles_[t].runs[i / kRunKeys];
        const uint64_t word = tiles_[t].seen == nullptr ? ~uint64_t{0} : tiles_[t].seen[r / shape_.group];
        const int64_t place = run + i % kRunKeys;
        if (run >= 0 && place < shape_.places && (word >> i & 1) != 0) use(t * kTileKeys + i, place);
      }
    }
  }
  double ValueAt(int64_t place, int j) const { return values_.values[place * shape_.dim + j]; }

  // Makes them what a model in bfloat16 has.
  void RoundQueries() {
    for (float& q : queries_) q = BitsFloat(FloatBits(q) & 0xFFFF0000u);
  }

  cpu::BlockTask task;

 private:
  const Shape shape_;
  const Typed keys_, values_;
  std::vector<float> queries_;
  std::vector<uint64_t> seen_;
  std::vector<KeyTile> tiles_;
  std::vector<const float*> rows_;
  const uint8_t *first_key_, *first_value_;
};

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (const int dim : {16, 64, 80, 96, 128, 256, 512}) {
    for (const DType dtype : RowTypesOf(dim)) shapes.push_back({dim, 3, 21, 700, 12, dtype});
  }
  for (const int group : {1, 2, 5, 8}) {
    for (const int tokens : {1, 5, 33}) shapes.push_back({64, group, tokens, 203, 5, DType::kFloat16});
  }
  return shapes;
}

void ExpectNearFloat64(const Block& block, const Shape& s, double bound) {
  const Block::Answer got = block.Attend();
  const std::vector<float> masses = block.Masses();
  std::vector<double> want_masses(masses.size());
  for (int r = 0; r < block.task.num_rows; ++r) {
    double log_sum_exp;
    const std::vector<double> shares = block.Shares(r, &log_sum_exp);
    std::vector<double> want(s.dim);
    block.ForEachSeen(r, [&](size_t i, int64_t place) {
      want_masses[i / kRunKeys * block.task.num_rows + r] += shares[i];
      for (int j = 0; j < s.dim; ++j) want[j] += shares[i] * block.ValueAt(place, j);
    });
    if (log_sum_exp == -INFINITY) {
      ASSERT_EQ(got.log_sum_exp[r], -INFINITY);
    } else {
      ASSERT_NEAR(got.log_sum_exp[r], log_sum_exp, bound * std::max(1.0, std::fabs(log_sum_exp)));
    }
    for (int j = 0; j < s.dim; ++j) ASSERT_NEAR(got.out[static_cast<size_t>(r) * s.dim + j], want[j], bound);
  }
  for (size_t i = 0; i < masses.size(); ++i) ASSERT_NEAR(masses[i], want_masses[i], bound * (1 + want_masses[i]));
}

TEST(BlockAttention, NearFloat64OnEveryTarget) {
  uint32_t seed = 1;
  for (const Shape& s : Shapes()) {
    SCOPED_TRACE(std::to_string(s.dim) + " x " + std::to_string(s.group) + " x " + std::to_string(s.tokens));
    Block block(s, seed += 3, 1);
    OnEveryTarget([&](const std::string&) { ExpectNearFloat64(block, s, 1e-5); });
    block.task.softcap = .3f * static_cast<float>(seed % 7 + 1);
    OnEveryTarget([&](const std::string&) { ExpectNearFloat64(block, s, 1e-5); });
  }
}

// Rows and queries of bfloat16, of which a machine with AMX multiplies one part: dims that are and are no whole number
// of its tiles, blocks of one strip and of several.
TEST(BlockAttention, NearFloat64InBfloat16) {
  uint32_t seed = 300;
  for (const int dim : {16, 64, 80, 256}) {
    for (const int tokens : {1, 40, 75}) {
      const Shape s = {dim, 3, tokens, 700, 12, DType::kBFloat16};
      SCOPED_TRACE(std::to_string(dim) + " x " + std::to_string(tokens));
      Block block(s, seed += 3, 1);
      block.RoundQueries();
      OnEveryTarget([&](const std::string&) { ExpectNearFloat64(block, s, 1e-5); });
      block.task.softcap = 1.5f;
      OnEveryTarget([&](const std::string&) { ExpectNearFloat64(block, s, 1e-5); });
    }
  }
}

// Rows whose logits differ by hundreds: maxima go up along the tiles, and most weights are zero.
TEST(BlockAttention, NearFloat64WhereLogitsAreLarge) {
  uint32_t seed = 500;
  for (const float size : {0.0f, 10.0f, 60.0f}) {
    const Shape s = {64, 3, 21, 700, 12, DType::kFloat32};
    const Block block(s, seed += 3, size);
    OnEveryTarget([&](const std::string&) { ExpectNearFloat64(block, s, 3e-5 * std::max(1.0f, size)); });
  }
}

TEST(BlockAttention, TheSameBitsWhereProductsAreFused) {
  uint32_t seed = 1000;
  for (const Shape& s : Shapes()) {
    Block block(s, seed += 3, 3);
    block.task.softcap = seed % 2 == 0 ? 0 : 1.5f;
    const auto run = [&](bool masses_alone) {
      const Block::Answer a = block.Attend();
      const std::vector<float> masses = block.Masses();
      std::vector<uint8_t> bits;
      Put(&bits, masses.data(), masses.size());
      if (masses_alone) return bits;
      Put(&bits, a.out.data(), a.out.size());
      Put(&bits, a.log_sum_exp.data(), a.log_sum_exp.size());
      return bits;
    };
    ASSERT_TRUE(cpu::ForceTarget("SCALAR"));
    const std::vector<uint8_t> want = run(false), want_masses = run(true);
    OnEveryTarget([&](const std::string& target) {
      if (target == "SSE4") return;
      const bool by_tiles = target == "AVX3_DL" && cpu::HasAmx() && s.dim % 32 == 0;
      ASSERT_EQ(run(by_tiles), by_tiles ? want_masses : want) << target;
    });
  }
}

// A row's answer is its own: the rows beside it, and where the block begins, do not change a bit.
void ExpectRowsOfTheirOwn(const Shape& s, Block* of) {
  Block& block = *of;
  const Block::Answer all = block.Attend();
  cpu::BlockTask part = block.task;
  std::vector<KeyTile> tiles(part.tiles, part.tiles + part.num_tiles);
  for (const int token : {0, 4, 20}) {
    for (KeyTile& tile : tiles) tile.seen = tile.seen == nullptr ? nullptr : tile.seen + token;
    part.tiles = tiles.data();
    part.queries = block.task.queries + token * s.group;
    part.num_rows = s.group;
    std::vector<float> out(static_cast<size_t>(s.group) * s.dim);
    std::vector<float*> outputs;
    for (int r = 0; r < s.group; ++r) outputs.push_back(&out[static_cast<size_t>(r) * s.dim]);
    cpu::AttendBlock(part, outputs.data(), nullptr);
    EXPECT_TRUE(std::equal(out.begin(), out.end(), all.out.begin() + static_cast<ptrdiff_t>(token) * s.group * s.dim));
    tiles.assign(block.task.tiles, block.task.tiles + part.num_tiles);
  }
}

TEST(BlockAttention, RowsDoNotDependOnTheirNeighbours) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kQ8}) {
    const Shape s = {64, 3, 21, 700, 12, dtype};
    Block block(s, 77 + static_cast<uint32_t>(dtype), 2);
    ExpectRowsOfTheirOwn(s, &block);
    block.RoundQueries();
    ExpectRowsOfTheirOwn(s, &block);
  }
}

}  // namespace
}  // namespace seine
