// `seine evict` and `seine diagnose` with published Q-Filters, and `seine append` with the queries that an index keeps:
// whom they keep, and files that do not fit.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "profile/io/tensor_writer.h"
#include "tests/client/process.h"

namespace seine {
namespace {

using Json = nlohmann::json;

constexpr int kShortLayers = 2, kQHeads = 4, kKvHeads = 2, kFilterDim = 64;
constexpr int64_t kShortTokens = 90;

class EvictCliTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = new Server;
    folder_ = new TempFolder;
    folder_->Write("foreign", "this is no tensor file at all");
    const auto client = server_->Connect();
    ASSERT_NE(client, nullptr);
    ASSERT_EQ(Seine("index create m --layers 2 --q-heads 4 --kv-heads 2 --head-dim 64 --dtype fp32").exit_code, 0);
    ASSERT_TRUE(client->CreateSequence("m", "s").ok());
    const std::vector<float> keys = Keys();
    const client::ConstTensor tensor = {keys.data(), client::DType::kFloat32, {kShortTokens, kKvHeads, kFilterDim}};
    const auto length = client->Append({{"m", "s"}, 1, 0, tensor, {}});
    ASSERT_TRUE(length.ok()) << length.status();
    ASSERT_EQ(Seine("index create own --layers 1 --q-heads 4 --kv-heads 2 --head-dim 64 --dtype fp32 --evict-budget 20 "
                    "--evict-interval 30 --evict-scorer h2o --evict-keep-queries 40")
                  .exit_code,
              0);
    WriteKeysAndQueries();
    WriteFilters("filters", "q_filters", kFilterDim);
    WriteFilters("narrow", "q_filters", kFilterDim / 2);
    WriteFilters("named", "filters", kFilterDim);
  }
  static void TearDownTestSuite() {
    delete folder_;
    delete server_;
  }

  static std::vector<float> Keys() {
    std::vector<float> keys(kShortTokens * kKvHeads * kFilterDim);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<float>(i * i % 8191) / 4096 - 1;
    return keys;
  }
  // The filter of layer 1, KV head h, lies along coordinate 5 + h, negated, as filters are published. Layer 0's are
  // others.
  static void WriteFilters(const std::string& file, const std::string& name, int dim) {
    std::vector<float> filters(kShortLayers * kKvHeads * dim);
    for (int h = 0; h < kKvHeads; ++h) {
      filters[h * dim] = 1;
      filters[(kKvHeads + h) * dim + 5 + h] = -1;
    }
    const std::string bytes(reinterpret_cast<const char*>(filters.data()), filters.size() * sizeof(float));
    const auto status =
        WriteTensors({{name, TensorFile::Type::kF32, {kShortLayers, kKvHeads, dim}, bytes}}, {}, folder_->Path(file));
    ASSERT_TRUE(status.ok()) << status;
  }
  // Synthetic keys with queries of all tokens, of other values, of the last 30, and of shapes that do not fit.
  static void WriteKeysAndQueries() {
    const auto tensor = [](const std::string& name, std::vector<int64_t> shape, int step) {
      int64_t size = 1;
      for (const int64_t n : shape) size *= n;
      std::vector<float> values(size);
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * i * step % 8191) / 4096 - 1;
      return OutputTensor{name, TensorFile::Type::kF32, std::move(shape),
                          std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float))};
    };
    const auto status = WriteTensors(
        {tensor("k", {kShortTokens, kKvHeads, kFilterDim}, 1), tensor("q", {kShortTokens, kQHeads, kFilterDim}, 3),
         tensor("others", {kShortTokens, kQHeads, kFilterDim}, 7), tensor("last", {30, kQHeads, kFilterDim}, 3),
         tensor("q1", {1, kQHeads, kFilterDim}, 3), tensor("q10", {10, kQHeads, kFilterDim}, 3),
         tensor("q63", {63, kQHeads, kFilterDim}, 3), tensor("more", {kShortTokens + 1, kQHeads, kFilterDim}, 3),
         tensor("few_heads", {kShortTokens, kKvHeads, kFilterDim}, 3), tensor("flat", {kShortTokens, kFilterDim}, 3)},
        {}, folder_->Path("kq"));
    ASSERT_TRUE(status.ok()) << status;
  }
  // Whom each head holds after appends with the file's tensor of queries, by the command line or by the client.
  static std::vector<std::vector<int32_t>> Held(const std::string& sequence) {
    v1::ScorerSettings scorer;
    scorer.set_name("knorm");
    const auto scores = server_->Connect()->Score({"own", sequence}, 0, scorer, {});
    EXPECT_TRUE(scores.ok()) << scores.status();
    std::vector<std::vector<int32_t>> positions;
    for (const client::HeadScores& head : *scores) positions.push_back(head.positions);
    return positions;
  }
  static std::vector<std::vector<int32_t>> HeldByCli(const std::string& sequence, const std::string& queries) {
    EXPECT_EQ(Seine("seq create own " + sequence).exit_code, 0);
    const std::string append = "append own " + sequence + " --layer 0 --file %kq --tensor k --queries " + queries;
    const std::pair<const char*, const char*> parts[] = {{" --count 45", "queries of the last 45"},
                                                         {" --first 45 -o json", "\"queries\": 45"}};
    for (const auto& [part, says] : parts) {
      const Outcome outcome = Seine(append + part);
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      EXPECT_TRUE(absl::StrContains(outcome.out, says)) << outcome.out;
    }
    return Held(sequence);
  }
  static std::vector<std::vector<int32_t>> HeldByClient(const std::string& sequence, const std::string& queries) {
    const auto client = server_->Connect();
    const auto file = TensorFile::Open(folder_->Path("kq"));
    EXPECT_TRUE(client->CreateSequence("own", sequence).ok());
    for (const int64_t first : {0, 45}) {
      const auto part = [&](const std::string& name, int64_t heads) {
        const uint8_t* data = file->Get(name)->data + first * heads * kFilterDim * sizeof(float);
        return client::ConstTensor{data, client::DType::kFloat32, {45, heads, kFilterDim}};
      };
      const auto length =
          client->Append({{"own", sequence}, 0, first, part("k", kKvHeads), {}, part(queries, kQHeads)});
      EXPECT_TRUE(length.ok()) << length.status();
    }
    return Held(sequence);
  }
  static Outcome Seine(const std::string& line) { return SeineAt(*server_, line); }
  static Outcome SeineAt(const Server& server, const std::string& line) {
    std::vector<std::string> arguments = {SEINE_PROGRAM};
    const std::vector<std::string> parts = absl::StrSplit(line, ' ', absl::SkipEmpty());
    for (const std::string& part : parts) {
      arguments.push_back(part[0] == '%' ? folder_->Path(part.substr(1)) : part);
    }
    return server.Run(arguments);
  }

  static Server* server_;
  static TempFolder* folder_;
};
Server* EvictCliTest::server_ = nullptr;
TempFolder* EvictCliTest::folder_ = nullptr;

TEST_F(EvictCliTest, AnAppendShowsWhatItDropped) {
  ASSERT_EQ(Seine("index create shown --layers 1 --q-heads 4 --kv-heads 2 --head-dim 64 --dtype fp32 --evict-budget 20 "
                  "--evict-interval 10 --evict-scorer streaming_llm")
                .exit_code,
            0);
  ASSERT_EQ(Seine("seq create shown s").exit_code, 0);
  const std::string append = "append shown s --layer 0 --file %kq --tensor k ";
  const Json none = Json::parse(Seine(append + "--count 10 -o json").out);
  EXPECT_TRUE(none.at("retained").is_null());
  const Json dropped = Json::parse(Seine(append + "--first 10 --count 50 --report dropped -o json").out).at("retained");
  EXPECT_EQ(dropped.at("counts"), Json({20, 20}));
  EXPECT_EQ(dropped.at("num_tokens"), 60);
  EXPECT_EQ(dropped.at("evictions").get<int>() - dropped.at("evictions_before").get<int>(), 4);
  EXPECT_EQ(dropped.at("dropped").at(1).size(), 40u);
  const Json kept = Json::parse(Seine(append + "--first 60 --count 1 --report kept -o json").out).at("retained");
  EXPECT_EQ(kept.at("kept").at(0).size(), 21u);
  EXPECT_FALSE(kept.contains("dropped"));
  const Outcome text = Seine(append + "--first 61 --count 9 --report dropped");
  EXPECT_TRUE(absl::StrContains(text.out, "evictions: 1; of the layer so far: 5\n")) << text.out;
  EXPECT_TRUE(absl::StrContains(text.out, "KV head 1 retains 20, dropped ")) << text.out;
  const Outcome wrong = Seine(append + "--report gone");
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_TRUE(absl::StrContains(wrong.err, "must be one of dropped, kept, not gone")) << wrong.err;
}

TEST_F(EvictCliTest, PublishedFiltersKeepWhatLiesAlongThem) {
  const Outcome outcome =
      Seine("evict m s --layer 1 --scorer qfilters --filters %filters --budget 20 --dry-run -o json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  const std::vector<float> keys = Keys();
  for (int h = 0; h < kKvHeads; ++h) {
    std::vector<int> kept(kShortTokens);
    std::iota(kept.begin(), kept.end(), 0);
    const auto along = [&](int token) { return keys[(token * kKvHeads + h) * kFilterDim + 5 + h]; };
    std::stable_sort(kept.begin(), kept.end(), [&](int a, int b) { return along(a) > along(b); });
    kept.resize(20);
    std::sort(kept.begin(), kept.end());
    EXPECT_EQ(json["kept"][h], Json(kept));
  }
  const Outcome diagnosed = Seine("diagnose m s --layer 1 --scorers knorm,qfilters --filters %filters -o json");
  ASSERT_EQ(diagnosed.exit_code, 0) << diagnosed.err;
  EXPECT_EQ(Json::parse(diagnosed.out)["heads"].size(), kKvHeads);
}

TEST_F(EvictCliTest, AnIndexIsToldToKeepQueries) {
  const std::string shape = " --layers 1 --q-heads 4 --kv-heads 2 --head-dim 64 --evict-budget 100 ";
  const Outcome made = Seine("index create told" + shape + "--evict-scorer h2o --evict-keep-queries 40 -o json");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Json json = Json::parse(made.out);
  EXPECT_EQ(json["evict_keep_queries"], 40);
  EXPECT_EQ(json["query_bytes"], 0);
  const Outcome refused = Seine("index create none" + shape + "--evict-scorer tova --evict-keep-queries 0");
  EXPECT_EQ(refused.exit_code, 7);
  EXPECT_TRUE(absl::StrContains(refused.err, "--evict-keep-queries: 0, but tova looks at queries")) << refused.err;
  const Outcome help = Seine("index create --help");
  EXPECT_TRUE(absl::StrContains(help.out, "--evict-keep-queries")) << help.out;
}

TEST_F(EvictCliTest, AppendedQueriesDecideWhoIsKept) {
  const auto held = HeldByCli("a", "q");
  ASSERT_EQ(held.size(), kKvHeads);
  EXPECT_LE(held[0].size(), 50u);
  EXPECT_EQ(held, HeldByClient("b", "q"));
  EXPECT_NE(held, HeldByCli("c", "others"));
}

// A file that has queries of its last tokens alone brings what it has.
TEST_F(EvictCliTest, QueriesOfTheLastTokensAreSent) {
  ASSERT_EQ(Seine("seq create own d").exit_code, 0);
  const Outcome outcome =
      Seine("append own d --layer 0 --file %kq --tensor k --queries last --first 50 --count 38 -o json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out)["queries"], 28);  // of tokens 60 to 87
}

TEST_F(EvictCliTest, ShortPromptsLoseNothing) {
  for (const int tokens : {1, 10, 63}) {
    const std::string sequence = absl::StrCat("short", tokens),
                      queries = absl::StrCat(" --queries %kq --tensor q", tokens);
    ASSERT_EQ(Seine("seq create m " + sequence).exit_code, 0);
    ASSERT_EQ(Seine(absl::StrCat("append m ", sequence, " --layer 1 --file %kq --tensor k --count ", tokens)).exit_code,
              0);
    for (const std::string scorer : {"snapkv", "tova", "h2o", "expected_attention --value-norms false"}) {
      const std::string evict = "evict m " + sequence + " --layer 1 -o json --scorer " + scorer + queries;
      const Outcome outcome = Seine(evict + " --budget 100");
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      EXPECT_EQ(Json::parse(outcome.out)["tokens_evicted"], 0);
      const Outcome cut = Seine(evict + " --dry-run --budget 1");
      ASSERT_EQ(cut.exit_code, 0) << cut.err;
      EXPECT_EQ(Json::parse(cut.out)["tokens_evicted"], scorer == "snapkv" ? 0 : kKvHeads * (tokens - 1));
    }
  }
}

TEST_F(EvictCliTest, TheSoftmaxScaleAndTheFiltersHorizonAreSent) {
  const std::string evict = "evict m s --layer 1 --scorer tova --queries %kq --tensor q1 --budget 20 --dry-run -o json";
  const Outcome plain = Seine(evict), same = Seine(evict + " --softmax-scale 0.125"),
                flat = Seine(evict + " --softmax-scale 0.0001"), bad = Seine(evict + " --softmax-scale -1");
  ASSERT_EQ(flat.exit_code, 0) << flat.err;
  EXPECT_EQ(plain.out, same.out);  // 1 / sqrt(64)
  EXPECT_EQ(bad.exit_code, 7);
  EXPECT_TRUE(absl::StrContains(bad.err, "--softmax-scale: -1 is not in [0, 10000] (given.softmax_scale)")) << bad.err;
  const Outcome seen = Seine("diagnose m s --layer 1 --scorers knorm --queries %kq --tensor q1 -o json");
  ASSERT_EQ(seen.exit_code, 0) << seen.err;
  EXPECT_EQ(Json::parse(seen.out)["heads"][0]["attention_tokens"], kShortTokens);
  const Outcome unseen = Seine("diagnose m s --layer 1 --scorers knorm");
  EXPECT_TRUE(absl::StrContains(unseen.out, "No correlation with attention")) << unseen.out;
  const Outcome horizon = Seine(
      "index create far --layers 1 --q-heads 4 --kv-heads 2 --head-dim 64 --evict-budget 100 "
      "--evict-scorer knorm --evict-horizon 1024");
  EXPECT_EQ(horizon.exit_code, 7);
  EXPECT_TRUE(absl::StrContains(horizon.err, "--evict-horizon: given, but only qfilters")) << horizon.err;
}

// The same sets as a call with the same directions, by file and by the server's name of it.
TEST_F(EvictCliTest, AnIndexTakesPublishedFilters) {
  TempFolder profiles;
  const Server server({"--profiles", profiles.Path("")});
  std::filesystem::copy_file(folder_->Path("filters"), profiles.Path("m.filters.safetensors"));
  const std::string create =
      "index create %s --layers 2 --q-heads 4 --kv-heads 2 --head-dim 64 --dtype fp32 --evict-budget 20 "
      "--evict-interval 70 --evict-scorer qfilters ";
  const auto client = server.Connect();
  const std::vector<float> keys = Keys();
  const client::ConstTensor tensor = {keys.data(), client::DType::kFloat32, {kShortTokens, kKvHeads, kFilterDim}};
  std::vector<std::vector<client::HeadScores>> held;
  for (const auto& [name, flag] : {std::pair{"file", "--evict-filters %filters"}, {"name", "--evict-filters-file m"}}) {
    const Outcome created = SeineAt(server, absl::StrReplaceAll(create, {{"%s", name}}) + flag);
    ASSERT_EQ(created.exit_code, 0) << created.err;
    EXPECT_TRUE(absl::StrContains(created.out, name == std::string("file") ? "given" : "m")) << created.out;
    ASSERT_TRUE(client->CreateSequence(name, "s").ok());
    ASSERT_TRUE(client->Append({{name, "s"}, 1, 0, tensor, {}}).ok());
    v1::ScorerSettings knorm;
    knorm.set_name("knorm");
    auto scores = client->Score({name, "s"}, 1, knorm, {});
    ASSERT_TRUE(scores.ok()) << scores.status();
    held.push_back(*std::move(scores));
  }
  const Outcome called =
      Seine("evict m s --layer 1 --scorer qfilters --filters %filters --budget 20 --dry-run -o json");
  ASSERT_EQ(called.exit_code, 0) << called.err;
  const auto kept = Json::parse(called.out)["kept"].get<std::vector<std::vector<int32_t>>>();
  for (const auto& heads : held) {
    for (int h = 0; h < kKvHeads; ++h) EXPECT_EQ(heads[h].positions, kept[h]);
  }
  // A file of filters is no profile, and none that was passed over.
  const Outcome version = SeineAt(server, "version");
  EXPECT_FALSE(absl::StrContains(version.out, "filters")) << version.out;
}

TEST_F(EvictCliTest, EveryOptionOfTheIndexArrives) {
  ASSERT_EQ(Seine("index create opts --layers 1 --q-heads 4 --kv-heads 2 --head-dim 64 --kv-store keys_values "
                  "--evict-budget 100 --evict-scorer h2o --evict-accumulate true --evict-recent-share .5 "
                  "--evict-heads adaptive --evict-safeguard .3 --evict-pyramid-ratio 5 --evict-value-weight norm "
                  "--evict-weight-epsilon .01 --evict-first-stage .25")
                .exit_code,
            0);
  const auto info = server_->Connect()->GetIndex("opts");
  ASSERT_TRUE(info.ok() && info->spec().has_eviction());
  const v1::EvictionSettings& e = info->spec().eviction();
  EXPECT_EQ(e.scorer().accumulate(), true);
  EXPECT_EQ(e.scorer().value_weight(), v1::VALUE_WEIGHT_NORM);
  EXPECT_EQ(e.scorer().weight_epsilon(), .01);
  EXPECT_EQ(e.scorer().first_stage(), .25);
  EXPECT_EQ(e.budget().safeguard(), .3);
  EXPECT_EQ(e.budget().pyramid_ratio(), 5);
  EXPECT_EQ(e.keep().recent_share(), .5);
  EXPECT_EQ(e.scorer().anchor(), v1::ANCHOR_UNSPECIFIED);  // of another scorer
  const Json shown = Json::parse(Seine("index get opts -o json").out);
  EXPECT_EQ(shown["evict_scorer"], "h2o");
  EXPECT_EQ(shown["evict_accumulate"], true);
  EXPECT_EQ(shown["evict_value_weight"], "norm");
  EXPECT_EQ(shown["evict_weight_epsilon"], .01);
  EXPECT_EQ(shown["evict_safeguard"], .3);
  EXPECT_EQ(shown["evict_recent_share"], .5);
  EXPECT_FALSE(shown.contains("evict_anchor"));
}

TEST_F(EvictCliTest, NamedPositionsAndTheProjectionAreSent) {
  const Outcome kept = Seine("evict m s --layer 1 --scorer knorm --budget 5 --positions 3,17,60 --dry-run -o json");
  ASSERT_EQ(kept.exit_code, 0) << kept.err;
  const Json answer = Json::parse(kept.out);
  ASSERT_FALSE(answer["kept"].empty());
  for (const auto& head : answer["kept"]) {
    const auto positions = head.get<std::vector<int32_t>>();
    for (const int32_t p : {3, 17, 60}) EXPECT_TRUE(std::binary_search(positions.begin(), positions.end(), p)) << p;
  }
  const std::string index = "index create valued --layers 1 --q-heads 4 --kv-heads 2 --head-dim 64 --dtype fp32";
  ASSERT_EQ(Seine(index + " --kv-store keys_values").exit_code, 0);
  const auto client = server_->Connect();
  ASSERT_TRUE(client->CreateSequence("valued", "s").ok());
  const std::vector<float> keys = Keys();
  const client::ConstTensor tensor = {keys.data(), client::DType::kFloat32, {kShortTokens, kKvHeads, kFilterDim}};
  ASSERT_TRUE(client->Append({{"valued", "s"}, 0, 0, tensor, tensor}).ok());
  std::vector<float> identity(256 * 256);
  for (int i = 0; i < 256; ++i) identity[i * 257] = 1;
  const std::string bytes(reinterpret_cast<const char*>(identity.data()), identity.size() * sizeof(float));
  ASSERT_TRUE(
      WriteTensors({{"o_proj", TensorFile::Type::kF32, {256, 256}, bytes}}, {}, folder_->Path("projection")).ok());
  const std::string evict = "evict valued s --layer 0 --scorer knorm --budget 20 --dry-run -o json --value-weight ";
  const Outcome norm = Seine(evict + "norm");
  const std::string projection = " --output-projection %projection --projection-tensor o_proj";
  const Outcome projected = Seine(evict + "projected" + projection);
  ASSERT_EQ(projected.exit_code, 0) << projected.err;
  EXPECT_EQ(projected.out, norm.out);  // |v|_1 is what the identity projects
  const Outcome plain = Seine("evict valued s --layer 0 --scorer knorm --budget 20 --dry-run -o json");
  EXPECT_NE(plain.out, norm.out);
  EXPECT_EQ(Seine(evict + "projected").exit_code, 7);
  EXPECT_EQ(Seine(evict + "norm" + projection).exit_code, 2);
  EXPECT_EQ(Seine(evict + "projected --output-projection %kq --projection-tensor q").exit_code, 3);
  EXPECT_EQ(Seine("evict m s --layer 1 --scorer knorm --value-weight norm").exit_code, 7);  // it keeps no values
}

TEST_F(EvictCliTest, ErrorsAreOneLineAndAnExitCode) {
  const struct {
    std::string line;
    int exit_code;
    std::string says;
  } cases[] = {
      {"append own s --layer 0 --file %kq --tensor k --queries none", 3, "none"},
      {"append own s --layer 0 --file %kq --tensor k --queries flat", 3, "flat: has 2 dimensions; queries are [tokens"},
      {"append own s --layer 0 --file %kq --tensor k --queries few_heads", 3,
       "few_heads: has the shape [90, 2, 64]; queries of this index are [tokens, 4, 64]"},
      {"append own s --layer 0 --file %kq --tensor k --queries more", 3, "91 queries do not fit 90 tokens"},
      {"append own s --layer 0 --file %kq --tensor k --queries last --count 60", 2,
       "last holds those of tokens [60, 90), and not that of the last token to append, 59"},
      {"append nowhere s --layer 0 --file %kq --tensor k --queries q", 5, "no such index"},
      {"append m s --layer 0 --file %kq --tensor k --queries q", 7, "queries: given, but the index keeps none"},
      {"index create x --layers 2 --q-heads 4 --kv-heads 2 --head-dim 64 --evict-filters %filters", 2,
       "--evict-budget"},
      {"index create x --layers 2 --q-heads 4 --kv-heads 2 --head-dim 64 --evict-budget 9 --evict-filters %filters", 7,
       "keydiff uses none"},
      {"index create x --layers 3 --q-heads 4 --kv-heads 2 --head-dim 64 --evict-budget 9 --evict-scorer qfilters "
       "--evict-filters %filters",
       3, "[3 layers, 2 KV heads, 64]"},
      {"index create x --layers 2 --q-heads 4 --kv-heads 2 --head-dim 64 --evict-budget 9 --evict-window 0 "
       "--evict-scorer windowed_manifoldkv",
       7, "--evict-window: 0 is not in"},
      {"index create x --layers 2 --q-heads 4 --kv-heads 2 --head-dim 64 --evict-budget 9 --evict-value-weight "
       "projected "
       "--kv-store keys_values",
       7, "--evict-value-weight: projected needs"},
      {"index create x --layers 2 --q-heads 4 --kv-heads 2 --head-dim 64 --evict-budget 9 --evict-accumulate true", 7,
       "--evict-accumulate: given, but keydiff"},
      {"index create x --layers 2 --q-heads 4 --kv-heads 2 --head-dim 64 --evict-budget 9 --evict-scorer qfilters "
       "--evict-filters-file nowhere",
       5, "--evict-filters-file: "},
      {"evict m s --layer 1 --scorer qfilters", 7, "filters"},
      {"evict m s --layer 1 --scorer knorm --filters %filters", 2, "--filters: only the scorer qfilters"},
      {"diagnose m s --layer 1 --filters %filters", 2, "--filters: only the scorer qfilters"},
      {"evict m s --layer 2 --scorer qfilters --filters %filters", 2, "--layer: 2 is none of the 2 of m"},
      {"evict none s --layer 1 --scorer qfilters --filters %filters", 5, "no such index"},
      {"evict m s --layer 1 --scorer qfilters --filters %nowhere", 3, "nowhere"},
      {"evict m s --layer 1 --scorer qfilters --filters %foreign", 3, "foreign"},
      {"evict m s --layer 1 --scorer qfilters --filters %named", 3, "q_filters"},
      {"evict m s --layer 1 --scorer qfilters --filters %narrow", 3, "[2 layers, 2 KV heads, 64]"},
  };
  for (const auto& c : cases) {
    const Outcome outcome = Seine(c.line);
    EXPECT_EQ(outcome.exit_code, c.exit_code) << c.line << ": " << outcome.err;
    EXPECT_TRUE(absl::StrContains(outcome.err, c.says)) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
}

}  // namespace
}  // namespace seine
