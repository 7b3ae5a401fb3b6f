// An index over an engine's cells: the bits of the index that stores its rows, through every way in which cells change.
#include "index/cells/cell_layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/match.h"
#include "tests/index/synthetic_model.h"
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
  config.search.rescore_k = 120;
  config.search.candidate_fraction = .05;  // the codes are searched, however short the zone
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
  layer->ListStale(0, std::max<int64_t>(0, end - 16) / kWindowTokens, most, &runs);
  bool finite = true;
  for (const CellLayer::Run& run : runs) finite = layer->Encode(run, cache.Rows()) && finite;
  return finite;
}

std::vector<float> Attend(CellLayer* layer, const Cache& cache, int head, int64_t cells,
                          const std::vector<float>& queries, bool* unchanged = nullptr, int top_k = 40) {
  std::vector<float> out(queries.size());
  const bool done =
      layer->Attend(head, queries.data(), kGroup, Divide({{0, cells}}, 16, 32), cache.Rows(), top_k, out.data());
  if (unchanged != nullptr) {
    *unchanged = done;
  } else {
    EXPECT_TRUE(done);
  }
  return out;
}

void ExpectTheIndexsAnswers(int64_t cells, double beta, SearchMode path) {
  const Cache cache(cells);
  CellConfig config = Config();
  config.search.candidate_fraction = beta;
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
    EXPECT_EQ(want[0].path, path);
    for (int h = 0; h < kHeads; ++h) {
      const std::vector<float> got = Attend(layer.get(), cache, h, cells, RandomQueries(kHeads * seed + h));
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_NEAR(got[i], want[0].output[h * kGroup * kDim + i], 1e-6);  // rows of a chunk are added up together
    }
  }
}

TEST(CellLayer, AnswersAsTheIndexThatStoresTheSameRows) {
  ExpectTheIndexsAnswers(3000, .05, SearchMode::kIndex);
  ExpectTheIndexsAnswers(1400, 0, SearchMode::kExact);  // a short zone
}

// Returns the attention that a profile's codes lose over 3,000 keys whose coordinates lie in an order, the mean of 16
// queries. The profile's, of halves, lie in the order that it states.
double LostInLayout(Rope::Style style, Rope::Style stated) {
  constexpr int kCells = 3000, kPairs = kDim / 2;
  CellConfig config = Config();
  const testing::MadeUpModel model(config.geometry);  // of halves
  config.geometry.rope = *ParseRope(testing::MadeUpModel::kRopeJson, kDim, style, 1);
  config.codec.name = "balanced";
  Profile profile = *model.Measure();
  profile.rope_style = stated;
  config.codec.profile = std::make_shared<const Profile>(std::move(profile));
  config.search.rescore_k = 40;  // as many as are chosen
  const auto placed = [&](std::vector<float> rows) {
    if (style == Rope::Style::kHalfSplit) return rows;
    const std::vector<float> halves = rows;
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t row = i / kDim * kDim, j = i % kDim;
      rows[row + (j < kPairs ? 2 * j : 2 * (j - kPairs) + 1)] = halves[i];
    }
    return rows;
  };
  Cache cache(kCells);
  const std::vector<float> keys = placed(model.Keys(0, kCells));
  for (size_t i = 0; i < keys.size(); ++i) cache.keys[i] = static_cast<_Float16>(keys[i]);
  auto context = *CellContext::Create(config);
  auto layer = *CellLayer::Create(context.get(), 1);
  EXPECT_TRUE(EncodeAll(layer.get(), cache, kCells));
  double lost = 0;
  for (int seed = 0; seed < 16; ++seed) {
    const std::vector<float> queries = placed(model.Query(kCells - 1, seed));
    lost += layer->Lost(seed % kHeads, queries.data() + seed % kHeads * kGroup * kDim, kGroup,
                        Divide({{0, kCells}}, 16, 32), cache.Rows(), 40);
  }
  return lost / 16;
}

TEST(CellLayer, AProfileOfTheOtherLayoutIsBroughtToTheKeys) {
  constexpr Rope::Style kHalves = Rope::Style::kHalfSplit, kNeighbours = Rope::Style::kInterleaved;
  const double halves = LostInLayout(kHalves, kHalves), neighbours = LostInLayout(kNeighbours, kHalves);
  EXPECT_GT(halves, 0);
  EXPECT_NEAR(neighbours, halves, .1 * halves) << neighbours;                 // sums are rounded in another order
  EXPECT_GT(LostInLayout(kNeighbours, kNeighbours), 1.5 * halves) << halves;  // as if it were in the keys' order
}

// In float64: attention on the exact top k of the zone, less that on what Attend chose, which its log-sum-exp tells.
TEST(CellLayer, LostIsWhatTheExactChoiceHasMoreOfAttention) {
  constexpr int kCells = 5000, kTopK = 25, kHead = 1;
  const Cache cache(kCells);
  CellConfig config = Config(kCells);
  config.search.rescore_k = kTopK;
  config.search.candidate_fraction = .02;
  config.tail = false;
  double all_lost = 0;
  for (const float softcap : {0.0f, 1.5f}) {
    config.softcap = softcap;
    auto context = *CellContext::Create(config);
    auto layer = *CellLayer::Create(context.get(), 0);
    ASSERT_TRUE(EncodeAll(layer.get(), cache, kCells));
    for (const std::vector<CellRun>& runs :
         {std::vector<CellRun>{{0, kCells}}, {{3, 800}, {1001, 1002}, {1040, 2200}, {2601, 4990}}}) {
      const SeenCells seen = layer->Divide(runs);
      const std::vector<float> queries = RandomQueries(11);
      std::vector<float> out(queries.size()), lse(kGroup);
      ASSERT_TRUE(layer->Attend(kHead, queries.data(), kGroup, seen, cache.Rows(), kTopK, out.data(), lse.data()));
      double want = 0;
      for (int q = 0; q < kGroup; ++q) {
        const auto weight = [&](int64_t cell) {
          double dot = 0;
          for (int j = 0; j < kDim; ++j) {
            dot += static_cast<double>(cache.keys[(cell * kHeads + kHead) * kDim + j]) * queries[q * kDim + j];
          }
          dot *= config.search.softmax_scale;
          return std::exp(softcap > 0 ? softcap * std::tanh(dot / softcap) : dot);
        };
        std::vector<double> zone;
        double dense = 0, all = 0;
        for (const WindowRun& run : seen.zone) {
          for (int64_t i = run.begin * 64; i < run.end * 64; ++i) zone.push_back(weight(config.sink + i));
        }
        for (const CellRun& run : seen.dense) {
          for (int64_t i = run.begin; i < run.end; ++i) dense += weight(i);
        }
        std::sort(zone.rbegin(), zone.rend());
        for (const double w : zone) all += w;
        all += dense;
        double best = 0;
        for (int i = 0; i < kTopK; ++i) best += zone[i];
        want += (best + dense - std::exp(static_cast<double>(lse[q]))) / all / kGroup;
      }
      EXPECT_NEAR(layer->Lost(kHead, queries.data(), kGroup, seen, cache.Rows(), kTopK), want, 2e-6);
      all_lost += want;
    }
  }
  EXPECT_GT(all_lost, 1e-3);
}

TEST(CellLayer, AllChosenIsExactAttention) {
  const Cache cache(700);
  CellConfig config = Config();
  config.search.rescore_k = 1000;
  auto context = *CellContext::Create(config);
  auto layer = *CellLayer::Create(context.get(), 0);
  ASSERT_TRUE(EncodeAll(layer.get(), cache, 700));
  for (const int64_t cells : {1, 47, 48, 111, 112, 300, 700}) {
    const std::vector<float> queries = RandomQueries(3),
                             got = Attend(layer.get(), cache, 1, cells, queries, nullptr, 1000);
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

// Cells of other sequences between: the same as a cache that holds the seen cells alone, where windows stay whole.
void ExpectHolesAsWithout(int64_t cells, double beta) {
  SCOPED_TRACE(cells);
  SCOPED_TRACE(beta);
  const Cache cache(cells);
  std::mt19937 rng(static_cast<uint32_t>(cells));
  std::vector<CellRun> runs = {{0, 16 + 10 * 64}};
  for (int64_t begin = 16 + 13 * 64; begin + 500 < cells;) {
    runs.push_back(
        {begin, std::min<int64_t>(cells - 44, begin + static_cast<int64_t>(1 + rng() % (cells / 1000)) * 64)});
    begin = runs.back().end + static_cast<int64_t>(1 + rng() % 9) * 64;
  }
  runs.back().end = cells - 44;
  Cache dense(0);
  for (const CellRun& run : runs) {
    const int64_t row = kHeads * kDim;
    dense.keys.insert(dense.keys.end(), &cache.keys[run.begin * row], &cache.keys[run.end * row]);
    dense.values.insert(dense.values.end(), &cache.values[run.begin * row], &cache.values[run.end * row]);
  }
  const auto packed = static_cast<int64_t>(dense.keys.size()) / (kHeads * kDim);
  CellConfig config = Config(1 << 16);
  config.search.candidate_fraction = beta;
  auto context = *CellContext::Create(config);
  auto layer = *CellLayer::Create(context.get(), 0), without = *CellLayer::Create(context.get(), 0);
  const SeenCells seen = layer->Divide(runs);
  ASSERT_FALSE(seen.one_run());
  ASSERT_TRUE(layer->Reserve(cells).ok());
  std::vector<CellLayer::Run> stale;
  layer->ListStale(seen, 3, &stale);  // what is not seen holds no codes
  for (const CellLayer::Run& run : stale) ASSERT_TRUE(layer->Encode(run, cache.Rows()));
  ASSERT_TRUE(EncodeAll(without.get(), dense, packed));
  for (int seed = 0; seed < 8; ++seed) {
    const std::vector<float> queries = RandomQueries(seed), want = Attend(without.get(), dense, 1, packed, queries);
    std::vector<float> got(queries.size());
    ASSERT_TRUE(layer->Attend(1, queries.data(), kGroup, seen, cache.Rows(), 40, got.data()));
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6);
  }
}

TEST(CellLayer, WithHolesAsWithout) {
  ExpectHolesAsWithout(3000, .05);
  ExpectHolesAsWithout(1400, 0);  // read whole
  ExpectHolesAsWithout(14000, 0);
  ExpectHolesAsWithout(40000, .05);  // scanned against a threshold
}

// Fewer seen than are asked for.
TEST(CellLayer, OneWindowOfManyIsSeen) {
  const Cache cache(3000);
  CellConfig config = Config();
  for (const double beta : {0.0, .05}) {
    config.search.candidate_fraction = beta;
    auto context = *CellContext::Create(config);
    auto layer = *CellLayer::Create(context.get(), 0);
    ASSERT_TRUE(EncodeAll(layer.get(), cache, 3000));
    const SeenCells seen = layer->Divide({{0, 16}, {16 + 20 * 64, 16 + 21 * 64}, {2900, 3000}});
    ASSERT_EQ(seen.num_windows, 1);
    std::vector<float> got(kGroup * kDim), want(got);
    ASSERT_TRUE(layer->Attend(1, RandomQueries(1).data(), kGroup, seen, cache.Rows(), 200, got.data()));
    layer->AttendExactly(1, RandomQueries(1).data(), kGroup, seen, cache.Rows(), want.data());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-5);
  }
}

TEST(CellLayer, HolesAreNotSeen) {
  const int64_t cells = 3000;
  Cache cache(cells);
  auto context = *CellContext::Create(Config());
  auto layer = *CellLayer::Create(context.get(), 0);
  ASSERT_TRUE(EncodeAll(layer.get(), cache, cells));
  const SeenCells seen = layer->Divide({{5, 900}, {1000, 1001}, {1040, 2200}, {2600, 2990}});
  ASSERT_FALSE(seen.one_run());
  const std::vector<float> queries = RandomQueries(2);
  const auto attend = [&](int head, int top_k) {
    std::vector<float> out(queries.size());
    EXPECT_TRUE(layer->Attend(head, queries.data(), kGroup, seen, cache.Rows(), top_k, out.data()));
    return out;
  };
  for (int h = 0; h < kHeads; ++h) {
    std::vector<float> want(queries.size());
    layer->AttendExactly(h, queries.data(), kGroup, seen, cache.Rows(), want.data());
    const std::vector<float> all = attend(h, 3000), few = attend(h, 40);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(all[i], want[i], 2e-5);
    }
    EXPECT_NE(few, all);  // it chose
    // Cells that are not seen do not count.
    Cache other = cache;
    for (const int64_t cell : {0L, 950L, 1001L, 1039L, 2200L, 2599L, 2990L}) other.Write(cell);
    std::vector<float> got(queries.size());
    EXPECT_TRUE(layer->Attend(h, queries.data(), kGroup, seen, other.Rows(), 40, got.data()));
    EXPECT_EQ(got, few);
  }
}

TEST(SeenCells, DividesEachCellOnce) {
  std::mt19937 rng(9);
  for (int round = 0; round < 300; ++round) {
    std::vector<CellRun> runs;
    for (int64_t at = rng() % 100; at < 2000;) {
      const auto length = static_cast<int64_t>(1 + rng() % (round % 2 == 0 ? 900 : 100));
      runs.push_back({at, at + length});
      at += length + 1 + static_cast<int64_t>(rng() % 150);
    }
    const auto sink = static_cast<int64_t>(rng() % 3 * 20), local = static_cast<int64_t>(rng() % 3 * 70);
    const SeenCells seen = Divide(runs, sink, local);
    std::vector<int> want(4000), got(4000);
    for (const CellRun& run : runs) {
      for (int64_t i = run.begin; i < run.end; ++i) ++want[i];
    }
    for (const CellRun& run : seen.dense) {
      for (int64_t i = run.begin; i < run.end; ++i) ++got[i];
    }
    int64_t windows = 0, last = -1;
    for (const WindowRun& run : seen.zone) {
      EXPECT_GT(run.begin, last);  // ascending and apart
      last = run.end;
      for (int64_t w = run.begin; w < run.end; ++w) {
        EXPECT_EQ(seen.window(windows++), w);
        for (int64_t i = 0; i < kWindowTokens; ++i) ++got[sink + w * kWindowTokens + i];
      }
    }
    EXPECT_EQ(got, want);
    EXPECT_EQ(windows, seen.num_windows);
    int64_t before = 0, behind = 0;  // seen cells around the zone
    for (const CellRun& run : seen.dense) {
      const int64_t first = seen.zone.empty() ? 4000 : sink + seen.zone.front().begin * kWindowTokens;
      const int64_t end = seen.zone.empty() ? 0 : sink + (seen.zone.back().end - 1) * kWindowTokens;
      before += std::max<int64_t>(0, std::min(run.end, first) - run.begin);
      behind += std::max<int64_t>(0, run.end - std::max(run.begin, end));
    }
    if (!seen.zone.empty()) {
      EXPECT_GE(before, sink);
      EXPECT_GE(behind, local);
    }
  }
  EXPECT_TRUE(Divide({}, 16, 32).zone.empty());
  const SeenCells prefix = Divide({{0, 3000}}, 16, 32);
  EXPECT_TRUE(prefix.one_run());
  EXPECT_EQ(prefix.end_window(), (3000 - 16 - 32) / kWindowTokens);
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
    const int64_t zone = 16 + Divide({{0, cells}}, 16, 32).end_window() * kWindowTokens;
    ASSERT_TRUE(EncodeAll(layer.get(), cache, zone, 1 + step % 7));
    auto fresh = *CellLayer::Create(context.get(), 0);
    ASSERT_TRUE(EncodeAll(fresh.get(), cache, zone));
    for (int h = 0; h < kHeads; ++h) {
      const std::vector<float> queries = RandomQueries(step);
      EXPECT_EQ(Attend(layer.get(), cache, h, cells, queries), Attend(fresh.get(), cache, h, cells, queries)) << step;
    }
  }
}

// Values alone: the keys and their hashes are the same, the means of the window are not.
TEST(CellLayer, ValuesWrittenUnseenAreFoundByVerify) {
  Cache cache(1000);
  auto context = *CellContext::Create(Config());
  auto layer = *CellLayer::Create(context.get(), 0);
  ASSERT_TRUE(EncodeAll(layer.get(), cache, 1000));
  const int64_t row = kHeads * kDim;
  for (const int64_t cell : {16, 500, 16 + 64 * 9 - 1}) {
    cache.values[cell * row + 5] += static_cast<_Float16>(.5f);
    EXPECT_EQ(layer->Verify(0, 1000, cache.Rows()), 1) << cell;
    EXPECT_EQ(layer->Verify(1, 1000, cache.Rows()), 0) << cell;  // the other head's are as they were
  }
  ASSERT_TRUE(EncodeAll(layer.get(), cache, 1000));
  for (int i = 0; i < kDim; ++i) {  // two rows that change places
    std::swap(cache.values[700 * row + i], cache.values[701 * row + i]);
  }
  EXPECT_EQ(layer->Verify(0, 1000, cache.Rows()), 1);
}

// The newest cells are attended row by row wherever they lie, and no other windows for their sake.
TEST(CellLayer, TheNewestCellsAreLocal) {
  auto context = *CellContext::Create(Config());
  auto layer = *CellLayer::Create(context.get(), 0);
  const auto is_dense = [](const SeenCells& seen, int64_t cell) {
    return std::any_of(seen.dense.begin(), seen.dense.end(),
                       [&](const CellRun& run) { return run.begin <= cell && cell < run.end; });
  };
  for (int64_t cell = 0; cell < 2000; ++cell) {  // a text in a row, as if nothing were known of its order
    layer->Wrote(cell, cell + 1);
    const SeenCells seen = layer->Divide({{0, cell + 1}}), want = Divide({{0, cell + 1}}, 16, 32);
    ASSERT_EQ(seen.zone, want.zone);
  }
  for (int64_t cell = 300; cell < 400; ++cell) {  // a hole that is filled
    layer->Wrote(cell, cell + 1);
    const SeenCells seen = layer->Divide({{0, cell + 1}, {400, 2000}});
    for (int64_t newest = std::max<int64_t>(300, cell - 31); newest <= cell; ++newest)
      EXPECT_TRUE(is_dense(seen, newest));
    EXPECT_LE(seen.end_window(), (2000 - 16) / kWindowTokens);
  }
  const SeenCells seen = layer->Divide({{0, 2000}});
  EXPECT_FALSE(is_dense(seen, 1000));
  EXPECT_FALSE(seen.one_run());
  layer->Placed(16, 2000);  // all of it is loaded: its last cells are the newest again
  EXPECT_EQ(layer->Divide({{0, 2000}}).zone, Divide({{0, 2000}}, 16, 32).zone);
}

TEST(WriteOrder, IsThatOfTheLastWrites) {
  std::mt19937 rng(3);
  WriteOrder order;
  std::vector<int64_t> want;
  for (int i = 0; i < 2000; ++i) {
    const auto begin = static_cast<int64_t>(rng() % 40),
               end = begin + static_cast<int64_t>(rng() % 3 == 0 ? rng() % 9 : 1);
    order.Wrote(begin, end);
    for (int64_t w = begin; w < end; ++w) std::erase(want, w);
    for (int64_t w = begin; w < end; ++w) want.push_back(w);
    ASSERT_EQ(order.windows(), want);
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

  // One row that no query chooses is found in the turn of its piece: an answer compares a quarter of a window.
  cache.Write(1000);
  int64_t answers = 0;
  for (unchanged = true; unchanged && answers <= 4 * windows; ++answers) {
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
  layer->ListStale(0, (500 - 16) / kWindowTokens, 1, &runs);
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
  EXPECT_TRUE(absl::StrContains(error([](CellConfig* c) { c->geometry.head_dim = 72; }), "head_dim"));
  EXPECT_TRUE(absl::StrContains(error([](CellConfig* c) { c->search.top_k = 0; }), "top_k"));
  EXPECT_TRUE(absl::StrContains(error([](CellConfig* c) { c->codec.name = "zip"; }), "codec"));
  // Windows of cells become stale one by one.
  EXPECT_TRUE(absl::StrContains(error([](CellConfig* c) { c->codec.centre_window = 128; }), "codec.centre_window"));
  EXPECT_TRUE(absl::StrContains(error([](CellConfig* c) { c->codec.centre = Centre::kGlobal; }), "codec.centre"));
}

TEST(CellLayer, NoScaleMeansTheUsualOne) {
  const Cache cache(700);
  const std::vector<float> queries = RandomQueries(5);
  std::vector<std::vector<float>> outs;
  for (const float scale : {.125f, 0.0f}) {  // 1 / sqrt(64)
    CellConfig config = Config();
    config.search.softmax_scale = scale;
    auto context = *CellContext::Create(config);
    auto layer = *CellLayer::Create(context.get(), 0);
    ASSERT_TRUE(EncodeAll(layer.get(), cache, 700));
    outs.push_back(Attend(layer.get(), cache, 0, 700, queries));
    outs.push_back(std::vector<float>(queries.size()));
    layer->AttendExactly(0, queries.data(), kGroup, Divide({{0, 700}}, 16, 32), cache.Rows(), outs.back().data());
  }
  EXPECT_EQ(outs[0], outs[2]);
  EXPECT_EQ(outs[1], outs[3]);
}

}  // namespace
}  // namespace seine::cells
