// The paper's tiers, recomputed plainly over the keys that an item searches and no others: through any history, and
// wherever the item says that its tokens become dense. On the CPU and on a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/index/direct_attention.h"
#include "tests/kernels/cuda/host_device.h"
#include "tests/kernels/test_util.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::At;
using testing::MakeIndex;
using testing::Queries;
using testing::SmallConfig;
using testing::TokenRow;

constexpr int kDim = 64;

IndexConfig Config(Centre centre) {
  IndexConfig config = SmallConfig();
  config.geometry = {.num_layers = 1, .num_q_heads = 6, .num_kv_heads = 2, .head_dim = kDim, .dtype = DType::kFloat16};
  config.codec.centre = centre;
  config.search.coarse = Coarse::kCollision;
  return config;
}

SearchParams Params(double beta, double rho) {
  SearchParams params;
  params.top_k = 20;
  params.candidate_fraction = beta;
  params.collision_fraction = rho;
  params.coarse = Coarse::kCollision;
  params.scope = Scope::kPerQHead;
  params.with_candidates = true;
  return params;
}

// Sign patterns [keys][kDim / 8] of a zone.
std::vector<std::vector<uint8_t>> Patterns(const Zone& zone, int keys) {
  std::vector<std::vector<uint8_t>> rows(keys, std::vector<uint8_t>(kDim / 8));
  for (int i = 0; i < keys; ++i) {
    const ConstCodePlanes& planes = zone.segments[i / zone.segment_keys];
    CopyCoarseRow(CoarseRowAt(planes.coarse, kDim / 8, i % zone.segment_keys), kDim / 8, rows[i].data());
  }
  return rows;
}

// Candidates of a query among keys of these patterns, as ParisKV's section 4.2 has them: per subvector the centroids in
// the order of their products, a tier ending where its share of rho n keys rank before. Ties: the lowest key.
std::vector<int32_t> Candidates(const std::vector<std::vector<uint8_t>>& patterns, const std::vector<float>& rotated,
                                const SearchParams& params) {
  const auto n = static_cast<int64_t>(patterns.size());
  std::vector<int> scores(n, 0);
  for (int b = 0; b < kDim / 8; ++b) {
    std::vector<std::pair<float, int>> order;
    for (int id = 0; id < 256; ++id) {
      float product = 0;
      for (int j = 0; j < 8; ++j) product += (id >> j & 1 ? 1.0f : -1.0f) * rotated[b * 8 + j];
      order.emplace_back(-product, id);
    }
    std::sort(order.begin(), order.end());
    int64_t before = 0;
    for (const auto& [product, id] : order) {
      int weight = 0;
      for (const auto& [cut, of] : {std::pair{1.0, 1}, {.75, 2}, {.5, 3}, {.3, 4}, {.15, 5}, {.05, 6}}) {
        if (static_cast<double>(before) < std::ceil(static_cast<double>(n) * params.collision_fraction * cut))
          weight = of;
      }
      for (int64_t i = 0; i < n; ++i) {
        if (patterns[i][b] != id) continue;
        scores[i] += weight;
        ++before;
      }
    }
  }
  const auto wanted = std::min<int64_t>(
      n, std::max<int64_t>({4 * params.top_k, 256, std::llround(std::ceil(params.candidate_fraction * n))}));
  std::vector<int32_t> keys(n);
  std::iota(keys.begin(), keys.end(), 0);
  std::stable_sort(keys.begin(), keys.end(), [&](int a, int b) { return scores[a] > scores[b]; });
  keys.resize(wanted);
  if (wanted < n) std::erase_if(keys, [&](int key) { return scores[key] == 0; });
  std::sort(keys.begin(), keys.end());
  return keys;
}

class CollisionZoneTest : public ::testing::TestWithParam<bool> {
 protected:
  CollisionZoneTest()
      : backend_(GetParam() ? cuda::BackendOn(std::make_shared<cuda::HostDeviceControl>()) : MakeCpuBackend(1)) {}

  void Start(Centre centre) {
    index_ = MakeIndex(Config(centre), backend_.get());
    ASSERT_TRUE(index_->CreateSequence("s").ok());
    names_.clear();
  }
  void Append(int64_t count, uint64_t first_name) {
    const std::vector<uint64_t> names = testing::Names(first_name, count);
    ASSERT_TRUE(AppendNames(index_.get(), {"s"}, 0, static_cast<int64_t>(names_.size()), names).ok());
    names_.insert(names_.end(), names.begin(), names.end());
  }
  void Truncate(int64_t to) {
    ASSERT_TRUE(index_->Truncate({"s"}, to).ok());
    names_.resize(to);
  }

  // Rows of a head at positions, as they are stored.
  std::vector<float> Keys(int head, const std::vector<int32_t>& positions) const {
    std::vector<float> keys;
    for (const int32_t p : positions) {
      const std::string row = TokenRow(index_->config().geometry, names_[p]);
      for (int i = 0; i < kDim; ++i) {
        keys.push_back(static_cast<float>(At(row, DType::kFloat16, head * kDim + i)));
      }
    }
    return keys;
  }

  // Candidates of every query head of sequence `id` are those of the keys before `dense_from`.
  void ExpectTiers(const std::string& id, int64_t dense_from, const SearchParams& params) {
    SCOPED_TRACE(::testing::Message() << id << " dense from " << dense_from << " rho " << params.collision_fraction);
    const IndexConfig& config = index_->config();
    const std::vector<float> queries = Queries(config.geometry, 31);
    SearchParams all = params;
    all.method = Method::kExact;
    all.top_k = 1 << 16;
    all.with_candidates = false;
    const auto zones = *index_->Retrieve({{{id}, 0, queries.data()}}, all);
    const auto got = *index_->Retrieve({{{id}, 0, queries.data(), dense_from}}, params);
    ASSERT_TRUE(got[0].status.ok()) << got[0].status;
    for (int q = 0; q < config.geometry.num_q_heads; ++q) {
      std::vector<int32_t> zone = zones[0].positions[q];
      const std::vector<float> held = Keys(q / config.geometry.group(), zone);
      if (dense_from >= 0) std::erase_if(zone, [&](int32_t p) { return p >= dense_from; });
      zone.resize(zone.size() / 64 * 64);
      if (zone.empty()) continue;
      RsqOptions options;
      options.head_dim = kDim;
      options.seed = config.codec.seed;
      options.centre = config.codec.centre;
      const Zone coded(held, kDim, options, 2048);
      PreparedQuery prepared;
      coded.codec->PrepareQuery(queries.data() + static_cast<int64_t>(q) * kDim, &prepared);
      std::vector<int32_t> want;
      for (const int32_t key :
           Candidates(Patterns(coded, static_cast<int>(zone.size())), prepared.transformed, params)) {
        want.push_back(zone[key]);
      }
      EXPECT_EQ(got[0].candidates[q], want) << q;
    }
  }
  void ExpectTiersFromAnywhere(const std::string& id) {
    const auto n = static_cast<int64_t>(names_.size());
    for (const int64_t from : {int64_t{-1}, n, n - 100, n - 300, n / 2, n / 3, int64_t{500}, int64_t{90}}) {
      ExpectTiers(id, from, Params(.2, .2));
      ExpectTiers(id, from, Params(.05, .05));
    }
  }

  const std::unique_ptr<Backend> backend_;
  std::unique_ptr<Index> index_;
  std::vector<uint64_t> names_;  // of the tokens held
};

TEST_P(CollisionZoneTest, TiersAreOfTheKeysThatAreSearched) {
  for (const Centre centre : {Centre::kNone, Centre::kGlobal}) {
    Start(centre);
    Append(1900, 1);
    ExpectTiersFromAnywhere("s");
    Append(700, 5000);  // into a second segment
    ExpectTiersFromAnywhere("s");
  }
}

TEST_P(CollisionZoneTest, AfterCutsForksAndEvictions) {
  Start(Centre::kNone);
  Append(2300, 1);
  Truncate(1780);  // whole windows below the cut may stay encoded
  ExpectTiersFromAnywhere("s");
  Append(400, 9000);
  ASSERT_TRUE(index_->Fork({"s"}, "f", -1).ok());
  ExpectTiersFromAnywhere("f");
  EvictParams evict;
  evict.scorer.name = "keydiff";
  evict.budget.tokens = 1100;
  ASSERT_TRUE(index_->Evict({"s"}, 0, evict, {}).ok());
  ExpectTiersFromAnywhere("s");
  ExpectTiersFromAnywhere("f");
  Append(300, 20000);
  ExpectTiersFromAnywhere("s");
  Truncate(2000);
  ExpectTiersFromAnywhere("s");
}

INSTANTIATE_TEST_SUITE_P(Backends, CollisionZoneTest, ::testing::Bool(),
                         [](const auto& device) { return device.param ? "Device" : "Cpu"; });

}  // namespace
}  // namespace seine
