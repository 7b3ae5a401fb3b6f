// An index over cells of every type, and over cells that the engine turned before it quantised them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "index/cells/cell_layer.h"
#include "kernels/host.h"
#include "tests/index/synthetic_model.h"
#include "tests/kernels/same_bits.h"

namespace seine::cell_rows {  // of its own: the names are short
namespace {

constexpr int kHeads = 2, kGroup = 3, kDim = 64, kSink = 16, kLocal = 32;
constexpr int64_t kCells = 1500;

// [cells][heads] rows of one type.
struct TypedCells {
  TypedCells(const std::vector<float>& x, DType dtype) : type(dtype) {
    const Typed typed(x, kDim, dtype);
    const size_t row = BytesOf(dtype, kDim), rows = x.size() / kDim;
    bytes.resize(row * rows);
    for (size_t i = 0; i < rows; ++i) std::memcpy(&bytes[i * row], typed.rows.row(static_cast<int64_t>(i)), row);
    values = typed.values;
  }
  size_t head() const { return BytesOf(type, kDim); }
  DType type;
  std::vector<uint8_t> bytes;
  std::vector<float> values;
};

CellRows RowsOf(const TypedCells& keys, const TypedCells& values) {
  return {keys.bytes.data(), values.bytes.data(), kHeads * keys.head(), keys.head(), kHeads * values.head(),
          values.head(),     keys.type,           values.type};
}

CellConfig ConfigFor(const Geometry& geometry) {
  CellConfig config;
  config.geometry = geometry;
  config.search = {.top_k = 20, .candidate_fraction = .05, .rescore_k = 40};
  config.search.softmax_scale = 1 / std::sqrt(static_cast<float>(kDim));
  config.sink = kSink, config.local = kLocal;
  config.capacity = 4096;
  return config;
}

Geometry Shape() { return {.num_layers = 2, .num_q_heads = kHeads * kGroup, .num_kv_heads = kHeads, .head_dim = kDim}; }

struct Indexed {
  Indexed(const CellConfig& config, const CellRows& cells) : rows(cells), context(*CellContext::Create(config)) {
    layer = *CellLayer::Create(context.get(), 0);
    EXPECT_TRUE(layer->Reserve(kCells).ok());
    std::vector<CellLayer::Run> runs;
    layer->ListStale(0, (kCells - kSink) / kWindowTokens, 5, &runs);
    for (const CellLayer::Run& run : runs) EXPECT_TRUE(layer->Encode(run, rows));
  }
  std::vector<float> Attend(int head, const float* queries, bool exactly) {
    std::vector<float> out(kGroup * kDim);
    const SeenCells seen = Divide({{0, kCells}}, kSink, kLocal);
    if (exactly) {
      layer->AttendExactly(head, queries, kGroup, seen, rows, out.data());
    } else {
      EXPECT_TRUE(layer->Attend(head, queries, kGroup, seen, rows, 20, out.data()));
    }
    return out;
  }
  CellRows rows;
  std::unique_ptr<CellContext> context;
  std::unique_ptr<CellLayer> layer;
};

// Values of quantised rows are exact in fp32: codes and answers are those of the same rows in fp32, to the bit.
TEST(CellRows, AnswersAreThoseOfTheSameValues) {
  const std::vector<float> k = Gaussian(kCells * kHeads * kDim, 1), v = Gaussian(kCells * kHeads * kDim, 2);
  for (const DType key_type : RowTypesOf(kDim)) {
    for (const DType value_type : RowTypesOf(kDim)) {
      const TypedCells keys(k, key_type), values(v, value_type);
      const TypedCells float_keys(keys.values, DType::kFloat32), float_values(values.values, DType::kFloat32);
      Indexed typed(ConfigFor(Shape()), RowsOf(keys, values));
      Indexed floats(ConfigFor(Shape()), RowsOf(float_keys, float_values));
      for (int head = 0; head < kHeads; ++head) {
        const std::vector<float> queries = Gaussian(kGroup * kDim, 3 + head);
        for (const bool exactly : {false, true}) {
          EXPECT_EQ(typed.Attend(head, queries.data(), exactly), floats.Attend(head, queries.data(), exactly))
              << static_cast<int>(key_type) << " " << static_cast<int>(value_type);
        }
      }
    }
  }
}

// The last byte of a row, and one of its scales.
TEST(CellRows, AQuantisedRowThatChangesIsFoundOut) {
  const std::vector<float> k = Gaussian(kCells * kHeads * kDim, 1), v = Gaussian(kCells * kHeads * kDim, 2);
  for (const DType type : {DType::kQ8, DType::kQ4}) {
    for (const bool of_keys : {true, false}) {
      TypedCells keys(k, type), values(v, type);
      Indexed indexed(ConfigFor(Shape()), RowsOf(keys, values));
      for (const size_t byte : {keys.head() - 1, keys.head() / 2}) {
        EXPECT_EQ(indexed.layer->Verify(1, kCells, indexed.rows), 0);
        TypedCells& changed = of_keys ? keys : values;
        changed.bytes[(700 * kHeads + 1) * keys.head() + byte] ^= 0x10;
        EXPECT_EQ(indexed.layer->Verify(0, kCells, indexed.rows), 0);
        EXPECT_EQ(indexed.layer->Verify(1, kCells, indexed.rows), 1);
        std::vector<CellLayer::Run> runs;
        indexed.layer->ListStale(0, (kCells - kSink) / kWindowTokens, 5, &runs);
        ASSERT_EQ(runs.size(), 1u);
        EXPECT_TRUE(indexed.layer->Encode(runs[0], indexed.rows));
      }
    }
  }
}

// The mean square of the difference from exact attention, as a share of exact attention's.
double ErrorOf(Indexed* indexed, const std::vector<std::vector<float>>& queries) {
  double difference = 0, size = 0;
  for (const std::vector<float>& all : queries) {
    for (int head = 0; head < kHeads; ++head) {
      const float* of_head = all.data() + head * kGroup * kDim;
      const std::vector<float> got = indexed->Attend(head, of_head, false), want = indexed->Attend(head, of_head, true);
      for (size_t i = 0; i < got.size(); ++i) {
        difference += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
      }
    }
  }
  return difference / size;
}

// llama.cpp multiplies keys and queries by a Hadamard matrix. A profile is of those before: told of it, codes are as
// good as without, and bad where they are not told.
TEST(CellRows, AProfileServesRowsThatAreTurned) {
  Geometry geometry = Shape();
  const testing::MadeUpModel model(geometry);
  geometry.rope = *ParseRope(testing::MadeUpModel::kRopeJson, kDim, Rope::Style::kHalfSplit, 1);
  CellConfig config = ConfigFor(geometry);
  config.codec.name = "balanced";
  config.codec.profile = model.Measure();
  config.search.candidate_fraction = .01, config.search.rescore_k = 20;  // codes alone choose
  const std::vector<float> keys = model.Keys(0, kCells);
  std::vector<std::vector<float>> queries;
  for (int q = 0; q < 12; ++q) queries.push_back(model.Query(kCells + q, q));
  const TypedCells values(Gaussian(keys.size(), 2), DType::kFloat16), plain(keys, DType::kFloat32);
  Indexed straight(config, RowsOf(plain, values));
  const double wanted = ErrorOf(&straight, queries);
  for (const int rotation : {32, 64}) {
    const std::vector<float> no_signs(rotation, 1 / std::sqrt(static_cast<float>(rotation)));
    const auto turn = [&](std::vector<float> rows) {
      host::Rotate(rows.data(), static_cast<int>(rows.size()) / rotation, rotation, no_signs.data());
      return rows;
    };
    const TypedCells turned(turn(keys), DType::kFloat32);
    std::vector<std::vector<float>> turned_queries;
    for (const auto& one : queries) turned_queries.push_back(turn(one));
    Indexed untold(config, RowsOf(turned, values));
    config.rotation = rotation;
    Indexed told(config, RowsOf(turned, values));
    config.rotation = 0;
    EXPECT_NEAR(ErrorOf(&told, turned_queries) / wanted, 1, .05) << rotation;
    EXPECT_GT(ErrorOf(&untold, turned_queries) / wanted, 1.1) << rotation;
  }
  config.rotation = 48;
  EXPECT_NE(CellContext::Create(config).status().message().find("rotation"), std::string::npos);
}

}  // namespace
}  // namespace seine::cell_rows
