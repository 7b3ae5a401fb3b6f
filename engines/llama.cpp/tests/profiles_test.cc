// Profiles in an unmodified llama.cpp: measured, found and used. Settings are read once a process, so that each run has
// one of its own.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "engines/llama.cpp/random_model.h"
#include "engines/llama.cpp/tests/fixtures/context_pair.h"
#include "engines/llama.cpp/tests/fixtures/loaded_plugin.h"
#include "engines/llama.cpp/tests/fixtures/one_context.h"
#include "llama.h"
#include "profile/moments.h"
#include "profile/profile.h"
#include "profile/rope.h"

namespace seine::llama {
namespace {

// What llama.cpp's converter writes as rope_freqs.weight for Llama 3.1: long waves turn eight times slower, short ones
// as they did, those between in between (its config.json's rope_scaling of type llama3, with 8,192 original positions).
std::vector<float> Llama3Factors(const ModelShape& shape) {
  std::vector<float> factors;
  for (int i = 0; i < shape.head_dim / 2; ++i) {
    const double wave = 2 * M_PI * std::pow(shape.rope_base, 2.0 * i / shape.head_dim);
    const double smooth = std::clamp((8192 / wave - 1) / (4 - 1), 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / ((1 - smooth) / 8 + smooth)));
  }
  return factors;
}

// What the converter writes of Gemma 4, of whose full layers' pairs the first quarter turns.
std::vector<float> OfAQuarter(const ModelShape& shape) {
  std::vector<float> factors(shape.head_dim / 2, 1e30f);
  std::fill_n(factors.begin(), shape.head_dim / 8, 1.0f);
  return factors;
}

llama_flash_attn_type FlashAttention() {
  const char* text = std::getenv("TEST_FLASH");
  if (text == nullptr) return LLAMA_FLASH_ATTN_TYPE_ENABLED;
  if (std::string(text) == "auto") return LLAMA_FLASH_ATTN_TYPE_AUTO;
  return std::string(text) == "on" ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
}

// What processes of Profiles.* below run.
TEST(Apart, DecodesAText) {
  const char *architecture = std::getenv("TEST_ARCHITECTURE"), *base = std::getenv("TEST_ROPE_BASE");
  const char *tokens = std::getenv("TEST_TOKENS"), *token = std::getenv("TEST_TOKEN");
  const std::vector<llama_seq_id> sequences =
      std::getenv("TEST_STREAMS") == nullptr ? std::vector<llama_seq_id>{0} : std::vector<llama_seq_id>{0, 1};
  ModelShape shape = {.embedding = 256, .q_heads = 4, .kv_heads = 2};
  if (architecture != nullptr) shape.architecture = architecture;
  if (shape.architecture == "gemma3") shape.layers = 3;  // the first and the last slide
  if (const char* layers = std::getenv("TEST_LAYERS")) shape.layers = std::atoi(layers);
  if (const char* dim = std::getenv("TEST_HEAD_DIM")) shape.head_dim = std::atoi(dim);
  if (std::getenv("TEST_QUARTER") != nullptr) shape.rope_factors = OfAQuarter(shape);
  if (base != nullptr) shape.rope_base = static_cast<float>(std::atof(base));
  if (std::getenv("TEST_LLAMA3") != nullptr) shape.rope_factors = Llama3Factors(shape);
  const llama_token one = token == nullptr ? -1 : std::atoi(token);
  const CacheTypes types = std::getenv("TEST_Q8_0") == nullptr ? GGML_TYPE_F16 : GGML_TYPE_Q8_0;
  const Model model = MakeModel(shape);
  Pair pair(model.get(), 1024, static_cast<int>(sequences.size()), sequences.size() == 1, types, FlashAttention());
  for (int left = tokens == nullptr ? 700 : std::atoi(tokens); left > 0; left -= 200) {
    EXPECT_LT(pair.Decode(sequences, std::min(left, 200), one), Near(types));
  }
  for (int i = 0; i < 70; ++i) ASSERT_LT(pair.Decode(sequences, 1, one), Near(types)) << i;
}

// The logits of steps behind a text, by a context with room for so many cells.
std::vector<std::vector<float>> LogitsIn(llama_model* model, int cells) {
  constexpr int kPrompt = 1000, kSteps = 70;  // codes change at 1,024
  ThePlugin().set_mode(kSeine);
  OneContext context(model, {.cells = cells, .sequences = 1});
  for (int read = 0; read < kPrompt; read += 200) context.Decode({0}, RandomTokens(200, read, context.vocabulary()));
  std::vector<std::vector<float>> logits;
  for (int i = 0; i < kSteps; ++i) logits.push_back(context.Decode({0}, RandomTokens(1, i, context.vocabulary())));
  return logits;
}

TEST(InMoreRoom, LogitsAreTheSame) {
  const Model model = MakeModel({.embedding = 256, .q_heads = 4, .kv_heads = 2});
  const auto few = LogitsIn(model.get(), 2048);
  const int64_t encoded = ThePlugin().Count("encoded_keys");
  for (const int cells : {4096, 16384}) {
    const auto more = LogitsIn(model.get(), cells);
    for (size_t i = 0; i < few.size(); ++i) ASSERT_TRUE(few[i] == more[i]) << cells << " cells, step " << i;
  }
  EXPECT_EQ(ThePlugin().Count("encoded_keys"), 3 * encoded);
  // Without the text's growth, each key behind the sink is encoded once: of 2 layers, 2 heads.
  EXPECT_GT(encoded, 2 * 4 * (1070 - 64 - 64));
  EXPECT_EQ(ThePlugin().Count("stale_windows"), 0);
  EXPECT_GT(ThePlugin().Count("checked"), 0);
}

class Profiles : public ::testing::Test {
 protected:
  Profiles() { std::filesystem::create_directories(folder_); }
  ~Profiles() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  static std::string Contents(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Decodes with these variables set as well. said_, loaded_, ours_ and report_ become what it wrote.
  void Decode(const std::string& variables, const std::string& test = "Apart.*") {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
    const std::string command = variables + " SEINE_REPORT=" + Path("report") + " " + program +
                                " --gtest_filter=" + test + " > " + Path("out") + " 2> " + Path("err");
    EXPECT_EQ(std::system(command.c_str()), 0) << Contents(Path("out"));
    said_ = Contents(Path("err"));
    loaded_.clear(), ours_.clear();
    std::istringstream lines(said_);
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("seine: ggml ", 0) == 0) {
        loaded_ += line + "\n";
      } else if (line.rfind("seine: ", 0) == 0) {
        ours_ += line + "\n";
      }
    }
    report_ = Contents(Path("report"));
  }
  bool Said(const std::string& what) const { return said_.find(what) != std::string::npos; }
  bool Reported(const std::string& what) const { return report_.find(what) != std::string::npos; }

  const std::string folder_ = ::testing::TempDir() + "seine-profiles-" + std::to_string(getpid());
  std::string said_, report_;
  std::string loaded_, ours_;  // the plug-in's lines of what was said: when it was loaded, and behind that
};

TEST_F(Profiles, AMeasuredOneIsFoundAndUsed) {
  const std::string path = Path("tiny.profile.safetensors"), other = Path("other.safetensors");
  Decode("SEINE_CALIBRATE_TOKENS=600 SEINE_CALIBRATE=" + path);
  EXPECT_TRUE(Said("SEINE_CALIBRATE: " + path + ": a profile of 2 layers over ")) << said_;
  EXPECT_TRUE(Reported("\"answered\": 0, ") && Reported("\"codec\": \"\"")) << report_;
  EXPECT_EQ(ReadProfile(path)->model, "tiny");
  EXPECT_TRUE(loaded_.ends_with(": a profile is measured, and llama.cpp attends by itself\n")) << loaded_;

  Decode("SEINE_PROFILES=" + folder_);
  EXPECT_TRUE(Reported("\"codec\": \"balanced\", \"profile\": \"" + path + "\"")) << report_;
  EXPECT_TRUE(Reported("\"answered\": 140, ")) << report_;
  EXPECT_TRUE(
      loaded_.ends_with(", interface 2: tokens that attend over 256 cells or more are answered by an index, others by "
                        "llama.cpp itself\n"))
      << loaded_;
  EXPECT_EQ(ours_, "seine: attention over 701 cells is answered by the balanced code, profile " + path + "\n");

  Decode("TEST_ROPE_BASE=20000 SEINE_PROFILES=" + folder_);
  EXPECT_TRUE(Said("no profile is of this model (2 layers, 4 query heads, 2 KV heads, head_dim 64)")) << said_;
  EXPECT_TRUE(Reported("\"codec\": \"rsq\", \"profile\": \"\"")) << report_;

  std::filesystem::copy_file(path, other);
  std::ofstream(Path("damaged.profile.safetensors")) << "no tensors";
  Decode("SEINE_PROFILES=" + folder_);
  EXPECT_TRUE(Said("several profiles fit this model") && Said(other + ", " + path)) << said_;
  EXPECT_TRUE(Said("a profile is passed over: " + Path("damaged.profile.safetensors"))) << said_;
  EXPECT_TRUE(Reported("\"codec\": \"rsq\"")) << report_;

  Decode("SEINE_PROFILE=" + other + " SEINE_PROFILES=" + folder_);
  EXPECT_TRUE(Reported("\"codec\": \"balanced\", \"profile\": \"" + other + "\"")) << report_;
  EXPECT_EQ(ours_, "seine: attention over 701 cells is answered by the balanced code, profile " + other + "\n");
}

// Codes are made for the text that is held, not for the room that there is.
TEST_F(Profiles, CodesAreForTheText) {
  const std::string path = Path("tiny.profile.safetensors");
  Decode("SEINE_CALIBRATE=" + path);
  Decode("SEINE_PROFILE=" + path + " SEINE_MIN_KV=256 SEINE_TOP_K=20 SEINE_REFINE=40 SEINE_CHECK=1", "InMoreRoom.*");
  EXPECT_TRUE(Reported("\"codec\": \"balanced\"")) << report_ << said_;
}

TEST_F(Profiles, ASettingThatIsNoneIsSaid) {
  Decode("SEINE_PROMPT=maybe");
  EXPECT_TRUE(Said("seine: SEINE_PROMPT=maybe is none of exact, sparse, off; sparse is taken")) << said_;
}

// llama.cpp takes flash attention away where it is not asked for, since the plug-in's nodes lie on a device of its own.
TEST_F(Profiles, WithoutFlashAttentionNothingIsEncoded) {
  Decode("");
  EXPECT_EQ(ours_, "seine: attention over 701 cells is answered by the rsq code, no profile\n");
  for (const char* flash : {"auto", "off"}) {
    Decode(std::string("TEST_FLASH=") + flash);
    EXPECT_EQ(ours_, "seine: llama.cpp attends by itself: flash attention is off, which -fa on turns on\n") << flash;
    EXPECT_TRUE(Reported("\"answered\": 0, ") && Reported("\"encoded_keys\": 0, ")) << flash << report_;
    EXPECT_TRUE(Reported("\"flash attention is off, which -fa on turns on\": 140}")) << flash << report_;
  }
}

// Frequencies come of the GGUF's own factors: a profile states them, and Hugging Face's says the same by its config.
TEST_F(Profiles, FactorsOfFrequenciesAreTheModels) {
  const std::string path = Path("llama3.profile.safetensors");
  Decode("TEST_LLAMA3=1 SEINE_CALIBRATE=" + path);
  auto profile = ReadProfile(path);
  ASSERT_TRUE(profile.ok()) << profile.status() << said_;
  const std::string config =
      R"({"rope_theta": 10000, "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, )"
      R"("high_freq_factor": 4, "original_max_position_embeddings": 8192}})";
  const auto stated = ParseRope(profile->rope_json, 64, profile->rope_style, 1);
  const auto wanted = ParseRope(config, 64, profile->rope_style, 1);
  ASSERT_TRUE(stated.ok() && wanted.ok()) << stated.status() << wanted.status();
  for (size_t i = 0; i < 32; ++i) EXPECT_NEAR(stated->inv_freq[i] / wanted->inv_freq[i], 1, 1e-5) << i;

  profile->rope_json = config;  // as Hugging Face's states it
  ASSERT_TRUE(WriteProfile(*profile, ProfilePrecision::kFloat16, path).ok());
  Decode("TEST_LLAMA3=1 SEINE_PROFILES=" + folder_);
  EXPECT_TRUE(Reported("\"codec\": \"balanced\", \"profile\": \"" + path + "\"")) << report_ << said_;
  EXPECT_TRUE(Reported("\"answered\": 140, ")) << report_;
  EXPECT_TRUE(
      loaded_.ends_with(", interface 2: tokens that attend over 256 cells or more are answered by an index, others by "
                        "llama.cpp itself\n"))
      << loaded_;
  Decode("SEINE_PROFILES=" + folder_);  // the same model without them
  EXPECT_TRUE(Said("no profile is of this model")) << said_;
}

// A profile states one RoPE. In a model whose layers turn in two ways it serves the layers that turn by this one.
TEST_F(Profiles, LayersOfAnotherRopeAreLeftAlone) {
  const std::string path = Path("full.profile.safetensors");
  Decode("SEINE_CALIBRATE=" + path);
  Decode("TEST_ARCHITECTURE=gemma3 SEINE_PROFILE=" + path);
  EXPECT_TRUE(Reported("\"codec\": \"balanced\", \"profile\": \"" + path + "\"")) << report_ << said_;
  EXPECT_TRUE(Reported("\"answered\": 70, ")) << report_;
  EXPECT_TRUE(Reported("\"a layer of another RoPE than the profile's\": ")) << report_;
}

// With as many cells (swa_full), the layers that slide are those that attend fewer of them.
TEST_F(Profiles, LayersThatSlideAreToldByWhatTheyAttend) {
  const std::string short_text = Path("short"), path = Path("full.profile.safetensors");
  for (const std::string architecture : {"gemma3", "gemma2"}) {
    SCOPED_TRACE(architecture);
    const std::string model = "TEST_ARCHITECTURE=" + architecture + " TEST_LAYERS=5 ";
    Decode(model + "TEST_TOKENS=100 SEINE_CALIBRATE=" + short_text);
    EXPECT_TRUE(Said("(swa_full), and no text was longer than their window")) << said_;
    EXPECT_FALSE(std::filesystem::exists(short_text));

    std::filesystem::remove(path);
    Decode(model + "TEST_TOKENS=900 SEINE_CALIBRATE=" + path);  // 400 have told
    EXPECT_TRUE(Said("SEINE_CALIBRATE: " + path + ": a profile of 2 layers over 570 tokens")) << said_;
    const auto profile = ReadProfile(path);
    ASSERT_TRUE(profile.ok()) << profile.status();
    EXPECT_NE(profile->layers[0].k_mean, profile->layers[1].k_mean);
    const auto rope = ParseRope(profile->rope_json, 64, profile->rope_style, 1);
    EXPECT_NEAR(rope->inv_freq[31], std::pow(10000, -31. / 32), 1e-8);  // the base of those that attend all
    for (const std::string& by : {"SEINE_PROFILE=" + path, "SEINE_PROFILES=" + folder_}) {
      Decode(model + by);
      EXPECT_TRUE(Reported("\"codec\": \"balanced\", \"profile\": \"" + path + "\"")) << report_ << said_;
      EXPECT_TRUE(Reported("\"answered\": 140, ")) << report_;
    }
  }
}

// Profiles state heads of which a part turns, in halves or neighbours, and layers that do not turn at all.
TEST_F(Profiles, LayersAreStatedAsTheyTurn) {
  const struct {
    std::string model, rope, layers;  // as config.json has it, and what the profile says of layers; "": nothing
    int answered;                     // layers
  } cases[] = {
      {"phi3", R"({"rope_theta": 10000, "partial_rotary_factor": 0.5})", "", 2},
      {"glm4", R"({"rope_theta": 10000, "partial_rotary_factor": 0.5})", "", 2},
      {"stablelm", R"({"rope_theta": 10000, "partial_rotary_factor": 0.5})", "", 2},
      {"smollm3 TEST_LAYERS=4", R"({"rope_theta": 10000})", R"([{"layers":[3],"rope":{"rope_type":"none"}}])", 4},
      {"cohere2 TEST_LAYERS=5 TEST_RINGS=1", R"({"rope_type": "none"})", "", 2},
      {"exaone4 TEST_LAYERS=4", R"({"rope_theta": 10000})", "", 4},
      {"gemma4 TEST_LAYERS=5 TEST_HEAD_DIM=128 TEST_QUARTER=1 TEST_RINGS=1",
       R"({"rope_type": "proportional", "rope_theta": 10000, "partial_rotary_factor": 0.25})", "", 2},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.model);
    const std::string path = Path("turning.profile.safetensors"), model = "TEST_ARCHITECTURE=" + test.model + " ";
    std::filesystem::remove(path);
    Decode(model + "SEINE_CALIBRATE=" + path);
    auto profile = ReadProfile(path);
    ASSERT_TRUE(profile.ok()) << profile.status() << said_;
    EXPECT_EQ(profile->layer_ropes_json, test.layers);
    const auto stated = ParseRope(profile->rope_json, profile->head_dim, profile->rope_style, 1);
    const auto wanted = ParseRope(test.rope, profile->head_dim, profile->rope_style, 1);
    ASSERT_TRUE(stated.ok() && wanted.ok()) << stated.status() << wanted.status();
    EXPECT_EQ(stated->half(), wanted->half());
    for (size_t i = 0; i < wanted->inv_freq.size(); ++i) {
      EXPECT_NEAR(stated->inv_freq[i], wanted->inv_freq[i], 1e-5 * wanted->inv_freq[i]) << i;
    }
    const std::string answered = "\"answered\": " + std::to_string(70 * test.answered) + ", ";
    profile->rope_json = test.rope;  // as Hugging Face's states it
    ASSERT_TRUE(WriteProfile(*profile, ProfilePrecision::kFloat16, path).ok());
    Decode(model + "SEINE_PROFILES=" + folder_);
    EXPECT_TRUE(Reported("\"codec\": \"balanced\", \"profile\": \"" + path + "\"")) << report_ << said_;
    EXPECT_TRUE(Reported(answered)) << report_ << said_;
  }
}

// A profile of Gemma 4's heads of 512 is measured, found and used.
TEST_F(Profiles, HeadsOf512HaveTheBalancedCode) {
  const std::string path = Path("wide.profile.safetensors");
  const std::string model = "TEST_ARCHITECTURE=gemma4 TEST_LAYERS=4 TEST_HEAD_DIM=512 TEST_QUARTER=1 TEST_RINGS=1 ";
  Decode(model + "SEINE_CALIBRATE=" + path);
  ASSERT_TRUE(Said("SEINE_CALIBRATE: " + path + ": a profile of 2 layers over 7")) << said_;
  Decode(model + "SEINE_PROFILES=" + folder_);
  EXPECT_TRUE(Reported("\"codec\": \"balanced\", \"profile\": \"" + path + "\"")) << report_ << said_;
  EXPECT_TRUE(Reported("\"answered\": 140, ")) << report_;  // those that slide are left
}

// A profile that says of a layer that it does not turn is of another model than one whose layer does.
TEST_F(Profiles, ALayerThatTurnsOtherwiseIsNamed) {
  const std::string path = Path("whole.profile.safetensors");
  Decode("TEST_LAYERS=4 SEINE_CALIBRATE=" + path);
  Decode("TEST_ARCHITECTURE=smollm3 TEST_LAYERS=4 SEINE_PROFILES=" + folder_);
  EXPECT_TRUE(Said("no profile is of this model (4 layers, 4 query heads, 2 KV heads, head_dim 64)")) << said_;
  Decode("TEST_ARCHITECTURE=smollm3 TEST_LAYERS=4 SEINE_PROFILE=" + path);
  EXPECT_TRUE(
      Said("geometry.layer_ropes: layer 3 turns 0 of 32 pairs of coordinates, and the profile's turns 32; "
           "llama.cpp decodes alone"))
      << said_;
}

// A profile of a model whose other layers slide is of those that attend all, counted from 0, as Hugging Face's is.
TEST_F(Profiles, LayersThatSlideAreNotMeasured) {
  const std::pair<std::string, std::string> cases[] = {{"gemma3", "a layer of another RoPE than the profile's"},
                                                       {"gemma2", "a layer that the profile lacks"}};
  for (const auto& [architecture, why] : cases) {
    SCOPED_TRACE(architecture);
    const std::string path = Path("full.profile.safetensors");
    std::filesystem::remove(path);
    const std::string model = "TEST_ARCHITECTURE=" + architecture + " TEST_LAYERS=5 TEST_RINGS=1 ";
    Decode(model + "SEINE_CALIBRATE=" + path);
    EXPECT_TRUE(Said("SEINE_CALIBRATE: " + path + ": a profile of 2 layers over 7")) << said_;  // 700 and some tokens
    for (const std::string& by : {"SEINE_PROFILE=" + path, "SEINE_PROFILES=" + folder_}) {
      Decode(model + by);
      EXPECT_TRUE(Reported("\"codec\": \"balanced\", \"profile\": \"" + path + "\"")) << report_ << said_;
      EXPECT_TRUE(Reported("\"answered\": 140, ")) << report_;
      EXPECT_TRUE(Reported("\"" + why + "\": ")) << report_;
    }
    const auto profile = ReadProfile(path);
    ASSERT_TRUE(profile.ok()) << profile.status();
    EXPECT_NE(profile->layers[0].k_mean, profile->layers[1].k_mean);
  }
}

// Equal tokens have equal keys, queries and values once RoPE is undone: a moment is then the mean's square, and keys do
// not deviate from a window's mean but by what they turn in it.
TEST_F(Profiles, MomentsAreThoseBeforeRope) {
  for (const char* run : {"TEST_ARCHITECTURE=llama", "TEST_ARCHITECTURE=qwen2", "TEST_ARCHITECTURE=glm4",
                          "TEST_ARCHITECTURE=phi3", "TEST_ARCHITECTURE=stablelm", "TEST_STREAMS=2"}) {
    SCOPED_TRACE(run);
    const std::string path = Path("equal.profile.safetensors");
    Decode(std::string("TEST_TOKEN=5 ") + run + " SEINE_CALIBRATE=" + path);
    const auto profile = ReadProfile(path);
    ASSERT_TRUE(profile.ok()) << profile.status() << said_;
    EXPECT_EQ(profile->rope_style, Rope::Style::kHalfSplit);
    const int streams = run == std::string("TEST_STREAMS=2") ? 2 : 1;
    EXPECT_EQ(profile->key_tokens, streams * (700 + 70 - 16));  // but the sink
    EXPECT_EQ(profile->query_tokens, streams * (700 + 70 - 16));
    for (const LayerProfile& layer : profile->layers) {
      const auto squares = [](const auto& means, const auto& moments) {
        for (size_t h = 0; h < means.size(); ++h) {
          EXPECT_NEAR(means[h].squaredNorm() / moments[h].trace(), 1, .01) << h;
          EXPECT_GT(moments[h].trace(), .1);
        }
      };
      squares(layer.q_mean, layer.q_moment);
      squares(layer.k_mean, layer.k_moment);
      squares(layer.v_mean, layer.v_moment);
      for (int h = 0; h < 2; ++h) {
        EXPECT_GT(layer.k_residual[h].trace(), .1 * layer.k_moment[h].trace());
        EXPECT_LT(layer.k_residual[h].trace(), layer.k_moment[h].trace());
      }
    }
  }
}

// llama.cpp turns keys, queries and values before it quantises them. A profile is of those before, and serves both.
// Where values are quantised, llama.cpp itself turns flash attention on.
TEST_F(Profiles, QuantisedCachesHaveTheProfileOfOthers) {
  std::vector<Profile> profiles;
  for (const char* run : {"", "TEST_Q8_0=1", "TEST_Q8_0=1 LLAMA_ATTN_ROT_DISABLE=1"}) {
    const std::string path = Path("m" + std::to_string(profiles.size()) + ".profile.safetensors");
    Decode(std::string(run) + " SEINE_CALIBRATE=" + path);
    auto profile = ReadProfile(path);
    ASSERT_TRUE(profile.ok()) << profile.status() << said_;
    profiles.push_back(*std::move(profile));
    Decode(std::string(run) + " SEINE_LOG=1 TEST_FLASH=" + (run[0] == '\0' ? "on" : "auto") + " SEINE_PROFILE=" + path);
    EXPECT_TRUE(Reported("\"codec\": \"balanced\", \"profile\": \"" + path + "\"")) << report_ << said_;
    EXPECT_EQ(Said("profile: " + path + ", keys turned before they are quantised"), std::string(run) == "TEST_Q8_0=1");
    EXPECT_TRUE(Reported("\"answered\": 140, ")) << report_;
  }
  for (size_t i = 1; i < profiles.size(); ++i) {
    EXPECT_EQ(profiles[i].rope_json, profiles[0].rope_json);
    for (int layer = 0; layer < 2; ++layer) {
      const LayerProfile &got = profiles[i].layers[layer], &want = profiles[0].layers[layer];
      for (int h = 0; h < 2; ++h) {
        EXPECT_LT((got.k_residual[h] - want.k_residual[h]).norm(), .02 * want.k_residual[h].norm());
        EXPECT_LT((got.q_moment[h] - want.q_moment[h]).norm(), .02 * want.q_moment[h].norm());
        EXPECT_LT((got.v_moment[h] - want.v_moment[h]).norm(), .02 * want.v_moment[h].norm());
      }
    }
  }
}

TEST_F(Profiles, WhatCannotBeMeasuredIsSaid) {
  const std::string path = Path("p.profile.safetensors");
  Decode("TEST_TOKENS=100 SEINE_CALIBRATE=" + path);
  EXPECT_TRUE(Said("SEINE_CALIBRATE: only 154 tokens were seen, where 512 are the least; no profile is written"));
  Decode("SEINE_CALIBRATE=/nowhere/" + path);
  EXPECT_TRUE(Said("SEINE_CALIBRATE: /nowhere/")) << said_;
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace seine::llama
