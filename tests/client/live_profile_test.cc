// A profile from what a server saw, over the committed trace: measured by `seine calibrate --index`, served by name,
// and as good as one measured on the recording. And every way in which there is nothing to measure.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/settings.h"
#include "profile/io/tensor_file.h"
#include "profile/moments.h"
#include "profile/profile.h"
#include "tests/client/process.h"
#include "tests/client/random_model.h"

namespace seine {
namespace {

using Json = nlohmann::json;

constexpr int kTraceLayers[] = {4, 15, 26};  // of the model; 0 to 2 of the index
constexpr int kTraceQHeads = 9, kTraceKvHeads = 3, kTraceDim = 64;
constexpr int64_t kTraceTokens = 8192, kFirstQuery = 7680, kSink = 16;
constexpr int64_t kLearnt = 256;  // decode steps that the profile is measured after; the others are asked for recall

class LiveProfileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(profiles_);
    server_ = std::make_unique<Server>(std::vector<std::string>{"--profiles", profiles_});
    client_ = server_->Connect();
    ASSERT_NE(client_, nullptr);
  }

  Outcome Seine(const std::string& line) const {
    std::vector<std::string> arguments = {SEINE_PROGRAM, "--server", server_->endpoint()};
    for (const absl::string_view part : absl::StrSplit(line, ' ', absl::SkipEmpty())) arguments.emplace_back(part);
    return RunProgram(arguments);
  }

  std::string PathOf(const std::string& name) const { return absl::StrCat(profiles_, "/", name, ".safetensors"); }

  // An index of the trace's three layers.
  void CreateIndex(const std::string& name, const std::string& profile, v1::KvStore store) const {
    v1::IndexSpec spec;
    spec.set_name(name);
    *spec.mutable_geometry() = client::MakeGeometry(3, kTraceQHeads, kTraceKvHeads, kTraceDim, client::DType::kFloat16);
    spec.mutable_geometry()->mutable_rope()->set_config_json(trace_.metadata().at("rope"));
    spec.mutable_zones()->set_sink(kSink);
    spec.mutable_zones()->set_local(512);
    spec.mutable_zones()->set_update_buffer(64);
    spec.mutable_zones()->set_dense_threshold(0);
    spec.mutable_retrieval()->set_scope(v1::SCOPE_PER_Q_HEAD);
    spec.mutable_retrieval()->set_top_k(100);
    spec.mutable_retrieval()->set_candidate_fraction(.02);
    spec.mutable_retrieval()->set_rescore_k(300);
    spec.set_kv_store(store);
    if (!profile.empty()) spec.mutable_codec()->set_profile(profile), spec.mutable_codec()->set_horizon(4096);
    const auto made = client_->CreateIndex(spec);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(made->spec().codec().name(), profile.empty() ? "rsq" : "balanced");
    ASSERT_TRUE(client_->CreateSequence(name, "s").ok());
  }

  client::ConstTensor Tokens(int layer, const char* kind, int64_t first, int64_t count) const {
    const TensorFile::Tensor tensor = *trace_.Get(absl::StrCat("layers.", kTraceLayers[layer], ".", kind));
    return {tensor.data + first * kTraceKvHeads * kTraceDim * 2,
            client::DType::kFloat16,
            {count, kTraceKvHeads, kTraceDim}};
  }
  // [9, 64], of the decode step at position kFirstQuery + step.
  client::ConstTensor Query(int layer, int64_t step) const {
    const TensorFile::Tensor tensor = *trace_.Get(absl::StrCat("layers.", kTraceLayers[layer], ".q"));
    return {tensor.data + step * kTraceQHeads * kTraceDim * 2, client::DType::kFloat16, {kTraceQHeads, kTraceDim}};
  }

  void Append(const std::string& index, int64_t first, int64_t count, bool with_values) const {
    for (int layer = 0; layer < 3; ++layer) {
      client::AppendItem item{{index, "s"}, layer, first, Tokens(layer, "k", first, count), {}};
      if (with_values) item.values = Tokens(layer, "v", first, count);
      const auto totals = client_->AppendStream({&item, 1});
      ASSERT_TRUE(totals.ok()) << totals.status();
    }
  }

  // Over the last steps and all heads; the sequence must be whole.
  double Recall(const std::string& index) const {
    double found = 0, of = 0;
    for (int64_t step = kLearnt; step < 512; step += 16) {
      for (int layer = 0; layer < 3; ++layer) {
        const client::RetrieveItem item{{index, "s"}, layer, Query(layer, step)};
        v1::Selector exact;
        exact.set_exact(true);
        const client::Answer got = client_->Retrieve({&item, 1}, {})->answers[0];
        const client::Answer truth = client_->Retrieve({&item, 1}, exact)->answers[0];
        EXPECT_TRUE(got.status.ok() && truth.status.ok());
        for (int set = 0; set < truth.num_sets; ++set) {
          const std::set<int32_t> held(got.set(set).begin(), got.set(set).end());
          for (const int32_t position : truth.set(set)) found += static_cast<double>(held.count(position));
          of += static_cast<double>(truth.set(set).size());
        }
      }
    }
    return found / of;
  }

  const TempFolder folder_;
  const std::string profiles_ = folder_.Path("profiles");
  const TensorFile trace_ = *TensorFile::Open(SEINE_TRACE);
  std::unique_ptr<Server> server_;
  std::unique_ptr<client::Client> client_;
};

// As the engine's decode steps would: a token appended, then its query asked.
TEST_F(LiveProfileTest, IsAsGoodAsOneOfTheRecording) {
  CreateIndex("first", "", v1::KV_STORE_KEYS_VALUES);
  Append("first", 0, kFirstQuery, true);
  for (int64_t step = 0; step < kLearnt; ++step) {
    Append("first", kFirstQuery + step, 1, true);
    for (int layer = 0; layer < 3; ++layer) {
      const client::RetrieveItem item{{"first", "s"}, layer, Query(layer, step)};
      ASSERT_TRUE(client_->Retrieve({&item, 1}, {})->answers[0].status.ok());
    }
  }
  const Outcome made =
      Seine(absl::StrCat("calibrate --index first --sequence s --licence any -o json --out ", PathOf("live")));
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Json json = Json::parse(made.out, nullptr, false);
  EXPECT_EQ(json["num_layers"], 3);
  EXPECT_EQ(json["texts"][0], "sequence s of index first");
  EXPECT_EQ(json["key_tokens"], (kFirstQuery + kLearnt - kSink) / 64 * 64);
  EXPECT_EQ(json["query_tokens"], 128);

  // The recording's: all that the server has seen, in full.
  const Rope rope = *ParseRope(trace_.metadata().at("rope"), kTraceDim, Rope::Style::kHalfSplit, kTraceTokens);
  ProfileBuilder builder(3, kTraceQHeads, kTraceKvHeads, kTraceDim);
  for (int layer = 0; layer < 3; ++layer) {
    const std::string name = absl::StrCat("layers.", kTraceLayers[layer]);
    const int64_t row = kTraceKvHeads * kTraceDim, count = kFirstQuery + kLearnt - kSink;
    builder.AddKeys(layer, TensorFile::ToFloat32(*trace_.Get(name + ".k"), kSink * row, count * row)->data(), count,
                    kSink, rope);
    builder.AddQueries(layer,
                       TensorFile::ToFloat32(*trace_.Get(name + ".q"), 0, kLearnt * kTraceQHeads * kTraceDim)->data(),
                       kLearnt, kFirstQuery, rope);
  }
  Profile recorded = *builder.Finish();
  recorded.rope_json = trace_.metadata().at("rope");
  ASSERT_TRUE(WriteProfile(recorded, ProfilePrecision::kFloat16, PathOf("recorded")).ok());

  double recall[2];
  for (const bool live : {false, true}) {
    const std::string name = live ? "live" : "recorded";
    CreateIndex(name, name, v1::KV_STORE_KEYS);
    Append(name, 0, kTraceTokens, false);
    recall[live] = Recall(name);
  }
  RecordProperty("recorded", std::to_string(recall[0]));
  RecordProperty("live", std::to_string(recall[1]));
  EXPECT_GT(recall[1], .97);
  EXPECT_GT(recall[1], recall[0] - .005);
  EXPECT_FALSE(ReadProfile(PathOf("live"))->layers[2].v_moment.empty());
  const Outcome shown = Seine("profile show " + PathOf("live") + " --layer 1");
  EXPECT_TRUE(absl::StrContains(shown.out, "a table of 32 frequencies")) << shown.out << shown.err;
}

TEST_F(LiveProfileTest, WithoutRopeMomentsAreAsObserved) {
  const RandomModel model(600);
  ASSERT_TRUE(client_->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS)).ok());
  ASSERT_TRUE(client_->CreateSequence("m", "s").ok());
  for (int layer = 0; layer < 2; ++layer) {
    const client::AppendItem item{{"m", "s"}, layer, 0, model.Keys(layer, 0, 600), {}};
    ASSERT_TRUE(client_->Append(item).ok());
    const client::RetrieveItem asked{{"m", "s"}, layer, model.Query()};
    ASSERT_TRUE(client_->Retrieve({&asked, 1}, {})->answers[0].status.ok());
  }
  const Outcome made = Seine("calibrate --index m --sequence s --out " + PathOf("m"));
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_TRUE(absl::StrContains(made.out, "not stated: moments as observed")) << made.out;
  EXPECT_TRUE(absl::StrContains(made.out, "not measured")) << made.out;
  EXPECT_TRUE(ReadProfile(PathOf("m"))->layers[1].v_mean.empty());
}

TEST_F(LiveProfileTest, ErrorsAreOneLineWithAnExitCodeOfTheirClass) {
  const RandomModel model(600);
  for (const auto& [name, store] : {std::pair("m", v1::KV_STORE_KEYS), {"none", v1::KV_STORE_NONE}}) {
    ASSERT_TRUE(client_->CreateIndex(RandomModel::Spec(name, store)).ok());
    ASSERT_TRUE(client_->CreateSequence(name, "s").ok());
    ASSERT_TRUE(client_->CreateSequence(name, "empty").ok());
    const client::AppendItem item{{name, "s"}, 0, 0, model.Keys(0, 0, 600), {}};
    ASSERT_TRUE(client_->Append(item).ok());
  }
  const struct {
    const char* arguments;
    int exit_code;
    const char* part;
  } cases[] = {
      {"--index m", 2, "--sequence"},
      {"--sequence s", 2, "--index"},
      {"", 2, "--trace, or --index and --sequence"},
      {"--index m --sequence s --trace t", 2, "excludes"},
      {"--index m --sequence s --sink 3", 2, "excludes"},
      {"--index other --sequence s", 5, "no such index: 'other' (name)"},
      {"--index m --sequence other", 5, "--sequence: not found: 'other' (sequences[0])"},
      {"--index m --sequence s,other", 5, "--sequence: not found: 'other' (sequences[1])"},
      {"--index m --sequence empty", 7, "m: --sequence: layer 0 holds no 64 tokens beyond the sink"},
      {"--index m --sequence s", 7, "m: --sequence: no query of layer 0 was seen"},
      {"--index none --sequence s", 7, "none: --sequence: the index keeps no keys that could be measured (sequences)"},
  };
  for (const auto& test : cases) {
    const Outcome outcome = Seine(absl::StrCat("calibrate --out ", PathOf("x"), " ", test.arguments));
    EXPECT_EQ(outcome.exit_code, test.exit_code) << test.arguments << ": " << outcome.err;
    EXPECT_TRUE(absl::StrContains(outcome.err, test.part)) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(PathOf("x")));
  }
}

}  // namespace
}  // namespace seine
