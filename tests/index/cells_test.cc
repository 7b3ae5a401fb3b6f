// An index over an engine's cells: the bits of the index that stores its rows, through every way in which cells change.
#include "index/cells/cell_layer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "absl/strings/match.h"
#include "tests/index/test_util.h"

namespace seine::cells {  // of its own: the names are short
namespace {

constexpr int kHeads = 2, kGroup = 3, kDim = 64;

// An engine's cache: [cells][KV heads][head_dim] of keys and of values, in fp16.
struct Cache {
  explicit Cache(int64_t cells) : keys(cells * kHeads * kDim), values(keys.size()) {
    for (int64_t i = 0; i < cells; ++i) Write(i);
  }
  void Write(int64_t cell) {
    std::normal_distribution<float> normal;
    for (int i = 0; i < kHeads * kDim; ++i) {
      keys[cell * kHeads * kDim + i] = static_cast<_Float16>(normal(rng));
      values[cell * kHeads * kDim + i] = static_cast<_Float16>(normal(rng));
    }
  }
  CellRows Rows() const {
    const size_t head = kDim * sizeof(_Float16), cell = kHeads * head;
    return {reinterpret_cast<const uint8_t*>(keys.data()),
            reinterpret_cast<const uint8_t*>(values.data()),
            cell,
            head,
            cell,
            head};
  }

  std::mt19937 rng{7};
  std::vector<_Float16> keys, values;
};

CellConfig Config(int64_t capacity = 4096) {
  CellConfig config;
  config.geometry = {.num_layers = 2,
                     .num_q_heads = kHeads * kGroup,
                     .num_kv_heads = kHeads,
                     .head_dim = kDim,
                     .dtype = DType::kFloat16};
  config.search.top_k = 40;
  config.search.refine = 120;
  config.search.softmax_scale = 1 / std::sqrt(static_cast<float>(kDim));
  config.sink = 16;
  config.local = 32;
  config.capacity = capacity;
  return config;
}

std::vector<float> RandomQueries(int seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> queries(kGroup * kDim);
  for (float& x : queries) x = normal(rng);
  return queries;
}

// Everything that is stale encoded, each head in runs of `most` windows.
bool EncodeAll(CellLayer* layer, const Cache& cache, int64_t end, int64_t most = 5) {
  if (!layer->Reserve(end).ok()) return false;
  std::vector<CellLayer::Run> runs;
  layer->ListStale(end, most, &runs);
  bool finite = true;
  for (const CellLayer::Run& run : runs) finite = layer->Encode(run, cache.Rows()) && finite;
  return finite;
}

std::vector<float> Attend(CellLayer* layer, const Cache& cache, int head, int64_t cells,
                          const std::vector<float>& queries, bool* unchanged = nullptr) {
  std::vector<float> out(queries.size());
  const bool done = layer->Attend(head, queries.data(), kGroup, cells, cache.Rows(), out.data());
  if (unchanged != nullptr) {
    *unchanged = done;
  } else {
    EXPECT_TRUE(done);
  }
  return out;
}

TEST(CellLayer, AnswersAsTheIndexThatStoresTheSameRows) {
  const int64_t cells = 3000;
  const Cache cache(cells);
  const CellConfig config = Config();
  auto context = *CellContext::Create(config);
  auto layer = *CellLayer::Create(context.get(), 1);
  ASSERT_TRUE(EncodeAll(layer.get(), cache, cells));

  IndexConfig stored;
  stored.name = "stored";
  stored.geometry = config.geometry;
  stored.zones = {.sink = 16, .local = 32, .update_buffer = 64, .dense_threshold = 0};
  stored.search = config.search;
  stored.search.scope = Scope::kPerQHead;
  stored.kv_store = KvStore::kKeysValues;
  auto backend = MakeCpuBackend(1);
  auto index = testing::MakeIndex(stored, backend.get());
  const SequenceHandle seq = *index->CreateSequence("s");
  const size_t bytes = cells * kHeads * kDim * sizeof(_Float16);
  ASSERT_TRUE(index->Append(seq, 1, 0, {cache.keys.data(), cells, bytes}, {cache.values.data(), cells, bytes}).ok());

  for (int seed = 0; seed < 8; ++seed) {
    std::vector<float> queries;
    for (int h = 0; h < kHeads; ++h) {
      const std::vector<float> of_head = RandomQueries(kHeads * seed + h);
      queries.insert(queries.end(), of_head.begin(), of_head.end());
    }
    const auto want = *index->Attend({{seq, 1, queries.data()}}, stored.search, {});
    ASSERT_TRUE(want[0].status.ok());
    for (int h = 0; h < kHeads; ++h) {
      const std::vector<float> got = Attend(layer.get(), cache, h, cells, RandomQueries(kHeads * seed + h));
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_NEAR(got[i], want[0].output[h * kGroup * kDim + i], 1e-6);  // rows of a chunk are added up together
    }
  }
}

TEST(CellLayer, AllChosenIsExactAttention) {
  const Cache cache(700);
  CellConfig config = Config();
  config.search.top_k = config.search.refine = 1000;
  auto context = *CellContext::Create(config);
  auto layer = *CellLayer::Create(context.get(), 0);
  ASSERT_TRUE(EncodeAll(layer.get(), cache, 700));
  for (const int64_t cells : {1, 47, 48, 111, 112, 300, 700}) {
    const std::vector<float> queries = RandomQueries(3), got = Attend(layer.get(), cache, 1, cells, queries);
    for (int q = 0; q < kGroup; ++q) {
      std::vector<double> want(kDim);
      double sum = 0;
      for (int64_t i = 0; i < cells; ++i) {
        double dot = 0;
        const _Float16* key = &cache.keys[(i * kHeads + 1) * kDim];
        for (int j = 0; j < kDim; ++j) dot += static_cast<double>(key[j]) * queries[q * kDim + j];
        const double weight = std::exp(dot * config.search.softmax_scale);
        sum += weight;
        for (int j = 0; j < kDim; ++j) want[j] += weight * cache.values[(i * kHeads + 1) * kDim + j];
      }
      for (int j = 0; j < kDim; ++j) EXPECT_NEAR(got[q * kDim + j], want[j] / sum, 2e-5) << cells;
    }
  }
}

// Cells written in any order, and told: the same as a layer that has seen the last state alone.
TEST(CellLayer, CellsThatAreUsedAnewAreEncodedAnew) {
  Cache cache(2500);
  auto context = *CellContext::Create(Config());
  auto layer = *CellLayer::Create(context.get(), 0);
  std::mt19937 rng(5);
  int64_t cells = 900;
  for (int step = 0; step < 60; ++step) {
    cells = std::min<int64_t>(2500, cells + rng() % 60);
    const auto begin = static_cast<int64_t>(rng() % cells), end = std::min<int64_t>(cells, begin + 1 + rng() % 130);
    for (int64_t i = begin; i < end; ++i) cache.Write(i);
    layer->Wrote(begin, end);
    const int64_t zone = 16 + context->Windows(cells) * kWindowTokens;
    ASSERT_TRUE(EncodeAll(layer.get(), cache, zone, 1 + step % 7));
    auto fresh = *CellLayer::Create(context.get(), 0);
    ASSERT_TRUE(EncodeAll(fresh.get(), cache, zone));
    for (int h = 0; h < kHeads; ++h) {
      const std::vector<float> queries = RandomQueries(step);
      EXPECT_EQ(Attend(layer.get(), cache, h, cells, queries), Attend(fresh.get(), cache, h, cells, queries)) << step;
    }
  }
}

TEST(CellLayer, WhatIsWrittenUnseenIsFoundOut) {
  Cache cache(2000);
  auto context = *CellContext::Create(Config());
  auto layer = *CellLayer::Create(context.get(), 0);
  ASSERT_TRUE(EncodeAll(layer.get(), cache, 2000));
  EXPECT_EQ(layer->Verify(0, 2000, cache.Rows()), 0);
  const std::vector<float> queries = RandomQueries(1);
  for (int64_t i = 16; i < 2000; ++i) cache.Write(i);
  bool unchanged = true;
  Attend(layer.get(), cache, 0, 2000, queries, &unchanged);
  EXPECT_FALSE(unchanged);
  const int64_t windows = (2000 - 16) / kWindowTokens;
  EXPECT_EQ(layer->Verify(0, 2000, cache.Rows()), windows);
  EXPECT_EQ(layer->Verify(0, 2000, cache.Rows()), 0);  // they are stale already
  ASSERT_TRUE(EncodeAll(layer.get(), cache, 2000));
  Attend(layer.get(), cache, 0, 2000, queries, &unchanged);
  EXPECT_TRUE(unchanged);

  // One row that no query chooses is found in the turn of its window.
  cache.Write(1000);
  int64_t answers = 0;
  for (unchanged = true; unchanged && answers <= windows; ++answers) {
    Attend(layer.get(), cache, 0, 2000, queries, &unchanged);
  }
  EXPECT_FALSE(unchanged);
  EXPECT_EQ(layer->Verify(0, 2000, cache.Rows()), 1);
}

TEST(CellLayer, RowsThatAreNotFiniteStayStale) {
  Cache cache(500);
  cache.keys[100 * kHeads * kDim] = static_cast<_Float16>(INFINITY);
  auto context = *CellContext::Create(Config());
  auto layer = *CellLayer::Create(context.get(), 0);
  EXPECT_FALSE(EncodeAll(layer.get(), cache, 500, 1));
  std::vector<CellLayer::Run> runs;
  layer->ListStale(500, 1, &runs);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].window, (100 - 16) / kWindowTokens);
}

TEST(CellLayer, WrongSettingsAreNamed) {
  const auto error = [](void (*change)(CellConfig*)) {
    CellConfig config = Config();
    change(&config);
    return std::string(CellContext::Create(config).status().message());
  };
  EXPECT_TRUE(absl::StrContains(error([](CellConfig* c) { c->capacity = 0; }), "capacity"));
  EXPECT_TRUE(absl::StrContains(error([](CellConfig* c) { c->sink = -1; }), "sink"));
  EXPECT_TRUE(absl::StrContains(error([](CellConfig* c) { c->geometry.dtype = DType::kFloat32; }), "dtype"));
  EXPECT_TRUE(absl::StrContains(error([](CellConfig* c) { c->geometry.head_dim = 72; }), "head_dim"));
  EXPECT_TRUE(absl::StrContains(error([](CellConfig* c) { c->search.top_k = 0; }), "top_k"));
  EXPECT_TRUE(absl::StrContains(error([](CellConfig* c) { c->codec.name = "zip"; }), "codec"));
}

}  // namespace
}  // namespace seine::cells
