// Every setting wrong once: the error names the field, in its text and as its payload.
#include "index/config/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "profile/field_error.h"
#include "tests/index/test_util.h"

namespace seine {
namespace {

using testing::SmallConfig;

struct ConfigCase {
  std::string field;
  std::function<void(IndexConfig*)> spoil;
};

TEST(ConfigTest, DefaultsAreValid) {
  EXPECT_TRUE(Validate(IndexConfig()).ok()) << Validate(IndexConfig());
  EXPECT_TRUE(Validate(SmallConfig()).ok());
  EXPECT_TRUE(Validate(SearchParams()).ok());
}

TEST(ConfigTest, EveryFieldWrongOnce) {
  const int big = std::numeric_limits<int>::max();
  const std::vector<ConfigCase> cases = {
      {"name", [](IndexConfig* c) { c->name = std::string(129, 'x'); }},
      {"name", [](IndexConfig* c) { c->name = "a\nb"; }},
      {"geometry.num_layers", [](IndexConfig* c) { c->geometry.num_layers = 0; }},
      {"geometry.num_layers", [=](IndexConfig* c) { c->geometry.num_layers = big; }},
      {"geometry.num_kv_heads", [](IndexConfig* c) { c->geometry.num_kv_heads = 0; }},
      {"geometry.num_kv_heads", [](IndexConfig* c) { c->geometry.num_kv_heads = -1; }},
      {"geometry.num_kv_heads", [=](IndexConfig* c) { c->geometry.num_kv_heads = big; }},
      {"geometry.num_q_heads", [](IndexConfig* c) { c->geometry.num_q_heads = 0; }},
      {"geometry.num_q_heads", [](IndexConfig* c) { c->geometry.num_q_heads = 3; }},
      {"geometry.num_q_heads", [](IndexConfig* c) { c->geometry.num_q_heads = 66; }},
      {"geometry.num_q_heads", [=](IndexConfig* c) { c->geometry.num_q_heads = big; }},
      {"geometry.head_dim", [](IndexConfig* c) { c->geometry.head_dim = 0; }},
      {"geometry.head_dim", [](IndexConfig* c) { c->geometry.head_dim = 72; }},
      {"geometry.head_dim", [](IndexConfig* c) { c->geometry.head_dim = 1024; }},
      {"geometry.dtype", [](IndexConfig* c) { c->geometry.dtype = static_cast<DType>(3); }},
      {"zones.sink", [](IndexConfig* c) { c->zones.sink = -1; }},
      {"zones.sink", [=](IndexConfig* c) { c->zones.sink = big; }},
      {"zones.local", [](IndexConfig* c) { c->zones.local = -1; }},
      {"zones.local", [=](IndexConfig* c) { c->zones.local = big; }},
      {"zones.update_buffer", [](IndexConfig* c) { c->zones.update_buffer = 0; }},
      {"zones.update_buffer", [](IndexConfig* c) { c->zones.update_buffer = 100; }},
      {"zones.update_buffer", [=](IndexConfig* c) { c->zones.update_buffer = big - 63; }},
      {"zones.update_buffer", [](IndexConfig* c) { c->codec.centre_window = 128; }},
      {"zones.dense_threshold", [](IndexConfig* c) { c->zones.dense_threshold = -1; }},
      {"codec.name", [](IndexConfig* c) { c->codec.name = "pq"; }},
      {"codec.centre", [](IndexConfig* c) { c->codec.centre = static_cast<Centre>(9); }},
      {"codec.centre", [](IndexConfig* c) { c->search.coarse = Coarse::kCollision; }},  // SmallConfig has windows
      {"codec.centre_window", [](IndexConfig* c) { c->codec.centre_window = 0; }},
      {"codec.centre_window", [](IndexConfig* c) { c->codec.centre_window = 65; }},
      {"codec.centre_window", [](IndexConfig* c) { c->codec.centre_window = 4096; }},
      {"retrieval.top_k", [](IndexConfig* c) { c->search.top_k = 0; }},
      {"retrieval.coarse", [](IndexConfig* c) { c->search.coarse = static_cast<Coarse>(2); }},
      {"retrieval.exact", [](IndexConfig* c) { c->kv_store = KvStore::kNone, c->search.method = Method::kExact; }},
      {"kv_store", [](IndexConfig* c) { c->kv_store = static_cast<KvStore>(3); }},
      {"memory_limit_bytes", [](IndexConfig* c) { c->memory_limit_bytes = -1; }},
  };
  auto backend = MakeCpuBackend(1);
  for (const ConfigCase& test : cases) {
    IndexConfig config = SmallConfig();
    test.spoil(&config);
    const absl::Status status = Validate(config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.field;
    EXPECT_EQ(std::string(status.message()).substr(0, test.field.size() + 2), test.field + ": ") << status;
    EXPECT_EQ(FieldOf(status), test.field) << status;
    EXPECT_EQ(Index::Create(config, backend.get()).status(), status);
  }
  EXPECT_EQ(Index::Create(SmallConfig(), nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

// What all keys share changes no order.
TEST(ConfigTest, CollisionTakesACentreThatAllKeysShareOrNone) {
  for (const Centre centre : {Centre::kNone, Centre::kGlobal}) {
    IndexConfig config = SmallConfig();
    config.search.coarse = Coarse::kCollision;
    config.codec.centre = centre;
    EXPECT_TRUE(Validate(config).ok()) << Validate(config);
  }
}

TEST(ConfigTest, CentreTokensMatterOnlyToWindowCentres) {
  IndexConfig config = SmallConfig();
  config.codec.centre_window = 1;
  config.codec.centre = Centre::kNone;
  EXPECT_TRUE(Validate(config).ok());
}

struct ParamsCase {
  std::string field;
  std::function<void(SearchParams*)> spoil;
};

TEST(ConfigTest, EverySearchParameterWrongOnce) {
  const std::vector<ParamsCase> cases = {
      {"top_k", [](SearchParams* p) { p->top_k = 0; }},
      {"top_k", [](SearchParams* p) { p->top_k = -5; }},
      {"top_k", [](SearchParams* p) { p->top_k = 65537; }},
      {"mass_p.cap", [](SearchParams* p) { p->mass_p = .5f, p->top_k = 65537; }},
      {"mass_p.p", [](SearchParams* p) { p->mass_p = -0.1f; }},
      {"mass_p.p", [](SearchParams* p) { p->mass_p = 1.1f; }},
      {"mass_p.p", [](SearchParams* p) { p->mass_p = NAN; }},
      {"mass_p.floor", [](SearchParams* p) { p->mass_floor = 0; }},
      {"mass_p.floor", [](SearchParams* p) { p->mass_p = .5f, p->mass_floor = 101; }},
      {"candidate_fraction", [](SearchParams* p) { p->candidate_fraction = -.01; }},
      {"candidate_fraction", [](SearchParams* p) { p->candidate_fraction = 1.01; }},
      {"candidate_fraction", [](SearchParams* p) { p->candidate_fraction = NAN; }},
      {"recall_target", [](SearchParams* p) { p->recall_target = 1; }},
      {"recall_target", [](SearchParams* p) { p->recall_target = NAN; }},
      {"candidates", [](SearchParams* p) { p->candidates = -1; }},
      {"candidates", [](SearchParams* p) { p->candidates = 77, p->recall_target = .9; }},
      {"collision_fraction", [](SearchParams* p) { p->collision_fraction = 0; }},
      {"collision_fraction", [](SearchParams* p) { p->collision_fraction = INFINITY; }},
      {"collision_fraction", [](SearchParams* p) { p->coarse = Coarse::kCollision, p->candidate_fraction = .25; }},
      {"collision_fraction", [](SearchParams* p) { p->coarse = Coarse::kCollision, p->collision_fraction = .04; }},
      {"rescore_k", [](SearchParams* p) { p->rescore_k = -1; }},
      {"coarse", [](SearchParams* p) { p->coarse = static_cast<Coarse>(7); }},
      {"scope", [](SearchParams* p) { p->scope = static_cast<Scope>(2); }},
      {"gqa_reduce", [](SearchParams* p) { p->gqa_reduce = static_cast<GqaReduce>(3); }},
      {"exact", [](SearchParams* p) { p->method = static_cast<Method>(2); }},
      {"softmax_scale", [](SearchParams* p) { p->softmax_scale = -1; }},
      {"softmax_scale", [](SearchParams* p) { p->softmax_scale = INFINITY; }},
      {"softmax_scale", [](SearchParams* p) { p->softmax_scale = NAN; }},
  };
  auto backend = MakeCpuBackend(1);
  auto index = testing::MakeIndex(SmallConfig(), backend.get());
  for (const ParamsCase& test : cases) {
    SearchParams params;
    test.spoil(&params);
    const absl::Status status = Validate(params);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.field;
    EXPECT_EQ(std::string(status.message()).substr(0, test.field.size() + 2), test.field + ": ") << status;
    EXPECT_EQ(FieldOf(status), test.field) << status;
    EXPECT_EQ(index->Retrieve({}, params).status(), status);  // the whole call fails
    IndexConfig config = SmallConfig();
    config.search = params;
    EXPECT_EQ(std::string(Validate(config).message()), "retrieval." + std::string(status.message()));
  }
}

TEST(ConfigTest, EdgesOfSearchParametersAreValid) {
  SearchParams params;
  for (const auto& [top_k, beta, mass_p] : {std::tuple{1, 1e-9, 0.0f}, {65536, 1.0, 1.0f}}) {
    params.top_k = top_k, params.candidate_fraction = beta, params.mass_p = mass_p, params.rescore_k = 0,
    params.collision_fraction = 1;
    EXPECT_TRUE(Validate(params).ok()) << Validate(params);
  }
}

// Tiers that cover fewer keys than are to be candidates leave some told apart by nothing. The authors' schedule has
// collision_fraction >= candidate_fraction throughout.
TEST(ConfigTest, TiersCoverAtLeastTheCandidates) {
  SearchParams params;
  params.coarse = Coarse::kCollision;
  for (const auto& [beta, rho] : {std::pair{.5, .5}, {.25, .3}, {.2, .25}, {.1, .2}, {0.0, .05}, {1.0, 1.0}}) {
    params.candidate_fraction = beta, params.collision_fraction = rho;
    EXPECT_TRUE(Validate(params).ok()) << beta << " " << rho;
  }
  params.candidate_fraction = .25, params.collision_fraction = .2;
  const std::string message(Validate(params).message());
  EXPECT_NE(message.find("collision_fraction: 0.2 is below candidate_fraction, 0.25"), std::string::npos) << message;
  params.coarse = Coarse::kSignIp;  // has no tiers
  EXPECT_TRUE(Validate(params).ok());
  IndexConfig config = SmallConfig();
  config.codec.centre = Centre::kNone;
  config.search.coarse = Coarse::kCollision;
  config.search.candidate_fraction = .3;
  EXPECT_EQ(FieldOf(Validate(config)), "retrieval.collision_fraction");
}

}  // namespace
}  // namespace seine
