// Profiles of a server: found by name, by the model's name, read once; every way in which one can be wrong.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "absl/strings/match.h"
#include "profile/io/tensor_writer.h"
#include "service/catalog.h"
#include "service/config/config.h"
#include "service/profiles.h"
#include "tests/index/synthetic_model.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

using grpc::StatusCode;

Geometry FixtureGeometry(int layers = kLayers) {
  return {.num_layers = layers,
          .num_q_heads = kQHeads,
          .num_kv_heads = kKvHeads,
          .head_dim = kDim,
          .dtype = DType::kFloat16};
}

// good, plain, observed (without RoPE), mixed (a layer does not turn); and files that are no profile of this geometry
// or none at all.
void WriteProfiles(const std::string& folder) {
  std::filesystem::create_directory(folder);
  const seine::testing::MadeUpModel model(FixtureGeometry());
  Profile profile = *model.Measure(512);
  const auto write = [&](const Profile& p, const std::string& file) {
    const absl::Status status = WriteProfile(p, ProfilePrecision::kFloat32, folder + "/" + file);
    ASSERT_TRUE(status.ok()) << status;
  };
  write(profile, "good.profile.safetensors");
  write(profile, "plain.safetensors");
  profile.layer_ropes_json = R"([{"layers": [1], "rope": {"rope_type": "none"}}])";
  write(profile, "mixed.profile.safetensors");
  profile.layer_ropes_json.clear();
  write(profile, "torn.profile.safetensors");
  std::filesystem::resize_file(folder + "/torn.profile.safetensors", 5000);
  write(*seine::testing::MadeUpModel(FixtureGeometry(kLayers + 1)).Measure(512), "foreign.profile.safetensors");
  profile.rope_json.clear();
  write(profile, "observed.profile.safetensors");
  std::ofstream(folder + "/garbage.safetensors") << "not a tensor file";
  const std::string floats(8, '\0');
  const OutputTensor tensor = {"layers.0.k", TensorFile::Type::kF16, {4}, floats};
  ASSERT_TRUE(WriteTensors({tensor}, {{"format", "seine-trace-1"}}, folder + "/trace.safetensors").ok());
  std::filesystem::copy_file(folder + "/trace.safetensors", folder + "/renamed.profile.safetensors");
  std::ofstream(folder + "/notes.txt") << "not listed";
}

class ProfilesTest : public ServerTest {
 protected:
  void SetUp() override {
    WriteProfiles(folder());
    ServerTest::SetUp();
  }
  ServerOptions Options() const override {
    ServerOptions options = ServerTest::Options();
    options.core.profiles = *Profiles::Open(folder());
    return options;
  }
  std::string folder() const { return dir_.path + "/profiles"; }

  grpc::Status Create(const v1::IndexSpec& spec, v1::IndexSpec* made = nullptr) {
    v1::CreateIndexRequest request;
    v1::CreateIndexResponse response;
    *request.mutable_spec() = spec;
    const grpc::Status status = Call(*stubs_->index, &v1::IndexService::Stub::CreateIndex, request, &response);
    if (made != nullptr) *made = response.index().spec();
    return status;
  }
};

TEST_P(ProfilesTest, AreListedByName) {
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(Call(*stubs_->admin, &v1::AdminService::Stub::GetServerInfo, v1::GetServerInfoRequest(), &info).ok());
  const std::vector<std::string> names(info.profiles().begin(), info.profiles().end());
  EXPECT_EQ(names, (std::vector<std::string>{"foreign", "good", "mixed", "observed", "plain"}));
}

TEST_P(ProfilesTest, WhatIsNoProfileIsPassedOver) {
  const std::vector<std::string> files = server_->core().options.profiles->List().passed_over;
  ASSERT_EQ(files.size(), 3u) << files.back();  // trace.safetensors is what it says: nothing to warn of
  EXPECT_EQ(files[0].rfind("garbage.safetensors: neither", 0), 0u) << files[0];
  EXPECT_EQ(files[1].rfind("renamed.profile.safetensors: not a profile", 0), 0u) << files[1];
  EXPECT_EQ(files[2].rfind("torn.profile.safetensors: cut short", 0), 0u) << files[2];
  for (const std::string& file : files) EXPECT_EQ(file.find(dir_.path), std::string::npos);
}

// A trace is nobody's profile; a file that cannot be read may be the model's, and nothing is put in its place.
TEST_P(ProfilesTest, AModelsNameMayMeetWhatIsNoProfile) {
  v1::IndexSpec spec = Spec("traced"), made;
  spec.set_model("trace");
  ASSERT_TRUE(Create(spec, &made).ok());
  EXPECT_EQ(made.codec().name(), "rsq");
  spec.set_model("torn");
  spec.set_name("torn");
  const grpc::Status status = Create(spec);
  EXPECT_EQ(status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DetailsOf(status).field, "spec.codec.profile");
}

TEST_P(ProfilesTest, AnIndexThatNamesOneIsBalanced) {
  v1::IndexSpec spec = Spec("balanced"), made;
  spec.mutable_codec()->set_profile("good");
  const grpc::Status status = Create(spec, &made);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(made.codec().name(), "balanced");
  EXPECT_EQ(made.codec().profile(), "good");
  EXPECT_EQ(made.codec().horizon(), kDefaultHorizon);
  EXPECT_EQ(made.codec().coarse_bits(), 1);
  EXPECT_EQ(made.codec().total_bits(), 2);
  EXPECT_EQ(made.geometry().rope().inv_freq_size(), kDim / 2);  // the profile's own
  EXPECT_EQ(made.geometry().rope().style(), v1::ROPE_STYLE_HALF_SPLIT);

  made.set_name("again");  // what the server says of an index makes the same index
  v1::IndexSpec twin;
  ASSERT_TRUE(Create(made, &twin).ok());
  EXPECT_EQ(twin.SerializeAsString(), made.SerializeAsString());

  const v1::SequenceHandle handle = NewSequence("balanced");
  ASSERT_TRUE(Append(Item(handle, 0, 0, 600)).ok());
  v1::DescribeHeadRequest describe;
  v1::DescribeHeadResponse head;
  *describe.mutable_handle() = handle;
  ASSERT_TRUE(Call(*stubs_->admin, &v1::AdminService::Stub::DescribeHead, describe, &head).ok());
  EXPECT_EQ(head.codec(), "balanced");
  EXPECT_EQ(head.profile(), "good");
  EXPECT_EQ(head.position(), 512);
  EXPECT_EQ(head.horizon(), kDefaultHorizon);
  EXPECT_EQ(head.lambda().shape(0), kDim);
  EXPECT_EQ(head.lambda().raw().size(), kDim * sizeof(float));
  v1::RetrieveRequest retrieve;
  v1::RetrieveResponse answer;
  *retrieve.add_items() = Query(handle, 0);
  ASSERT_TRUE(Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Retrieve, retrieve, &answer).ok());
  EXPECT_EQ(answer.answers(0).path(), v1::SEARCH_MODE_INDEX);
}

TEST_P(ProfilesTest, LayersOfAProfileKeepTheirRope) {
  v1::IndexSpec spec = Spec("mixed"), made, twin;
  spec.mutable_codec()->set_profile("mixed");
  const grpc::Status status = Create(spec, &made);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(made.geometry().layer_ropes_size(), 1);
  EXPECT_EQ(made.geometry().layer_ropes(0).layers_size(), 1);
  EXPECT_EQ(made.geometry().layer_ropes(0).layers(0), 1);
  for (const double w : made.geometry().layer_ropes(0).rope().inv_freq()) EXPECT_EQ(w, 0);
  made.set_name("again");
  ASSERT_TRUE(Create(made, &twin).ok());
  EXPECT_EQ(twin.SerializeAsString(), made.SerializeAsString());

  spec.set_name("whole");  // RoPE is stated, and of all layers
  spec.mutable_geometry()->mutable_rope()->set_config_json(R"({"rope_theta": 10000})");
  EXPECT_TRUE(absl::StrContains(Create(spec).error_message(), "layer 1 turns 32 of 32 pairs"))
      << Create(spec).error_message();
}

TEST_P(ProfilesTest, TheModelsNameFindsOne) {
  struct Case {
    std::string name, model;
    std::function<void(v1::IndexSpec*)> change;
    std::string codec;
  };
  const auto nothing = [](v1::IndexSpec*) {};
  const Case cases[] = {
      {"a", "good", nothing, "balanced"},
      {"b", "somebody/good", nothing, "balanced"},
      {"c", "somebody/else", nothing, "rsq"},
      {"d", "", nothing, "rsq"},
      {"e", "good", [](v1::IndexSpec* s) { s->mutable_codec()->set_name("rsq"); }, "rsq"},
      {"f", "good", [](v1::IndexSpec* s) { s->mutable_codec()->set_centre(v1::CENTRE_NONE); }, "rsq"},
      {"g", "good", [](v1::IndexSpec* s) { s->mutable_retrieval()->set_coarse(v1::COARSE_COLLISION); }, "rsq"},
      {"h", "good", [](v1::IndexSpec* s) { s->mutable_codec()->set_name("balanced"); }, "balanced"},
      {"i", "good", [](v1::IndexSpec* s) { s->mutable_codec()->set_profile("plain"); }, "balanced"},
  };
  for (const Case& c : cases) {
    v1::IndexSpec spec = Spec(c.name), made;
    spec.set_model(c.model);
    c.change(&spec);
    const grpc::Status status = Create(spec, &made);
    ASSERT_TRUE(status.ok()) << c.name << ": " << status.error_message();
    EXPECT_EQ(made.codec().name(), c.codec) << c.name;
    EXPECT_EQ(made.codec().profile(), c.name == "i" ? "plain" : c.codec == "rsq" ? "" : "good");
    EXPECT_EQ(made.model(), c.model);
  }
}

TEST_P(ProfilesTest, AreReadOnceAndAgainWhereTheyCouldNotBe) {
  v1::IndexSpec spec = Spec("first");
  spec.mutable_codec()->set_profile("good");
  ASSERT_TRUE(Create(spec).ok());
  const auto first = server_->core().catalog.Find("", "first")->config().codec.profile;
  std::filesystem::remove(folder() + "/plain.safetensors");
  spec.set_name("second");
  ASSERT_TRUE(Create(spec).ok());
  EXPECT_EQ(server_->core().catalog.Find("", "second")->config().codec.profile, first);

  spec.set_name("third");
  spec.mutable_codec()->set_profile("torn");
  EXPECT_EQ(Create(spec).error_code(), StatusCode::FAILED_PRECONDITION);
  std::filesystem::copy_file(folder() + "/good.profile.safetensors", folder() + "/torn.profile.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(Create(spec).ok());
}

TEST_P(ProfilesTest, WithoutRopeMomentsAreAsObserved) {
  v1::IndexSpec spec = Spec("observed"), made;
  spec.mutable_codec()->set_profile("observed");
  ASSERT_TRUE(Create(spec, &made).ok());
  EXPECT_FALSE(made.geometry().has_rope());
}

TEST_P(ProfilesTest, EveryWrongSettingIsNamedAndMakesNoIndex) {
  struct Case {
    StatusCode code;
    std::string field, says;
    std::function<void(v1::IndexSpec*)> spoil;
  };
  const auto codec = [](auto set) { return [set](v1::IndexSpec* s) { set(s->mutable_codec()); }; };
  const auto rope = [](auto set) { return [set](v1::IndexSpec* s) { set(s->mutable_geometry()->mutable_rope()); }; };
  const auto others = [](std::vector<int> layers, std::string json) {
    return [=](v1::IndexSpec* s) {
      s->mutable_geometry()->mutable_rope()->set_config_json(R"({"rope_theta": 10000})");
      v1::LayerRope* const own = s->mutable_geometry()->add_layer_ropes();
      own->mutable_layers()->Assign(layers.begin(), layers.end());
      own->mutable_rope()->set_config_json(json);
    };
  };
  using Codec = v1::CodecSettings;
  const StatusCode bad = StatusCode::INVALID_ARGUMENT;
  const Case cases[] = {
      {StatusCode::NOT_FOUND, "codec.profile", "there are foreign", codec([](Codec* c) { c->set_profile("other"); })},
      {StatusCode::NOT_FOUND, "codec.profile", "", codec([](Codec* c) { c->set_profile("notes"); })},
      {bad, "codec.profile", "letters", codec([](Codec* c) { c->set_profile("../good"); })},
      {bad, "codec.profile", "letters", codec([](Codec* c) { c->set_profile("/etc/passwd"); })},
      {StatusCode::FAILED_PRECONDITION, "codec.profile", "", codec([](Codec* c) { c->set_profile("torn"); })},
      {StatusCode::FAILED_PRECONDITION, "codec.profile", "", codec([](Codec* c) { c->set_profile("garbage"); })},
      {bad, "codec.profile", "layers", codec([](Codec* c) { c->set_profile("foreign"); })},
      {bad, "codec.profile", "needs one", codec([](Codec* c) { c->clear_profile(), c->set_name("balanced"); })},
      {bad, "codec.profile", "only balanced", codec([](Codec* c) { c->set_name("rsq"); })},
      {bad, "codec.name", "there are rsq and balanced", codec([](Codec* c) { c->set_name("pq"); })},
      {bad, "codec.horizon", "511", codec([](Codec* c) { c->set_horizon(511); })},
      {bad, "codec.horizon", "geometry.rope is not",
       codec([](Codec* c) { c->set_profile("observed"), c->set_horizon(4096); })},
      {bad, "codec.horizon", "only balanced", codec([](Codec* c) { c->clear_profile(), c->set_horizon(4096); })},
      {bad, "codec.coarse_bits", "0.7", codec([](Codec* c) { c->set_coarse_bits(.7); })},
      {bad, "codec.total_bits", "5", codec([](Codec* c) { c->set_total_bits(5); })},
      {bad, "codec.total_bits", "1", codec([](Codec* c) { c->set_total_bits(1); })},
      {bad, "codec.centre", "window", codec([](Codec* c) { c->set_centre(v1::CENTRE_GLOBAL); })},
      {bad, "codec.centre_window", "65", codec([](Codec* c) { c->set_centre_window(65); })},
      {bad, "retrieval.coarse", "sign_ip",
       [](v1::IndexSpec* s) { s->mutable_retrieval()->set_coarse(v1::COARSE_COLLISION); }},
      {bad, "geometry.rope", "give inv_freq", rope([](v1::Rope*) {})},
      {bad, "geometry.rope", "not both", rope([](v1::Rope* r) { r->add_inv_freq(1), r->set_config_json("{}"); })},
      {bad, "geometry.rope.inv_freq", "1 frequencies", rope([](v1::Rope* r) { r->add_inv_freq(1); })},
      {bad, "geometry.rope.inv_freq", "no frequency", rope([](v1::Rope* r) {
         for (int i = 0; i < kDim / 2; ++i) r->add_inv_freq(-1);
       })},
      {bad, "geometry.rope.style", "no such value",
       rope([](v1::Rope* r) { r->set_style(static_cast<v1::RopeStyle>(9)); })},
      {bad, "geometry.rope.config_json", "", rope([](v1::Rope* r) { r->set_config_json("{"); })},
      {bad, "geometry.rope.config_json", "is nested more than 64 levels deep",
       rope([](v1::Rope* r) { r->set_config_json("{\"rope_theta\": " + std::string(1'000'000, '[')); })},
      {bad, "geometry.rope.config_json", "is nested more than 64 levels deep", rope([](v1::Rope* r) {
         r->set_config_json("{\"rope_theta\": " + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}");
       })},
      {bad, "geometry.rope.config_json", "ntk",
       rope([](v1::Rope* r) { r->set_config_json(R"({"rope_theta": 10000, "rope_type": "ntk"})"); })},
      {bad, "geometry.rope.rotary_dim", "config_json states it",
       rope([](v1::Rope* r) { r->set_config_json(R"({"rope_theta": 10000})"), r->set_rotary_dim(32); })},
      {bad, "geometry.rope.rotary_dim", "31 is no even number", rope([](v1::Rope* r) {
         for (int i = 0; i < kDim / 2; ++i) r->add_inv_freq(1);
         r->set_rotary_dim(31);
       })},
      {bad, "geometry.rope.inv_freq", "behind rotary_dim 32", rope([](v1::Rope* r) {
         for (int i = 0; i < kDim / 2; ++i) r->add_inv_freq(1);
         r->set_rotary_dim(32);
       })},
      {bad, "geometry.layer_ropes[0].layers", "layer 2 is not in [0, 2)", others({2}, R"({"rope_type": "none"})")},
      {bad, "geometry.layer_ropes[0].layers", "layer -1 is not in [0, 2)", others({-1}, R"({"rope_type": "none"})")},
      {bad, "geometry.rope.inv_freq", "more than a head has", rope([](v1::Rope* r) {
         for (int i = 0; i < 100'000; ++i) r->add_inv_freq(1);
       })},
      {bad, "geometry.layer_ropes[0].rope.config_json", "rope_theta: is missing", others({0}, "{}")},
      {bad, "geometry.layer_ropes[0].layers", "layer 0 is stated twice", others({0, 0}, R"({"rope_type": "none"})")},
      {bad, "geometry.layer_ropes", "layer 0 turns 0 of", others({0}, R"({"rope_type": "none"})")},
      {bad, "geometry.layer_ropes", "layer 0: pairs other coordinates",
       others({0}, R"({"rope_theta": 10000, "partial_rotary_factor": 0.5})")},
      {bad, "geometry.layer_ropes[0]", "rope is not",
       [](v1::IndexSpec* s) {
         s->mutable_geometry()->add_layer_ropes()->mutable_rope()->set_config_json(R"({"rope_type": "none"})");
       }},
      {bad, "model", "129 characters", [](v1::IndexSpec* s) { s->set_model(std::string(129, 'm')); }},
  };
  const std::string before = Digest();
  for (const Case& c : cases) {
    v1::IndexSpec spec = Spec("wrong");
    spec.mutable_codec()->set_profile("good");
    c.spoil(&spec);
    const grpc::Status status = Create(spec);
    EXPECT_EQ(status.error_code(), c.code) << c.field << ": " << status.error_message();
    EXPECT_EQ(DetailsOf(status).field, "spec." + c.field) << status.error_message();
    EXPECT_EQ(status.error_message().rfind("spec." + c.field + ": ", 0), 0u) << status.error_message();
    EXPECT_NE(status.error_message().find(c.says), std::string::npos) << c.says << " | " << status.error_message();
    EXPECT_EQ(status.error_message().find(dir_.path), std::string::npos) << status.error_message();
    EXPECT_EQ(status.error_message().find('\n'), std::string::npos);
  }
  EXPECT_EQ(Digest(), before);
}

INSTANTIATE_TEST_SUITE_P(Serving, ProfilesTest, ::testing::Bool(),
                         [](const auto& serving) { return serving.param ? "Polling" : "Default"; });

// A file's index names a profile of the folder that the file, or a later layer, names; what is printed reads back.
TEST(ProfilesConfig, AFilesIndexesMayNameProfiles) {
  const TempDir dir;
  WriteProfiles(dir.path + "/profiles");
  const std::string path = dir.path + "/seined.yaml";
  std::ofstream(path)
      << "server: {listen: 'unix:/tmp/x.sock'}\n"
         "indexes:\n"
         "  - name: a\n"
         "    geometry: {num_layers: 2, num_q_heads: 4, num_kv_heads: 2, head_dim: 64, dtype: float16,\n"
         "               rope: {style: interleaved, config_json: '{\"rope_theta\": 500000}'}}\n"
         "    codec: {profile: good, horizon: 8192}\n";
  ServerConfig config;
  ASSERT_TRUE(ApplyYaml(path, &config).ok());
  ServerConfig without = config;
  EXPECT_EQ(std::string(Resolve(&without).message()),
            path + ": indexes[0].codec.profile: the server has no folder of profiles (--profiles)");
  ASSERT_TRUE(ApplyFlags({{"server.profiles", dir.path + "/profiles"}}, &config).ok());
  ASSERT_TRUE(Resolve(&config).ok());
  const IndexConfig& index = config.server.indexes.at(0);
  EXPECT_EQ(index.codec.name, "balanced");
  EXPECT_EQ(index.codec.horizon, 8192);
  EXPECT_EQ(index.geometry.rope.style, Rope::Style::kInterleaved);
  EXPECT_NEAR(index.geometry.rope.inv_freq.at(1), std::pow(500000, -2.0 / 64), 1e-12);

  const std::string printed = ToYaml(config);
  std::ofstream(path) << printed;
  ServerConfig again;
  ASSERT_TRUE(ApplyYaml(path, &again).ok()) << printed;
  ASSERT_TRUE(Resolve(&again).ok()) << printed;
  EXPECT_EQ(ToYaml(again), printed);

  config.profiles = dir.path + "/nowhere";
  EXPECT_NE(Resolve(&config).message().find("server.profiles: '"), std::string::npos);
}

// A process that serves itself names files, which lie anywhere.
TEST(ProfilesByFile, AreFoundByTheFilesName) {
  TempDir dir;
  const std::string folder = dir.path + "/profiles", other = dir.path + "/good.safetensors";
  WriteProfiles(folder);
  Profiles profiles;
  EXPECT_EQ(profiles.Find("good", "f").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*profiles.Add(folder + "/good.profile.safetensors"), "good");
  EXPECT_EQ(*profiles.Add(folder + "/../profiles/good.profile.safetensors"), "good");  // the same file
  EXPECT_EQ(*profiles.Add(folder + "/plain.safetensors"), "plain");
  EXPECT_EQ(profiles.Names(), (std::vector<std::string>{"good", "plain"}));
  EXPECT_TRUE(profiles.Has("good"));
  EXPECT_TRUE(profiles.Find("good", "f").ok());
  std::filesystem::copy_file(folder + "/plain.safetensors", other);
  EXPECT_EQ(profiles.Add(other).status().code(), absl::StatusCode::kAlreadyExists);
  for (const char* wrong : {"nowhere.profile.safetensors", "trace.safetensors", "garbage.safetensors", "notes.txt"}) {
    const absl::Status status = profiles.Add(folder + "/" + wrong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_NE(status.message().find(wrong), std::string::npos) << status;
  }
  EXPECT_EQ(profiles.Find("nope", "f").status().message(), "f: no such profile; there are good, plain");
}

TEST(ProfilesByFile, GoBeforeThoseOfTheFolder) {
  TempDir dir;
  const std::string folder = dir.path + "/profiles", other = dir.path + "/foreign.safetensors";
  WriteProfiles(folder);
  std::filesystem::copy_file(folder + "/plain.safetensors", other);
  const auto profiles = *Profiles::Open(folder);
  EXPECT_EQ((*profiles->Find("foreign", "f"))->num_layers(), kLayers + 1);
  profiles->Forget();
  ASSERT_TRUE(profiles->Add(other).ok());
  EXPECT_EQ((*profiles->Find("foreign", "f"))->num_layers(), kLayers);
  EXPECT_EQ(profiles->Names(), (std::vector<std::string>{"foreign", "good", "mixed", "observed", "plain"}));
}

}  // namespace
}  // namespace seine::test
