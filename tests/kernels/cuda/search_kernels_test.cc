// Every kernel of a device's search, run on the host block by block and lane by lane in shuffled orders, against the
// CPU backend: the same sets, the same scores bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/codecs/kinds/balanced.h"
#include "kernels/codecs/kinds/rsq.h"
#include "kernels/ops/search/search_cpu.h"
#include "kernels/ops/search/search_plan.h"
#include "kernels/ops/search/search_steps.h"
#include "tests/kernels/cuda/host_launcher.h"
#include "tests/kernels/test_util.h"

namespace seine::cuda {
namespace {

// A SearchTask as the kernels take it; on the host the views are the task's own.
struct HostItem {
  explicit HostItem(const SearchTask& task) : tables(task.codec->Tables()) {
    item.layout = tables.layout;
    item.kind = tables.kind;
    item.segments = task.segments;
    item.segment_keys = task.segment_keys;
    item.num_keys = task.num_keys;
    item.usual_share = task.codec->DefaultCandidateFraction(task.num_keys);
    item.zone_begin = task.zone_begin;
    if (task.shared_centre != nullptr) {
      item.shared_centre = task.shared_centre->values.data();
      item.shared_scale = task.shared_centre->scale;
    }
    item.collision_counts = task.collision_counts;
    item.counted_keys = task.counted_keys;
    item.chunks = task.keys.chunks;
    item.chunk_tokens = task.keys.chunk_tokens;
    item.key_dtype = task.keys.dtype;
    for (const DenseRun& run : task.dense) {
      dense.push_back({static_cast<const uint8_t*>(run.keys.data), run.keys.stride_bytes, run.count, run.keys.dtype});
      item.dense_tokens += run.count;
    }
    item.num_dense = static_cast<int32_t>(dense.size());
    item.queries = task.queries;
    item.group = task.group;
    item.refine_all = task.refine_all;
  }
  SearchItem Item() const {
    SearchItem out = item;
    out.codec = &tables;
    out.dense = dense.data();
    return out;
  }
  CodecTables tables;
  SearchItem item;
  std::vector<DenseRows> dense;
};

std::vector<SearchOutput> RunKernels(const std::vector<SearchTask>& tasks, const SearchParams& params, uint64_t seed) {
  std::vector<HostItem> hosts(tasks.begin(), tasks.end());
  std::vector<SearchItem> items;
  for (const HostItem& h : hosts) items.push_back(h.Item());
  SearchPlan plan(params, items);
  // Garbage that differs with the seed: nothing may depend on it.
  std::vector<uint8_t> work(plan.workspace_bytes() + 256, static_cast<uint8_t>(seed * 37 + 11));
  std::vector<uint8_t> answers(plan.answer_bytes() + 256, static_cast<uint8_t>(seed * 53 + 7));
  const auto aligned = [](std::vector<uint8_t>& v) {
    return v.data() + (256 - reinterpret_cast<uintptr_t>(v.data()) % 256);
  };
  plan.Place(aligned(work), aligned(answers));
  RunOnHost(SearchLaunch{&plan, {params, plan.items().data(), plan.queries().data(), plan.sets().data()}}, seed);
  std::vector<SearchOutput> outputs(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) plan.Read(static_cast<int>(i), &outputs[i]);
  return outputs;
}

// Bits: 0 and -0 differ.
std::vector<std::vector<uint32_t>> Bits(const std::vector<std::vector<float>>& rows) {
  std::vector<std::vector<uint32_t>> out;
  for (const auto& row : rows) {
    out.emplace_back();
    for (const float x : row) out.back().push_back(FloatBits(x));
  }
  return out;
}

void ExpectSameAsCpu(const std::vector<SearchTask>& tasks, const SearchParams& params, int seeds = 2) {
  std::vector<SearchOutput> want(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) cpu::SearchOne(tasks[i], params, &want[i]);
  for (int seed = 1; seed <= seeds; ++seed) {
    const std::vector<SearchOutput> got = RunKernels(tasks, params, seed);
    for (size_t i = 0; i < tasks.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " task " << i);
      ASSERT_EQ(got[i].candidates, want[i].candidates);
      ASSERT_EQ(got[i].positions, want[i].positions);
      ASSERT_EQ(Bits(got[i].scores), Bits(want[i].scores));
      ASSERT_EQ(Bits({got[i].masses}), Bits({want[i].masses}));
      ASSERT_EQ(got[i].capped, want[i].capped);
      ASSERT_EQ(got[i].stats.refined, want[i].stats.refined);
      ASSERT_EQ(got[i].stats.candidates, want[i].stats.candidates);
    }
  }
}

SearchParams Params(int top_k, double beta) {
  SearchParams p;
  p.top_k = top_k;
  p.candidate_fraction = beta;
  p.rescore_k = 2 * top_k;
  p.with_candidates = true;
  return p;
}

std::shared_ptr<const Codec> Rsq(int dim, Centre centre = Centre::kWindow, int centre_window = 64) {
  RsqOptions options;
  options.head_dim = dim;
  options.centre = centre;
  options.centre_window = centre_window;
  return MakeRsqCodec(options);
}

// A balanced codec with widths of every kind: coarse 0 to 4, total up to 6, more on the leading coordinates.
std::shared_ptr<const Codec> Balanced(int dim, uint64_t seed) {
  BalancedOptions o;
  o.head_dim = dim;
  o.key_map = Gaussian(static_cast<size_t>(dim) * dim, seed, 1 / std::sqrt(static_cast<float>(dim)));
  o.query_map = Gaussian(static_cast<size_t>(dim) * dim, seed + 1, 1 / std::sqrt(static_cast<float>(dim)));
  for (int i = 0; i < dim; ++i) {
    o.lambda.push_back(4.0f / static_cast<float>(1 + i));
    o.coarse_bits.push_back(static_cast<uint8_t>(i < 4 ? 4 : i < 8 ? 3 : i < 16 ? 2 : i < dim / 2 ? 1 : 0));
    o.total_bits.push_back(static_cast<uint8_t>(i < 4          ? 6
                                                : i < 8        ? 5
                                                : i < 16       ? 3
                                                : i < dim - 12 ? 2
                                                : i < dim - 6  ? 1
                                                               : 0));
  }
  int coarse = 0;
  for (const int bits : o.coarse_bits) coarse += bits;
  for (int i = dim / 2; coarse % 4 != 0; ++i, ++coarse) o.coarse_bits[i] = 1;
  return MakeBalancedCodec(o);
}

TEST(SearchKernels, EveryHeadDimAndCodec) {
  for (const int dim : kTestHeadDims) {
    const auto wide = [&] { return MakeBalancedCodec(RandomBalanced(dim, 5, true)); };
    for (const auto& codec : {Rsq(dim), dim < 256 ? Balanced(dim, 5) : wide()}) {
      const int d = codec->layout().head_dim;
      const Zone zone(Keys(4480, d, 3), d, codec);
      const std::vector<float> queries = Gaussian(4 * d, 9);
      SCOPED_TRACE(testing::Message() << "dim " << d << " coarse " << codec->layout().coarse_bytes);
      ExpectSameAsCpu({zone.Task(queries)}, Params(50, .06));
    }
  }
}

// Every way to choose a set, with and without dense runs, stored keys and a mass to reach.
TEST(SearchKernels, EveryScopeReductionAndStore) {
  const int dim = 64;
  const Zone zone(Keys(2048, dim, 3), dim, Balanced(dim, 6));
  const std::vector<float> queries = Gaussian(5 * dim, 9, .5f), sink = Keys(33, dim, 14), local = Keys(100, dim, 15);
  for (const Scope scope : {Scope::kPerKvHead, Scope::kPerQHead}) {
    for (const GqaReduce reduce : {GqaReduce::kSoftmaxSum, GqaReduce::kMax, GqaReduce::kMean}) {
      for (const Method method : {Method::kIndex, Method::kExact}) {
        for (const bool stored : {true, false}) {
          for (const float mass_p : {0.0f, .7f}) {
            if (method == Method::kExact && !stored) continue;
            SearchTask task = zone.Task(queries);
            if (!stored) task.keys.chunks = nullptr;
            task.dense = {{{sink.data(), dim * sizeof(float), DType::kFloat32}, 33},
                          {{local.data(), dim * sizeof(float), DType::kFloat32}, 100}};
            SearchParams params = Params(40, .2);
            params.scope = scope;
            params.gqa_reduce = reduce;
            params.method = method;
            params.mass_p = mass_p;
            params.mass_floor = 3;
            params.with_candidates = method == Method::kIndex;
            SCOPED_TRACE(testing::Message() << static_cast<int>(scope) << static_cast<int>(reduce)
                                            << static_cast<int>(method) << stored << mass_p);
            ExpectSameAsCpu({task}, params);
          }
        }
      }
    }
  }
}

TEST(SearchKernels, CollisionAndEveryCentre) {
  for (const int dim : {64, 80, 256, 512}) {
    for (const Centre centre : {Centre::kNone, Centre::kGlobal, Centre::kWindow}) {
      for (const Coarse coarse : {Coarse::kSignIp, Coarse::kCollision}) {
        const Zone zone(Keys(3072, dim, 3), dim, Rsq(dim, centre, 128));
        const std::vector<float> queries = Gaussian(3 * dim, 9);
        SearchParams params = Params(50, .1);
        params.coarse = coarse;
        SCOPED_TRACE(testing::Message() << dim << " " << static_cast<int>(centre) << static_cast<int>(coarse));
        ExpectSameAsCpu({zone.Task(queries)}, params);
        if (coarse == Coarse::kSignIp) continue;
        params.candidate_fraction = .5;  // more than collide, of which most only in one subvector
        for (const double rho : {.02, .001}) {
          params.collision_fraction = rho;
          ExpectSameAsCpu({zone.Task(queries)}, params, 1);
          for (const int searched : {64, 1536, 2944}) {  // of the keys that are counted
            SearchTask task = zone.Task(queries);
            task.num_keys = searched;
            ExpectSameAsCpu({task}, params, 1);
          }
        }
      }
    }
  }
}

TEST(SearchKernels, GroupsOfEverySize) {
  const int dim = 80;
  const Zone zone(Keys(1024, dim, 3), dim, Rsq(dim));
  for (const int group : {1, 2, 3, 4, 5, 8, 9, 16, 32}) {
    SCOPED_TRACE(group);
    const std::vector<float> queries = Gaussian(group * dim, 9);
    ExpectSameAsCpu({zone.Task(queries)}, Params(20, .3), group < 8 ? 8 : 1);  // some blocks begin with +inf everywhere
  }
}

// Tasks of many lengths and groups, every fifth without keys, one of an empty zone: as the CPU answers, in every scope.
class RaggedBatch {
 public:
  void Add(const std::shared_ptr<const Codec>& codec, int group) {
    const int i = static_cast<int>(tasks_.size()), dim = codec->layout().head_dim;
    zones_.push_back(std::make_unique<Zone>(Keys(64 + 64 * static_cast<int>(rng_() % 60), dim, i), dim, codec));
    queries_.push_back(Gaussian(static_cast<size_t>(group) * dim, 50 + i));
    tasks_.push_back(zones_.back()->Task(queries_.back()));
    if (i % 5 == 2) tasks_.back().keys.chunks = nullptr;
    if (i == 17) tasks_.back().num_keys = 0;
  }
  SearchTask& last() { return tasks_.back(); }
  int Group(int most) { return 1 + static_cast<int>(rng_() % most); }  // drawn
  void ExpectSame(SearchParams params) const {
    params.with_candidates = false;  // the CPU leaves the empty zone's list untouched
    for (const Scope scope : {Scope::kPerKvHead, Scope::kPerQHead}) {
      params.scope = scope;
      ExpectSameAsCpu(tasks_, params);
    }
  }

 private:
  std::mt19937_64 rng_{4};
  std::vector<std::unique_ptr<Zone>> zones_;
  std::vector<std::vector<float>> queries_;
  std::vector<SearchTask> tasks_;
};

TEST(SearchKernels, ARaggedBatch) {
  const std::shared_ptr<const Codec> codecs[] = {Rsq(64), Balanced(128, 5), Rsq(128, Centre::kGlobal), Balanced(80, 6)};
  std::vector<std::vector<float>> dense(40);
  RaggedBatch batch;
  for (int i = 0; i < 40; ++i) {
    const auto& codec = codecs[i % 4];
    const int dim = codec->layout().head_dim;
    batch.Add(codec, batch.Group(6));
    dense[i] = Keys(20, dim, 90 + i);
    if (i % 3 == 1) batch.last().dense = {{{dense[i].data(), dim * sizeof(float), DType::kFloat32}, 20}};
  }
  batch.ExpectSame(Params(32, .1));
}

// Zones that the CPU samples too: many blocks, thresholds, lists in any order.
TEST(SearchKernels, LongZones) {
  const int dim = 64, n = 40960;
  const Zone zone(Keys(n, dim, 17), dim, Balanced(dim, 8), 2048);
  const std::vector<float> queries = Gaussian(2 * dim, 18);
  for (const double beta : {0.0, .01, .05, .4, 1.0}) {
    SCOPED_TRACE(beta);
    SearchParams params = Params(50, beta);
    params.mass_p = .5f;
    ExpectSameAsCpu({zone.Task(queries)}, params, 1);
  }
}

// The good keys stand in the sampled windows alone: too few pass the threshold, and the zone is searched again.
TEST(SearchKernels, ASampleThatMisleadsIsRepairedAndCounted) {
  const int n = 65536, dim = 64;
  std::vector<float> keys = Gaussian(static_cast<size_t>(n) * dim, 23, .01f);
  const std::vector<float> query = Gaussian(dim, 24);
  for (int w = 4; w < n / 64; w += 8) {
    for (int i = 0; i < 64; ++i) {
      for (int j = 0; j < dim; ++j) keys[(static_cast<size_t>(w) * 64 + i) * dim + j] += query[j];
    }
  }
  const Zone zone(keys, dim, Rsq(dim, Centre::kNone), 2048);
  const SearchParams params = Params(20, .5);
  ExpectSameAsCpu({zone.Task(query)}, params, 1);
  EXPECT_EQ(RunKernels({zone.Task(query)}, params, 3)[0].stats.rescans, 1);
}

// All scores equal: every key passes the threshold, more than there is room for, and ties go to the lowest positions.
TEST(SearchKernels, EqualKeysAreTakenFromTheLowestPosition) {
  const int dim = 128;
  const std::vector<float> one = Gaussian(dim, 1);
  std::vector<float> keys;
  for (int i = 0; i < 8192; ++i) keys.insert(keys.end(), one.begin(), one.end());
  const Zone zone(keys, dim, Rsq(dim));
  std::vector<float> queries = one;
  queries.insert(queries.end(), dim, 0.0f);  // a zero query scores every key 0
  for (const Scope scope : {Scope::kPerKvHead, Scope::kPerQHead}) {
    SearchParams params = Params(10, .05);
    params.scope = scope;
    ExpectSameAsCpu({zone.Task(queries)}, params);
    params.mass_p = .4f;
    params.mass_floor = 7;
    ExpectSameAsCpu({zone.Task(queries)}, params, 1);
    EXPECT_GT(RunKernels({zone.Task(queries)}, params, 3)[0].stats.rescans, 0);
  }
}

// Stored keys of 16 bits in chunks, a zone that begins in the middle of one.
TEST(SearchKernels, StoresOfEveryType) {
  const int dim = 96, n = 1024, begin = 40, chunk_tokens = 100;
  const Zone zone(Keys(n, dim, 3), dim, Rsq(dim));
  const std::vector<float> queries = Gaussian(2 * dim, 9), all = Keys(begin + n, dim, 30);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    std::vector<uint8_t> rows(all.size() * SizeOf(dtype));
    for (size_t i = 0; i < all.size(); ++i) {
      const uint16_t half = FloatToBf16(all[i]);  // as a half it is some other number, which does here
      if (dtype == DType::kFloat32) memcpy(&rows[i * 4], &all[i], 4);
      if (dtype != DType::kFloat32) memcpy(&rows[i * 2], &half, 2);
    }
    if (dtype == DType::kFloat16) {
      for (size_t i = 1; i < rows.size(); i += 2) rows[i] &= 0xBF;  // finite
    }
    std::vector<const uint8_t*> chunks;
    for (int p = 0; p < begin + n; p += chunk_tokens) chunks.push_back(&rows[p * dim * SizeOf(dtype)]);
    SearchTask task = zone.Task(queries);
    task.zone_begin = begin;
    task.keys = {chunks.data(), chunk_tokens, dim, dtype};
    for (const Method method : {Method::kIndex, Method::kExact}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(dtype) << static_cast<int>(method));
      SearchParams params = Params(30, .2);
      params.method = method;
      params.with_candidates = false;
      ExpectSameAsCpu({task}, params);
    }
  }
}

SearchParams ByTarget(int top_k, double target) {
  SearchParams p = Params(top_k, .05);
  p.recall_target = target;
  return p;
}

// Queries each with candidates of their own number: the least where the target is low, up to half the zone.
TEST(SearchKernels, ARecallTargetCutsEachQueryAsTheCpuDoes) {
  const int dim = 64;
  std::vector<float> queries = Gaussian(5 * dim, 9);
  std::fill(queries.begin() + 2 * dim, queries.begin() + 3 * dim, 0.0f);  // nothing is predicted of a zero query
  for (const int n : {64, 128, 704, 8192, 8256, 20480, 40960}) {
    const Zone zone(Keys(n, dim, 3), dim, Balanced(dim, 6), 2048);
    for (const double target : {.3, .9, .999}) {
      for (const Scope scope : {Scope::kPerKvHead, Scope::kPerQHead}) {
        if (n > 8256 && scope == Scope::kPerQHead) continue;
        SearchParams params = ByTarget(n > 1000 ? 20 : 100, target);
        params.scope = scope;
        params.mass_p = scope == Scope::kPerQHead ? .6f : 0.0f;
        SCOPED_TRACE(testing::Message() << n << " " << target << " " << static_cast<int>(scope));
        ExpectSameAsCpu({zone.Task(queries)}, params, n > 1000 ? 1 : 3);
      }
    }
  }
}

// rsq predicts no noise (an index refuses a target there): the cut is the last of the best.
TEST(SearchKernels, ARecallTargetOfACodeThatPredictsNothing) {
  const int dim = 80;
  const Zone zone(Keys(4096, dim, 3), dim, Rsq(dim));
  const std::vector<float> queries = Gaussian(3 * dim, 9);
  for (const Coarse coarse : {Coarse::kSignIp, Coarse::kCollision}) {
    SearchParams params = ByTarget(100, .9);
    params.coarse = coarse;
    ExpectSameAsCpu({zone.Task(queries)}, params);
  }
}

TEST(SearchKernels, ARecallTargetOverARaggedBatch) {
  RaggedBatch batch;
  for (int i = 0; i < 24; ++i) batch.Add(Balanced(i % 2 == 0 ? 64 : 80, 5), batch.Group(5));
  batch.ExpectSame(ByTarget(16, .95));
}

// Equal scores at the cut, and a top_k whose best are all the same.
TEST(SearchKernels, ARecallTargetAmongTies) {
  const int dim = 64;
  const std::vector<float> kinds = Keys(5, dim, 1), queries = Gaussian(2 * dim, 4);
  for (const int n : {4096, 36864}) {
    std::vector<float> keys;
    for (int i = 0; i < n; ++i) {
      const auto one = kinds.begin() + static_cast<std::ptrdiff_t>(i / 64 % 5) * dim;
      keys.insert(keys.end(), one, one + dim);
    }
    const Zone zone(keys, dim, Balanced(dim, 6), 2048);
    for (const double target : {.2, .99}) ExpectSameAsCpu({zone.Task(queries)}, ByTarget(10, target), 1);
  }
}

// What the target asks for lies where no window is sampled, below the threshold: the zone is searched again.
TEST(SearchKernels, ARecallTargetBelowTheSampledThresholdIsFoundAndCounted) {
  const int n = 65536, dim = 64;
  const std::vector<float> query = Gaussian(dim, 24);
  std::vector<float> keys = Gaussian(static_cast<size_t>(n) * dim, 23, .2f);
  for (int w = 4; w < n / 64; w += 8) {  // the sampled windows: their best are far above all others
    for (int j = 0; j < dim; ++j) keys[static_cast<size_t>(w) * 64 * dim + j] += 8 * query[j];
  }
  const Zone zone(keys, dim, Balanced(dim, 6), 2048);
  const SearchParams params = ByTarget(600, .9);
  ExpectSameAsCpu({zone.Task(query)}, params, 1);
  EXPECT_EQ(RunKernels({zone.Task(query)}, params, 3)[0].stats.rescans, 1);
  SearchOutput cpu;
  cpu::SearchOne(zone.Task(query), params, &cpu);
  EXPECT_GT(cpu.stats.rescans, 0);
  EXPECT_GT(cpu.candidates[0].size(), 2400u);  // the least: 4 top_k
}

TEST(SearchKernels, EveryCandidateIsScoredWhereTheTaskSaysSo) {
  const int dim = 64;
  const Zone zone(Keys(8192, dim, 3), dim, Rsq(dim));
  const std::vector<float> queries = Gaussian(3 * dim, 9);
  SearchTask task = zone.Task(queries);
  task.refine_all = true;
  SearchParams params = Params(50, 0);
  params.scope = Scope::kPerQHead;
  ExpectSameAsCpu({task, zone.Task(queries)}, params);
  EXPECT_EQ(RunKernels({task}, params, 3)[0].stats.refined, 3 * 410);  // ceil(.05 n) candidates, not refine
}

// WorkspaceAtMost beside the plan's own count: never less, and not much more where it is more than a little.
TEST(SearchPlan, WorkspaceIsKnownWithoutAPlan) {
  const CodeLayout layout = Rsq(128)->layout();
  for (const int64_t n : {64, 4096, 41024, 1 << 20}) {
    for (const int group : {1, 3, 4, 32}) {
      for (const int dense : {0, 640}) {
        for (int which = 0; which < 32; ++which) {
          SearchParams params;
          params.top_k = which & 1 ? 100 : 7;
          params.recall_target = which & 2 ? .9 : 0;
          params.method = which & 4 ? Method::kExact : Method::kIndex;
          params.scope = which & 8 ? Scope::kPerQHead : Scope::kPerKvHead;
          params.mass_p = which & 16 ? .5f : 0.0f;
          params.coarse = which & 1 ? Coarse::kSignIp : Coarse::kCollision;
          static const uint8_t* const kStored = nullptr;
          SearchItem item;
          item.layout = layout;
          item.segment_keys = 2048;
          item.num_keys = n;
          item.chunks = &kStored;
          item.group = group;
          item.dense_tokens = dense;
          item.refine_all = which == 8;
          const size_t bytes = SearchPlan(params, {item}).workspace_bytes();
          const size_t at_most = WorkspaceAtMost(params, layout, item.usual_share, n, group, dense, item.refine_all);
          SCOPED_TRACE(testing::Message() << n << " " << group << " " << dense << " " << which);
          EXPECT_GE(at_most, bytes);
          EXPECT_LE(at_most, bytes * 3 / 2 + 65536 * (group + 3));
        }
      }
    }
  }
}

// A layer of a decode step by default settings: five launches, and enough blocks to select on all of a device.
TEST(SearchPlan, ALayerIsFiveLaunches) {
  static const uint8_t* const kStored = nullptr;
  SearchItem item;
  item.layout = Balanced(128, 5)->layout();
  item.kind = CodecKind::kBalanced;
  item.segment_keys = 2048;
  item.chunks = &kStored;
  item.group = 4;
  item.dense_tokens = 640;
  for (const int64_t n : {int64_t{131072}, int64_t{1} << 20}) {
    item.num_keys = n;
    const SearchPlan plan(SearchParams(), std::vector<SearchItem>(8, item));
    int launches = 0, most_selecting = 0;
    ForEachKernel(SearchLaunch{&plan, {}}, [&](auto body, BlockIndex grid, auto) {
      launches += grid.x > 0 && grid.y > 0;
      if (std::is_same_v<decltype(body), ChooseBody>) most_selecting = grid.x * grid.y;
    });
    EXPECT_EQ(launches, 5);
    EXPECT_GE(most_selecting, 64);
    EXPECT_LE(plan.items()[0].wanted / plan.items()[0].splits, 4096);
  }
}

TEST(SearchKernels, TopKBeyondTheZoneGivesAllOfIt) {
  const int dim = 64;
  const Zone zone(Keys(128, dim, 2), dim, Rsq(dim));
  const std::vector<float> query = Gaussian(dim, 3);
  ExpectSameAsCpu({zone.Task(query)}, Params(500, .05));
}

}  // namespace
}  // namespace seine::cuda
