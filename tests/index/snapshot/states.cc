#include "tests/index/snapshot/states.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "index/subspace/calibrate.h"
#include "tests/index/subspace/low_rank_simulation.h"

namespace seine::testing {

namespace {

IndexConfig RsqConfig(KvStore store, DType dtype, Coarse coarse, Centre centre, int centre_window = 64) {
  IndexConfig config = SmallConfig(store);
  config.geometry.dtype = dtype;
  config.codec.centre = centre;
  config.codec.centre_window = centre_window;
  config.zones.update_buffer = std::max(64, centre_window);
  config.search.coarse = coarse;
  return config;
}

// Evicts by itself, 60 tokens a head every 40.
IndexConfig EvictingConfig(const char* scorer, bool accumulate = false) {
  IndexConfig config = SmallConfig(KvStore::kKeysValues);
  EvictionConfig& eviction = config.eviction.emplace();
  eviction.scorer.name = scorer;
  eviction.scorer.accumulate = accumulate;
  if (eviction.scorer.name == "snapkv") eviction.scorer.query_window = 8;
  if (eviction.scorer.name == "windowed_manifoldkv") eviction.scorer.window = 50;
  eviction.budget.tokens = 160;
  eviction.interval = 40;
  return config;
}

IndexConfig SubspaceConfigOf(KeyFrame frame, int queries) {
  IndexConfig config = LowRankConfig(.1, frame);
  config.subspace->choice.queries = queries;
  return config;
}

const MadeUpModel& Model() {
  static const auto* const model = new MadeUpModel(SmallConfig().geometry);
  return *model;
}

IndexConfig ProfiledConfig(KvStore store) {
  static const auto* const profile = new std::shared_ptr<const Profile>(Model().Measure(2048));
  return BalancedConfig(Model(), *profile, store);
}

void EvictByCall(Index* index, const std::string& id, HeadBudget heads) {
  EvictParams params;
  params.scorer.name = "keydiff";
  params.budget.tokens = 180;
  params.budget.heads = heads;
  for (int layer = 0; layer < index->config().geometry.num_layers; ++layer) {
    const auto answer = index->Evict({id, 0}, layer, params, {});
    ASSERT_TRUE(answer.ok()) << answer.status();
  }
}

void ForkAndPart(Index* index) {
  ASSERT_TRUE(index->Fork({"a", 0}, "all", -1).ok());
  ASSERT_TRUE(index->Fork({"a", 0}, "cut", 130).ok());
  ASSERT_TRUE(index->Fork({"cut", 0}, "grown", -1).ok());
  Extend(index, "grown", 90);
  ASSERT_TRUE(index->Truncate({"a", 0}, 200).ok());  // shorter than a fork that shares its last pieces
  Extend(index, "all", 3);
}

void LearnQueries(Index* index) {
  const MadeUpModel other(Model().geometry(), /*query_seed=*/900, /*query_decay=*/12);
  const int64_t last = index->GetSequence({"a", 0})->layer_tokens[1] - 1;
  for (int step = 0; step < 140; ++step) {
    const std::vector<float> queries = other.Query(last, step);
    ASSERT_TRUE(index->Retrieve({{{"a", 0}, 1, queries.data()}}, index->config().search).ok());
  }
  WaitForBackground(*index);
}

void SetBasesAnew(Index* index) {
  auto bases = index->GetBases({"a", 0}, 0);
  ASSERT_TRUE(bases.ok()) << bases.status();
  std::swap(bases->keys[0], bases->keys[1]);
  ASSERT_TRUE(index->SetBases({"a", 0}, 0, *bases).ok());
}

void Cut(Index* index) { ASSERT_TRUE(index->Truncate({"a", 0}, 170).ok()); }

}  // namespace

const std::vector<StateCase>& AllStates() {
  static const auto* const states = new std::vector<StateCase>{
      {"empty", [] { return SmallConfig(); }, {}, 0},
      {"dense", [] { return SmallConfig(); }, {}, 30},
      {"keys", [] { return SmallConfig(); }},
      {"keys_values_fp32",
       [] { return RsqConfig(KvStore::kKeysValues, DType::kFloat32, Coarse::kSignIp, Centre::kWindow); }},
      {"keys_values_bf16_wide_centre",
       [] { return RsqConfig(KvStore::kKeysValues, DType::kBFloat16, Coarse::kSignIp, Centre::kWindow, 128); }},
      {"codes_alone", [] { return SmallConfig(KvStore::kNone); }, {}, 900},
      {"codes_alone_cut", [] { return SmallConfig(KvStore::kNone); },
       [](Index* index) {
         ASSERT_TRUE(index->Truncate({"a", 0}, 208).ok());
       }},
      {"collision", [] { return RsqConfig(KvStore::kNone, DType::kFloat16, Coarse::kCollision, Centre::kGlobal); }},
      {"collision_cut", [] { return RsqConfig(KvStore::kKeys, DType::kFloat16, Coarse::kCollision, Centre::kNone); },
       Cut},
      {"whole_pieces", [] { return SmallConfig(KvStore::kKeysValues); }, {}, 16 + 32 + 4096 + 70},
      {"cut", [] { return SmallConfig(KvStore::kKeysValues); }, Cut},
      {"layers_differ", [] { return SmallConfig(); },
       [](Index* index) {
         ASSERT_TRUE(AppendNames(index, {"a", 0}, 1, 300, Names(7000, 100)).ok());
       }},
      {"family", [] { return SmallConfig(KvStore::kKeysValues); }, ForkAndPart},
      {"evicted", [] { return SmallConfig(KvStore::kKeysValues); },
       [](Index* index) { EvictByCall(index, "a", HeadBudget::kUniform); }},
      {"evicted_unevenly_and_forked", [] { return SmallConfig(); },
       [](Index* index) {
         EvictByCall(index, "a", HeadBudget::kAdaptive);
         ForkAndPart(index);
       }},
      {"evicts_keydiff", [] { return EvictingConfig("keydiff"); }},
      {"evicts_by_windows", [] { return EvictingConfig("windowed_manifoldkv"); }, Cut},
      {"evicts_by_queries", [] { return EvictingConfig("snapkv"); }, ForkAndPart},
      {"evicts_by_sums", [] { return EvictingConfig("h2o", true); }, ForkAndPart},
      {"low_rank", [] { return SubspaceConfigOf(KeyFrame::kPostRope, 0); }, ForkAndPart},
      {"low_rank_pre_rope_by_queries", [] { return SubspaceConfigOf(KeyFrame::kPreRope, 16); }, Cut},
      {"low_rank_evicted", [] { return SubspaceConfigOf(KeyFrame::kPostRope, 0); },
       [](Index* index) {
         EvictByCall(index, "a", HeadBudget::kUniform);
         ForkAndPart(index);
       }},
      {"low_rank_bases_set", [] { return SubspaceConfigOf(KeyFrame::kPreRope, 0); }, SetBasesAnew},
      {"balanced", [] { return ProfiledConfig(KvStore::kKeysValues); }, ForkAndPart},
      {"balanced_evicted", [] { return ProfiledConfig(KvStore::kKeysValues); },
       [](Index* index) { EvictByCall(index, "a", HeadBudget::kUniform); }},
      {"balanced_learnt", [] { return ProfiledConfig(KvStore::kKeys); }, LearnQueries, 700},
  };
  return *states;
}

void Extend(Index* index, const std::string& id, int64_t count) {
  const IndexConfig& config = index->config();
  const Geometry& g = config.geometry;
  const bool asks =
      config.eviction && (config.eviction->keep_queries.value_or(0) > 0 || config.eviction->scorer.accumulate);
  const bool chooses = config.subspace && config.subspace->choice.queries > 0;
  const auto layers = index->GetSequence({id, 0})->layer_tokens;
  const int64_t longest = *std::max_element(layers.begin(), layers.end());
  for (int layer = 0; layer < g.num_layers; ++layer) {
    for (int64_t at = layers[layer]; at < longest + count;) {
      const int64_t part = std::min<int64_t>(longest + count - at, at % 3 == 0 ? 37 : 500);
      std::vector<uint64_t> names = Names(at + 1, part), values = Names(at + 1 + kValueNames, part);
      const std::string keys = Rows(g, names);
      const std::string value_rows = config.kv_store == KvStore::kKeysValues ? Rows(g, values) : "";
      std::vector<float> queries;
      for (int64_t p = at; (asks || chooses) && p < at + part; ++p) {
        const std::vector<float> one = Queries(g, static_cast<uint32_t>(p));
        queries.insert(queries.end(), one.begin(), one.end());
      }
      const int64_t asked = static_cast<int64_t>(queries.size()) / (g.num_q_heads * g.head_dim);
      const auto length =
          index->Append({id, 0}, layer, at, View(g, keys), value_rows.empty() ? TensorView{} : View(g, value_rows),
                        {queries.data(), asked});
      ASSERT_TRUE(length.ok()) << length.status();
      at += part;
    }
  }
}

std::unique_ptr<Index> MakeState(const StateCase& c, Backend* backend) {
  auto index = MakeIndex(c.config(), backend);
  EXPECT_TRUE(index->CreateSequence("a").ok());
  if (c.tokens > 0) Extend(index.get(), "a", c.tokens);
  if (c.live) c.live(index.get());
  WaitForBackground(*index);
  return index;
}

std::string SnapshotOf(const Index& index, const std::string& id, SnapshotScope scope) {
  StringSink sink;
  const auto info = index.Snapshot({id, 0}, scope, &sink);
  EXPECT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info.ok() ? info->bytes : 0, static_cast<int64_t>(sink.text().size()));
  return sink.text();
}

absl::Status RestoreFrom(const std::string& snapshot, Index* index) {
  StringSource source(snapshot);
  return index->Restore(&source, {}).status();
}

std::string StateOf(const Index& index, const std::string& id) {
  std::string text = SnapshotOf(index, id, SnapshotScope::kSequence);
  uint32_t sections;
  uint64_t settings, state;
  std::memcpy(&sections, text.data() + 12, 4);
  std::memcpy(&settings, text.data() + 16 + 8, 8);
  std::memcpy(&state, text.data() + 32 + 8, 8);
  const size_t begin = 16 + sections * 16 + 16 + settings + 16;
  std::memset(text.data() + begin + 16 + id.size(), 0, 8);  // the count, the id's length and the id stand before
  text.erase(begin + state, 16);                            // its checksum
  return text;
}

bool Answers::operator==(const Answers& o) const {
  return SameAnswers(found, o.found) && outputs == o.outputs && rows == o.rows;
}

Answers AnswersOf(const Index& index, const std::string& id) {
  const IndexConfig& config = index.config();
  Answers answers;
  for (int layer = 0; layer < config.geometry.num_layers; ++layer) {
    for (ItemAnswer& answer : Probe(index, {id, 0}, layer)) answers.found.push_back(std::move(answer));
    const int64_t length = index.GetSequence({id, 0})->layer_tokens[layer];
    if (config.kv_store == KvStore::kKeysValues) {
      const std::vector<float> queries = Queries(config.geometry, 31);
      const auto attended = index.Attend({{{id, 0}, layer, queries.data()}}, config.search, AttentionParams{});
      EXPECT_TRUE(attended.ok() && (*attended)[0].status.ok());
      answers.outputs.push_back((*attended)[0].output);
      answers.outputs.push_back((*attended)[0].log_sum_exp);
    }
    for (int head = 0; head < config.geometry.num_kv_heads && config.kv_store != KvStore::kNone; ++head) {
      for (int64_t p = 0; p < length; p += 7) {
        std::string keys;
        const auto position = static_cast<int32_t>(p);
        const absl::Status status = index.Gather({id, 0}, layer, head, {&position, 1}, &keys, nullptr);
        answers.rows.push_back(status.ok() ? keys : "gone");
      }
    }
  }
  return answers;
}

}  // namespace seine::testing
