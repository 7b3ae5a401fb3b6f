// The index above a device: the same answers as on the CPU through any history, codes touched by the device alone, and
// every call of the device failing once in a sequence's life.
#include <gtest/gtest.h>

#include <random>

#include "index/subspace/calibrate.h"
#include "kernels/backends/cuda/cuda_backend.h"
#include "tests/index/subspace/low_rank_simulation.h"
#include "tests/index/synthetic_model.h"
#include "tests/index/test_util.h"
#include "tests/kernels/cuda/host_device.h"

namespace seine {
namespace {

using cuda::Device;
using cuda::HostDevice;
using cuda::HostDeviceControl;
using testing::AppendNames;
using testing::LowRankConfig;
using testing::MadeUpModel;
using testing::MakeIndex;
using testing::Names;
using testing::Probe;
using testing::SameAnswers;
using testing::SmallConfig;
using testing::WaitForBackground;

using absl::StatusCode;

struct Variant {
  const char* name;
  KvStore store;
  Centre centre;
  Coarse coarse;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

class DeviceHistoryTest : public ::testing::TestWithParam<Variant> {
 protected:
  IndexConfig Config() const {
    IndexConfig config = SmallConfig(GetParam().store);
    config.geometry.num_layers = 1;
    config.codec.centre = GetParam().centre;
    config.search.coarse = GetParam().coarse;
    return config;
  }
};

// Appends of any size, forks and truncations, alike on both.
TEST_P(DeviceHistoryTest, EqualsTheCpu) {
  const auto cpu = MakeCpuBackend(1), device = cuda::BackendOn(std::make_shared<HostDeviceControl>());
  auto a = MakeIndex(Config(), cpu.get()), b = MakeIndex(Config(), device.get());
  std::mt19937 random(7);
  int64_t n = 0;
  ASSERT_TRUE(a->CreateSequence("s").ok() && b->CreateSequence("s").ok());
  for (int step = 0; step < 24; ++step) {
    SCOPED_TRACE(step);
    const SequenceHandle s = {"s", 0};
    const int choice = static_cast<int>(random() % 6);
    if (choice < 3 || n < 300) {
      const int64_t more = 1 + static_cast<int64_t>(random() % 400);
      const uint64_t first = 1 + static_cast<uint64_t>(n) + 100000 * static_cast<uint64_t>(step);
      ASSERT_TRUE(AppendNames(a.get(), s, 0, n, Names(first, more)).ok());
      ASSERT_TRUE(AppendNames(b.get(), s, 0, n, Names(first, more)).ok());
      n += more;
    } else if (choice < 5) {
      const int64_t cut = n - static_cast<int64_t>(random() % 200);
      ASSERT_EQ(a->Truncate(s, cut).code(), b->Truncate(s, cut).code());
      n = a->GetSequence(s)->layer_tokens[0];
    } else {  // the fork lives on and the original goes
      ASSERT_TRUE(a->Fork(s, "f", -1).ok() && b->Fork(s, "f", -1).ok());
      ASSERT_TRUE(AppendNames(a.get(), s, 0, n, Names(77, 200)).ok() &&
                  AppendNames(b.get(), s, 0, n, Names(77, 200)).ok());
      ASSERT_TRUE(SameAnswers(Probe(*a, {"f", 0}, 0), Probe(*b, {"f", 0}, 0)));
      ASSERT_TRUE(a->DeleteSequence({"f", 0}).ok() && b->DeleteSequence({"f", 0}).ok());
      n += 200;
    }
    ASSERT_EQ(b->GetSequence(s)->layer_tokens[0], n);
    ASSERT_TRUE(SameAnswers(Probe(*a, s, 0), Probe(*b, s, 0)));
  }
  EXPECT_GT(n, 1000);
}

INSTANTIATE_TEST_SUITE_P(Variants, DeviceHistoryTest,
                         ::testing::Values(Variant{"Window", KvStore::kKeys, Centre::kWindow, Coarse::kSignIp},
                                           Variant{"Collision", KvStore::kKeysValues, Centre::kNone,
                                                   Coarse::kCollision},
                                           Variant{"NoKeys", KvStore::kNone, Centre::kWindow, Coarse::kSignIp},
                                           Variant{"Global", KvStore::kKeys, Centre::kGlobal, Coarse::kCollision}),
                         [](const auto& variant) { return std::string(variant.param.name); });

TEST(DeviceIndexTest, TheBalancedCodeEqualsTheCpu) {
  IndexConfig config = SmallConfig();
  config.geometry.num_layers = 1;
  const MadeUpModel model(config.geometry);
  config.geometry = model.geometry();
  config.codec.name = "balanced";
  config.codec.profile = model.Measure();
  config.codec.horizon = 512;  // outgrown: layers are encoded anew, on the device too
  const std::string rows = model.KeyRows(0, 1500);
  std::vector<ItemAnswer> answers[2];
  for (const bool device : {false, true}) {
    const auto backend = device ? cuda::BackendOn(std::make_shared<HostDeviceControl>()) : MakeCpuBackend(1);
    auto index = MakeIndex(config, backend.get());
    const SequenceHandle s = *index->CreateSequence("s");
    const int64_t token_bytes = static_cast<int64_t>(rows.size()) / 1500;
    const auto outgrown = [&] {
      const HeadInfo info = *index->DescribeHead(s, 0, 0);
      return info.position + info.horizon < info.num_tokens;
    };
    for (int64_t n = 0; n < 1500; n += 300) {
      const TensorView view = {rows.data() + n * token_bytes, 300, static_cast<size_t>(300 * token_bytes)};
      ASSERT_TRUE(index->Append(s, 0, n, view, {}).ok());
      // Where a layer stands when it is encoded anew decides its codes, so both backends are waited for at every
      // append.
      WaitForBackground(*index);
      ASSERT_FALSE(outgrown());
    }
    answers[device] = Probe(*index, s, 0);
  }
  EXPECT_TRUE(SameAnswers(answers[0], answers[1]));
}

// The same numbers of candidates on either backend, so the same answers; a code that predicts nothing is refused.
TEST(DeviceIndexTest, ARecallTargetIsFollowed) {
  IndexConfig config = SmallConfig();
  const MadeUpModel model(config.geometry);
  config.geometry = model.geometry();
  config.codec.name = "balanced";
  config.codec.profile = model.Measure();
  config.search.recall_target = .97;
  const std::string rows = model.KeyRows(0, 3000);
  std::vector<ItemAnswer> answers[2];
  int64_t candidates[2] = {0, 0};
  for (const bool device : {false, true}) {
    const auto backend = device ? cuda::BackendOn(std::make_shared<HostDeviceControl>()) : MakeCpuBackend(1);
    auto index = MakeIndex(config, backend.get());
    const SequenceHandle s = *index->CreateSequence("s");
    ASSERT_TRUE(index->Append(s, 0, 0, {rows.data(), 3000, rows.size()}, {}).ok());
    answers[device] = Probe(*index, s, 0);
    for (const ItemAnswer& a : answers[device]) candidates[device] += a.stats.candidates;
  }
  EXPECT_TRUE(SameAnswers(answers[0], answers[1]));
  EXPECT_EQ(candidates[0], candidates[1]);
  EXPECT_GT(candidates[0], 0);

  const auto device = cuda::BackendOn(std::make_shared<HostDeviceControl>());
  const auto index = MakeIndex(SmallConfig(), device.get());  // rsq
  SearchParams params = index->config().search;
  params.recall_target = .9;
  EXPECT_EQ(index->Retrieve({}, params).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index->Retrieve({}, params).status().message().substr(0, 15), "recall_target: ");
}

// With the share of candidates left to the index, as it is by default: short zones are read whole, and few candidates
// all scored, on both.
TEST(DeviceIndexTest, DefaultSearchesEqualTheCpus) {
  for (const KvStore store : {KvStore::kKeys, KvStore::kKeysValues, KvStore::kNone}) {
    IndexConfig config = SmallConfig(store);
    config.geometry.num_layers = 1;
    config.search = SearchParams();
    const auto cpu = MakeCpuBackend(1), device = cuda::BackendOn(std::make_shared<HostDeviceControl>());
    auto a = MakeIndex(config, cpu.get()), b = MakeIndex(config, device.get());
    const SequenceHandle s = *a->CreateSequence("s");
    ASSERT_TRUE(b->CreateSequence("s").ok());
    int64_t n = 0, whole = 0, searched = 0;
    for (const int64_t more : {300, 700, 900, 1100, 1800, 3200}) {
      ASSERT_TRUE(AppendNames(a.get(), s, 0, n, Names(1 + n, more)).ok());
      ASSERT_TRUE(AppendNames(b.get(), s, 0, n, Names(1 + n, more)).ok());
      n += more;
      for (const Scope scope : {Scope::kPerQHead, Scope::kPerKvHead}) {
        for (const float mass_p : {0.0f, .6f}) {
          for (const int top_k : {20, 100}) {
            SearchParams params;
            params.scope = scope;
            params.mass_p = mass_p;
            params.top_k = top_k;
            params.rescore_k = 2 * top_k;
            const std::vector<float> queries = testing::Queries(config.geometry, static_cast<uint32_t>(n));
            const auto want = *a->Retrieve({{s, 0, queries.data()}}, params);
            const auto got = *b->Retrieve({{s, 0, queries.data()}}, params);
            SCOPED_TRACE(::testing::Message() << n << " " << static_cast<int>(scope) << " " << mass_p << " " << top_k);
            EXPECT_EQ(got[0].path, want[0].path);
            EXPECT_EQ(got[0].masses, want[0].masses);
            EXPECT_EQ(got[0].stats.refined, want[0].stats.refined);
            EXPECT_TRUE(SameAnswers(got, want));
            (want[0].path == SearchMode::kExact ? whole : searched) += 1;
          }
        }
      }
    }
    EXPECT_EQ(whole > 0, store != KvStore::kNone);
    EXPECT_GT(searched, 0);
  }
}

TEST(DeviceIndexTest, BudgetsOfDeviceAndHostAreApart) {
  auto control = std::make_shared<HostDeviceControl>();
  const auto backend = cuda::BackendOn(control);
  IndexConfig config = SmallConfig();
  config.device_memory_limit_bytes = 60000;
  auto index = MakeIndex(config, backend.get());
  const SequenceHandle s = *index->CreateSequence("s");
  absl::Status status;
  int64_t n = 0;
  while (status.ok() && n < 20000) {
    status = AppendNames(index.get(), s, 0, n, Names(n + 1, 64)).status();
    if (status.ok()) n += 64;
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("device memory limit of the index"), absl::string_view::npos) << status;
  EXPECT_LE(index->stats().code_bytes, 60000);
  EXPECT_GT(index->stats().store_bytes, 60000);
  EXPECT_EQ(index->GetSequence(s)->layer_tokens[0], n);
}

// The device's own memory runs out, where no limit was set.
TEST(DeviceIndexTest, AFullDeviceRefusesAndGoesOn) {
  auto control = std::make_shared<HostDeviceControl>();
  control->device_limit = 1 << 20;
  const auto backend = cuda::BackendOn(control);
  auto index = MakeIndex(SmallConfig(), backend.get());
  const SequenceHandle s = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), s, 0, 0, Names(1, 500)).ok());
  const auto before = Probe(*index, s, 0);
  EXPECT_EQ(AppendNames(index.get(), s, 1, 0, Names(1, 30000)).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(index->GetSequence(s)->layer_tokens[1], 0);
  EXPECT_TRUE(SameAnswers(Probe(*index, s, 0), before));
  EXPECT_TRUE(AppendNames(index.get(), s, 1, 0, Names(1, 500)).ok());
}

// Scores that the device computes, and what they make a layer keep.
TEST(DeviceIndexTest, EvictsAsTheCpuDoes) {
  const auto cpu = MakeCpuBackend(1), device = cuda::BackendOn(std::make_shared<HostDeviceControl>());
  for (const char* name :
       {"keydiff", "manifoldkv", "windowed_manifoldkv", "hybrid", "normalized", "qfilters", "knorm"}) {
    SCOPED_TRACE(name);
    EvictParams params;
    params.scorer.name = name;
    if (params.scorer.name == "windowed_manifoldkv") params.scorer.window = 100;
    params.budget.tokens = 200;
    params.keep.sinks = 3;
    ScorerInputs given;
    const std::vector<float> filters = testing::Queries(SmallConfig().geometry, 5);  // more than are needed
    given.filters = filters.data();
    LayerScores scores[2];
    EvictAnswer answers[2];
    std::vector<ItemAnswer> probes[2];
    for (const int on_device : {0, 1}) {
      auto index = MakeIndex(SmallConfig(), on_device ? device.get() : cpu.get());
      const SequenceHandle s = *index->CreateSequence("s");
      ASSERT_TRUE(AppendNames(index.get(), s, 0, 0, Names(1, 1100)).ok());
      scores[on_device] = *index->Score(s, 0, params.scorer, given);
      answers[on_device] = *index->Evict(s, 0, params, given);
      probes[on_device] = Probe(*index, s, 0);
    }
    EXPECT_EQ(scores[0].scores, scores[1].scores);
    EXPECT_EQ(answers[0].kept, answers[1].kept);
    EXPECT_EQ(answers[1].tokens_evicted, 2 * 900);
    EXPECT_TRUE(SameAnswers(probes[0], probes[1]));
  }
}

struct LowRankVariant {
  const char* name;
  double full_rank;
  KeyFrame frame;
};
void PrintTo(const LowRankVariant& variant, std::ostream* out) { *out << variant.name; }

// An index on the CPU and one on a device, which are told the same.
class DeviceSubspaceTest : public ::testing::TestWithParam<LowRankVariant> {
 protected:
  void SetUp() override {
    const IndexConfig config = LowRankConfig(GetParam().full_rank, GetParam().frame);
    for (Backend* backend : {cpu_.get(), device_.get()}) {
      indexes_.push_back(MakeIndex(config, backend));
      ASSERT_TRUE(indexes_.back()->CreateSequence("s").ok());
    }
  }
  template <typename Fn>
  void OnBoth(Fn fn) {
    for (const auto& index : indexes_) {
      const absl::Status status = fn(index.get());
      ASSERT_TRUE(status.ok()) << status;
    }
  }
  void Append(uint64_t first, int64_t count) {
    const int64_t n = indexes_[0]->GetSequence(s_)->layer_tokens[0];
    OnBoth([&](Index* index) { return AppendNames(index, s_, 0, n, Names(first, count)).status(); });
  }

  // What is searched, rebuilt and learnt.
  void ExpectSame(const SequenceHandle& s) {
    ASSERT_TRUE(SameAnswers(Probe(*indexes_[0], s, 0), Probe(*indexes_[1], s, 0)));
    const std::vector<float> queries = testing::Queries(indexes_[0]->config().geometry, 3);
    std::vector<ItemAnswer> joint[2];
    LayerBases bases[2];
    std::string rows[2];
    for (const int i : {0, 1}) {
      for (const Method method : {Method::kIndex, Method::kExact}) {
        SearchParams params;  // a KV head's set, whose dense tokens' mass counts
        params.top_k = 30;
        params.method = method;
        auto found = indexes_[i]->Retrieve({{s, 0, queries.data()}}, params);
        ASSERT_TRUE(found.ok()) << found.status();
        joint[i].push_back((*found)[0]);
      }
      for (int h = 0; h < 2; ++h) {
        std::vector<int32_t> positions;
        std::string keys, values;
        const int64_t n = indexes_[i]->GetSequence(s)->layer_tokens[0];
        ASSERT_TRUE(indexes_[i]->Reconstruct(s, 0, h, 0, n, &positions, &keys, &values).ok());
        rows[i] += keys + values;
      }
      bases[i] = *indexes_[i]->GetBases(s, 0);
    }
    EXPECT_TRUE(SameAnswers(joint[0], joint[1]));
    EXPECT_EQ(rows[0], rows[1]);
    for (int h = 0; h < 2; ++h) {
      EXPECT_EQ(bases[0].keys[h].u, bases[1].keys[h].u);
      EXPECT_EQ(bases[0].values[h].u, bases[1].values[h].u);
    }
  }

  const SequenceHandle s_ = {"s", 0};
  std::unique_ptr<Backend> cpu_ = MakeCpuBackend(1);
  std::unique_ptr<Backend> device_ = cuda::BackendOn(std::make_shared<HostDeviceControl>());
  std::vector<std::unique_ptr<Index>> indexes_;
};

TEST_P(DeviceSubspaceTest, EqualsTheCpuThroughAppendsEvictionsForksAndCuts) {
  for (const int64_t count : {10, 150, 1, 300}) Append(1 + static_cast<uint64_t>(count), count);
  ExpectSame(s_);
  OnBoth([&](Index* index) { return index->Fork(s_, "f", -1).status(); });
  EvictParams params;
  params.scorer.name = "keydiff";
  params.budget.tokens = 230;
  for (const bool again : {false, true}) {
    std::vector<std::vector<std::vector<int32_t>>> kept;
    OnBoth([&](Index* index) {
      auto answer = index->Evict(s_, 0, params, {});
      if (answer.ok()) kept.push_back(answer->kept);
      return answer.status();
    });
    ASSERT_EQ(kept[0], kept[1]);
    ExpectSame(s_);
    Append(again ? 3000 : 2000, 150);
    ExpectSame(s_);
  }
  for (const int64_t position : {700, 330, 130}) {
    OnBoth([&](Index* index) { return index->Truncate(s_, position); });
    ExpectSame(s_);
    Append(5000 + static_cast<uint64_t>(position), 90);
    ExpectSame(s_);
  }
  ExpectSame({"f", 0});
}

// Replaced bases make a new version, which goes to the device too; what all of it takes there is counted and given
// back.
TEST_P(DeviceSubspaceTest, BasesLieOnTheDevice) {
  Append(1, 400);
  OnBoth([&](Index* index) {
    LayerBases bases = *index->GetBases(s_, 0);
    std::swap(bases.keys[0], bases.keys[1]);
    return index->SetBases(s_, 0, bases);
  });
  Append(401, 200);
  ExpectSame(s_);
  const auto codes = [&](int i) { return indexes_[i]->stats().code_bytes; };
  const int64_t versions = indexes_[1]->DescribeHead(s_, 0, 0)->subspace->versions;
  EXPECT_GE(versions, 2);
  EXPECT_EQ(codes(1) - codes(0), 2 * versions * 64 * (24 + 33) * 2);
  EXPECT_EQ(indexes_[1]->GetSequence(s_)->code_bytes, codes(1));
  ASSERT_TRUE(indexes_[1]->DeleteSequence(s_).ok());
  EXPECT_EQ(codes(1), 0);
}

INSTANTIATE_TEST_SUITE_P(Settings, DeviceSubspaceTest,
                         ::testing::Values(LowRankVariant{"Plain", 0, KeyFrame::kPostRope},
                                           LowRankVariant{"Hybrid", .1, KeyFrame::kPostRope},
                                           LowRankVariant{"PreRope", .1, KeyFrame::kPreRope}),
                         [](const auto& variant) { return std::string(variant.param.name); });

// Everything that a sequence goes through, with the call of number `fail` failing; statuses by step.
class Life {
 public:
  Life(Index* index, std::vector<ItemAnswer>* answers) : index_(*index), answers_(*answers) {}

  // The first status that is not OK, with what was held before the step that met it.
  absl::Status Run() {
    const SequenceHandle s = *index_.CreateSequence("s");
    tokens = retained = 0;
    if (auto r = AppendNames(&index_, s, 0, 0, Names(1, 300)); !r.ok()) return r.status();
    tokens = retained = 300;
    if (auto r = index_.Fork(s, "f", 200); !r.ok()) return r.status();
    if (auto r = AppendNames(&index_, s, 0, 300, Names(301, 400)); !r.ok()) return r.status();
    tokens = retained = 700;
    if (absl::Status r = index_.Truncate(s, 610); !r.ok()) return r;
    tokens = retained = 610;
    EvictParams evict;
    evict.scorer.name = "knorm";
    evict.budget.tokens = 450;
    evict.keep.positions = {5, 299};
    if (auto r = index_.Evict(s, 0, evict, {}); !r.ok()) return r.status();
    retained = 450;
    if (auto r = AppendNames(&index_, s, 0, 610, Names(611, 200)); !r.ok()) return r.status();  // to a strip a head
    tokens = 810;
    retained = 650;
    const std::vector<float> queries = testing::Queries(index_.config().geometry, 3);
    auto found = index_.Retrieve({{s, 0, queries.data()}}, index_.config().search);
    if (!found.ok()) return found.status();
    answers_ = *std::move(found);
    return absl::OkStatus();
  }
  int64_t tokens = 0;    // of "s"
  int64_t retained = 0;  // of them by each head

 private:
  Index& index_;
  std::vector<ItemAnswer>& answers_;
};

// `again`: of how many calls that are refused one is followed by a second life of the same index; `step`: of how many
// calls one is tried.
void ExpectNothingLostAtAnyCall(const IndexConfig& config, Device::Error error, int again = 1, int step = 1) {
  std::vector<ItemAnswer> expected;
  {
    const auto cpu = MakeCpuBackend(1);
    auto index = MakeIndex(config, cpu.get());
    ASSERT_TRUE(Life(index.get(), &expected).Run().ok());
  }
  int refused = 0, lost = 0;
  for (int fail = 5;; fail += step) {  // before that the backend is made
    SCOPED_TRACE(::testing::Message() << "error " << error << " at call " << fail);
    auto control = std::make_shared<HostDeviceControl>();
    control->error = error;
    const auto backend = cuda::BackendOn(control);
    ASSERT_NE(backend, nullptr);
    control->fail_call = fail;
    auto index = MakeIndex(config, backend.get());
    std::vector<ItemAnswer> answers;
    Life life(index.get(), &answers);
    const absl::Status status = life.Run();
    if (control->calls <= fail) {
      ASSERT_TRUE(status.ok()) << status;
      break;
    }
    if (status.ok()) {
      EXPECT_TRUE(SameAnswers(answers, expected));
    } else if (backend->loss().empty()) {
      ++refused;
      ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
      ASSERT_EQ(index->GetSequence({"s", 0})->layer_tokens[0], life.tokens);
      ASSERT_EQ(index->DescribeHead({"s", 0}, 0, 1)->num_retained, life.retained);
      index->DeleteSequence({"f", 0}).IgnoreError();
      ASSERT_TRUE(index->DeleteSequence({"s", 0}).ok());
      ASSERT_EQ(index->stats().store_bytes, 0);
      ASSERT_EQ(index->stats().code_bytes, 0);
      if (refused % again != 0) continue;
      ASSERT_TRUE(Life(index.get(), &answers).Run().ok());  // and all goes well the next time
      EXPECT_TRUE(SameAnswers(answers, expected));
    } else {
      ++lost;
      ASSERT_EQ(status.code(), StatusCode::kUnavailable) << status;
      EXPECT_NE(status.message().find("planted error"), absl::string_view::npos) << status;
      if (life.tokens == 0) continue;
      std::string keys, values;  // page-locked memory outlives the device
      EXPECT_TRUE(index->Gather({"s", 0}, 0, 1, {5, 299}, &keys, &values).ok());
      EXPECT_EQ(keys.substr(0, 128), testing::TokenRow(config.geometry, 6).substr(128, 128));
    }
  }
  EXPECT_GE(error == Device::kOutOfMemory ? refused : lost, 12);
}

constexpr Device::Error kPlanted = 719;  // any other than memory that runs out

IndexConfig CollisionConfig() {
  IndexConfig config = SmallConfig(KvStore::kKeysValues);
  config.geometry.num_layers = 1;
  config.search.coarse = Coarse::kCollision;
  config.codec.centre = Centre::kNone;
  return config;
}

// A life takes ten times as long under AddressSanitizer, with subspaces most of all: of how many calls one is tried.
#ifdef __SANITIZE_ADDRESS__
constexpr int kStep = 3, kLowRankStep = 5;
#else
constexpr int kStep = 1, kLowRankStep = 1;
#endif

TEST(DeviceIndexTest, EveryCallOfTheDeviceFailsOnce) {
  ExpectNothingLostAtAnyCall(CollisionConfig(), kPlanted, 1, kStep);
}

TEST(DeviceIndexTest, EveryCallOfTheDeviceLacksMemoryOnce) {
  ExpectNothingLostAtAnyCall(CollisionConfig(), Device::kOutOfMemory, 1, kStep);
}

// Page-locking is a slow call of the driver: many blocks take few.
TEST(DeviceIndexTest, LowRankBlocksArePageLockedTogether) {
  IndexConfig config = LowRankConfig(.1, KeyFrame::kPostRope);
  config.subspace->key_rank = config.subspace->value_rank = 8;
  config.subspace->oja.error_threshold = 1;  // nothing is learnt, which takes long here
  auto control = std::make_shared<HostDeviceControl>();
  const auto backend = cuda::BackendOn(control);
  auto index = MakeIndex(config, backend.get());
  const SequenceHandle s = *index->CreateSequence("s");
  int64_t n = 0;
  const auto append = [&](int times) {
    for (int i = 0; i < times; ++i, n += 64) ASSERT_TRUE(AppendNames(index.get(), s, 0, n, Names(n + 1, 64)).ok());
  };
  append(20);
  const int before = control->page_locked;
  const int64_t held = index->stats().store_bytes;
  append(60);  // each makes blocks of both heads
  EXPECT_GT(index->stats().store_bytes, 2 * held);
  EXPECT_LT(control->page_locked - before, 60);  // of 120 blocks, and of what else grows
  ASSERT_TRUE(index->DeleteSequence(s).ok());
}

IndexConfig LowRankKeysConfig() {
  IndexConfig config = LowRankConfig(.1, KeyFrame::kPreRope);
  config.subspace->key_rank = config.subspace->value_rank = 8;
  config.subspace->oja.error_threshold = 1;  // nothing is learnt, which takes long here, but all calls are made
  return config;
}

TEST(DeviceIndexTest, EveryCallOfTheDeviceFailsOnceWithSubspaces) {
  ExpectNothingLostAtAnyCall(LowRankKeysConfig(), kPlanted, 1, kLowRankStep);
}

TEST(DeviceIndexTest, EveryCallOfTheDeviceLacksMemoryOnceWithSubspaces) {
  ExpectNothingLostAtAnyCall(LowRankKeysConfig(), Device::kOutOfMemory, 5, kLowRankStep);
}

}  // namespace
}  // namespace seine
