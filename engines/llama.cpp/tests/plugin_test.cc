// The plug-in in an unmodified llama.cpp, beside llama.cpp alone: the same logits wherever every cell is chosen,
// through everything that a program does to its cache.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engines/llama.cpp/random_model.h"
#include "engines/llama.cpp/tests/loaded_plugin.h"
#include "ggml-backend.h"
#include "llama.h"
#include "profile/moments.h"
#include "profile/profile.h"

namespace seine::llama {
namespace {

// The same calls to a context with the plug-in and one without.
class Pair {
 public:
  Pair(llama_model* model, int cells, int sequences, bool unified, ggml_type type = GGML_TYPE_F16)
      : vocabulary_(llama_vocab_n_tokens(llama_model_get_vocab(model))) {
    for (const Mode mode : {kPlain, kSeine}) {
      llama_context_params params = llama_context_default_params();
      params.n_ctx = cells * (unified ? 1 : sequences);
      params.n_batch = params.n_ubatch = 512;
      params.n_seq_max = sequences;
      params.n_threads = params.n_threads_batch = 2;
      params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
      params.kv_unified = unified;
      params.type_k = params.type_v = type;
      ThePlugin().set_mode(mode);
      both_.emplace_back(llama_init_from_model(model, params), &llama_free);
      EXPECT_NE(both_.back(), nullptr);
    }
  }

  llama_context* plain() const { return both_[0].get(); }
  llama_context* seine() const { return both_[1].get(); }
  llama_pos End(llama_seq_id sequence) const {
    return llama_memory_seq_pos_max(llama_get_memory(plain()), sequence) + 1;
  }

  // Decodes random tokens of each sequence, one behind another, and compares the logits of all of them. Returns the
  // largest difference. `token`: in place of random ones.
  double Decode(const std::vector<llama_seq_id>& sequences, int tokens, llama_token token = -1) {
    llama_batch batch = llama_batch_init(static_cast<int32_t>(sequences.size()) * tokens, 0, 1);
    for (const llama_seq_id sequence : sequences) {
      for (int i = 0; i < tokens; ++i) {
        const int n = batch.n_tokens++;
        batch.token[n] = token >= 0 ? token : static_cast<llama_token>(rng_() % vocabulary_);
        batch.pos[n] = End(sequence) + i;
        batch.n_seq_id[n] = 1;
        batch.seq_id[n][0] = sequence;
        batch.logits[n] = 1;
      }
    }
    ThePlugin().set_mode(kPlain);
    EXPECT_EQ(llama_decode(plain(), batch), 0);
    ThePlugin().set_mode(kSeine);
    EXPECT_EQ(llama_decode(seine(), batch), 0);
    double worst = 0;
    for (int n = 0; n < batch.n_tokens; ++n) {
      const float *a = llama_get_logits_ith(plain(), n), *b = llama_get_logits_ith(seine(), n);
      for (int v = 0; v < vocabulary_; ++v) worst = std::max(worst, std::abs(static_cast<double>(a[v]) - b[v]));
    }
    llama_batch_free(batch);
    return worst;
  }

  template <typename Fn>
  void Each(Fn fn) {
    ThePlugin().set_mode(kPlain);
    fn(plain());
    ThePlugin().set_mode(kSeine);
    fn(seine());
  }

 private:
  const int vocabulary_;
  std::mt19937 rng_{11};
  std::vector<Context> both_;
};

// Logits deviate by 2; llama.cpp adds values up in fp16, we in fp32.
constexpr double kSame = .03;

TEST(Plugin, ALongDecodeIsLlamaCppsOwn) {
  for (const char* architecture : {"llama", "qwen2", "qwen3"}) {
    for (const int dim : {64, 128}) {
      SCOPED_TRACE(std::string(architecture) + " " + std::to_string(dim));
      const Model model =
          MakeModel({.architecture = architecture, .embedding = 4 * dim, .q_heads = 4, .kv_heads = 2, .head_dim = dim});
      Pair pair(model.get(), 1024, 1, true);
      const int64_t before = ThePlugin().Count("answered");
      for (int i = 0; i < 3; ++i) EXPECT_LT(pair.Decode({0}, 256), kSame);
      for (int i = 0; i < 150; ++i) ASSERT_LT(pair.Decode({0}, 1), kSame) << i;
      EXPECT_EQ(ThePlugin().Count("answered") - before, 150 * 2) << ThePlugin().report();
    }
  }
}

// Several query tokens, each with cells of its own, as speculative decoding asks them.
TEST(Plugin, SmallBatches) {
  const Model model = MakeModel({.q_heads = 6, .kv_heads = 2});
  Pair pair(model.get(), 2048, 1, true);
  pair.Decode({0}, 256);
  pair.Decode({0}, 256);
  for (int i = 1; i <= 16; ++i) {
    EXPECT_LT(pair.Decode({0}, i), kSame) << i;
    const llama_pos end = pair.End(0);
    pair.Each([&](llama_context* c) { llama_memory_seq_rm(llama_get_memory(c), 0, end - i / 2, -1); });  // not accepted
  }
}

TEST(Plugin, EachStreamHasItsOwnCells) {
  const Model model = MakeModel({.q_heads = 4, .kv_heads = 2});
  Pair pair(model.get(), 1024, 3, false);
  const int64_t before = ThePlugin().Count("answered");
  for (const llama_seq_id s : {0, 1, 2}) pair.Decode({s}, 200 + 40 * s);
  for (const llama_seq_id s : {2, 0, 1}) pair.Decode({s}, 200);
  for (int i = 0; i < 40; ++i) {
    EXPECT_LT(pair.Decode({0, 1, 2}, 1), kSame) << i;
    EXPECT_LT(pair.Decode({i % 3}, 2), kSame) << i;
  }
  EXPECT_GT(ThePlugin().Count("answered"), before);
}

// Slots of a server in one cache: each sees its own cells, with others' between.
TEST(Plugin, SequencesThatShareCells) {
  const Model model = MakeModel({.q_heads = 4, .kv_heads = 2});
  Pair pair(model.get(), 4096, 3, true);
  for (int i = 0; i < 3; ++i) {
    for (const llama_seq_id s : {0, 1, 2}) pair.Decode({s}, 100 + 70 * s);
  }
  const int64_t before = ThePlugin().Count("answered");
  for (int i = 0; i < 40; ++i) {
    EXPECT_LT(pair.Decode({0, 1, 2}, 1), kSame) << i;
    EXPECT_LT(pair.Decode({i % 3}, 3), kSame) << i;
    if (i == 20) {  // a slot is begun again, and its cells are used by the others
      pair.Each([&](llama_context* c) { llama_memory_seq_rm(llama_get_memory(c), 1, 30, -1); });
    }
  }
  EXPECT_EQ(ThePlugin().Count("answered") - before, 80 * 2) << ThePlugin().report();
}

// Layers that slide see the last cells alone, wherever in their ring these lie, and turn by a base of their own.
TEST(Plugin, SlidingWindowsAreAnsweredByTheirMasks) {
  const Model model = MakeModel(
      {.architecture = "gemma3", .layers = 3, .embedding = 256, .q_heads = 4, .kv_heads = 1, .head_dim = 256});
  Pair pair(model.get(), 2048, 1, true);
  const int64_t before = ThePlugin().Count("answered");
  for (int i = 0; i < 4; ++i) EXPECT_LT(pair.Decode({0}, 256), kSame);
  for (int i = 0; i < 150; ++i) ASSERT_LT(pair.Decode({0}, 1), kSame) << i;
  for (int i = 2; i <= 16; ++i) ASSERT_LT(pair.Decode({0}, i), kSame) << i;
  EXPECT_EQ(ThePlugin().Count("answered") - before, 165 * 3) << ThePlugin().report();
}

// What a model or cache must not be for the plug-in to answer: the reason is counted, nothing is encoded, and logits
// are llama.cpp's.
void ExpectDeclined(const ModelShape& shape, ggml_type type, const std::string& reason) {
  SCOPED_TRACE(reason + ", " + ggml_type_name(type));
  const Model model = MakeModel(shape);
  Pair pair(model.get(), 1024, 1, true, type);
  const int64_t answered = ThePlugin().Count("answered"), encoded = ThePlugin().Count("encoded_keys");
  const int64_t declined = ThePlugin().Count(reason);
  for (int i = 0; i < 2; ++i) pair.Decode({0}, 256);
  for (int i = 0; i < 5; ++i) EXPECT_LT(pair.Decode({0}, 1), kSame);
  EXPECT_EQ(ThePlugin().Count("answered"), answered);
  EXPECT_EQ(ThePlugin().Count("encoded_keys"), encoded);
  EXPECT_GT(ThePlugin().Count(reason), declined) << ThePlugin().report();
}

TEST(Plugin, OtherCacheTypesAreLeftAlone) {
  for (const ggml_type type : {GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
    ExpectDeclined({.q_heads = 4, .kv_heads = 2}, type, "a cache of another type than f16 or bf16");
  }
}

// A program ends a context and makes another one. Its cache takes the memory of the first's, with as many cells.
void ExpectAnswered(const ModelShape& shape, ggml_type type) {
  SCOPED_TRACE(std::to_string(shape.head_dim) + ", " + ggml_type_name(type));
  const Model model = MakeModel(shape);
  Pair pair(model.get(), 1024, 1, true, type);
  const int64_t before = ThePlugin().Count("answered");
  for (int i = 0; i < 2; ++i) pair.Decode({0}, 256);
  for (int i = 0; i < 20; ++i) ASSERT_LT(pair.Decode({0}, 1), kSame) << i;
  EXPECT_EQ(ThePlugin().Count("answered") - before, 20 * 2) << ThePlugin().report();
}

TEST(Plugin, AnotherContextInTheSameMemory) {
  for (const int dim : {64, 128, 64}) {
    for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16}) {
      ExpectAnswered({.q_heads = 256 / dim, .kv_heads = 128 / dim, .head_dim = dim}, type);
    }
  }
}

TEST(Plugin, SoftCapsAreLeftAlone) {
  ExpectDeclined({.architecture = "gemma2", .embedding = 256, .q_heads = 4, .kv_heads = 2, .head_dim = 256},
                 GGML_TYPE_F16, "a soft cap of logits");
}

// Roll-backs, gaps, shifts, copies, states saved and loaded, in any order. `decoded` is told the largest difference.
template <typename Decoded>
void OperateAtRandom(Pair* both, Decoded decoded) {
  Pair& pair = *both;
  std::mt19937 rng(17);
  std::vector<uint8_t> saved;
  pair.Decode({0}, 250);
  pair.Decode({0}, 250);
  for (int step = 0; step < 200; ++step) {
    const llama_pos end = pair.End(0);
    const int what = static_cast<int>(rng() % 6);
    const auto some = static_cast<llama_pos>(rng() % 200);
    SCOPED_TRACE(std::to_string(step) + ": " + std::to_string(what));
    if (what == 0 && end > 400) {  // a reply is begun again
      pair.Each([&](llama_context* c) { llama_memory_seq_rm(llama_get_memory(c), 0, end - some, -1); });
    } else if (what == 1 && end > 500) {  // context shift: a gap, and the rest moves up
      pair.Each([&](llama_context* c) {
        llama_memory_seq_rm(llama_get_memory(c), 0, 20, 20 + some);
        llama_memory_seq_add(llama_get_memory(c), 0, 20 + some, -1, -some);
      });
    } else if (what == 2) {  // to another sequence, in another stream or in the same cells
      pair.Each([&](llama_context* c) {
        llama_memory_seq_rm(llama_get_memory(c), 1, -1, -1);
        llama_memory_seq_cp(llama_get_memory(c), 0, 1, -1, -1);
      });
      decoded(pair.Decode({1}, 1));
    } else if (what == 3) {
      saved.resize(llama_state_seq_get_size(pair.plain(), 0));
      llama_state_seq_get_data(pair.plain(), saved.data(), saved.size(), 0);
    } else if (what == 4 && !saved.empty()) {
      pair.Each([&](llama_context* c) { EXPECT_GT(llama_state_seq_set_data(c, saved.data(), saved.size(), 0), 0u); });
    } else if (end < 1500) {
      decoded(pair.Decode({0}, 1 + static_cast<int>(rng() % 100)));
    } else {
      pair.Each([&](llama_context* c) { llama_memory_seq_rm(llama_get_memory(c), 0, 600, -1); });
    }
    for (int i = 0; i < 2; ++i) decoded(pair.Decode({0}, 1));
  }
}

TEST(Plugin, RandomOperationsOnTheCache) {
  const Model model = MakeModel({.q_heads = 4, .kv_heads = 2});
  for (const bool unified : {false, true}) {
    Pair pair(model.get(), 4096, 2, unified);
    OperateAtRandom(&pair, [](double difference) { EXPECT_LT(difference, kSame); });
  }
}

// With few tokens chosen: no answer comes of codes that are not of the cells it was asked over. Run by itself.
TEST(FewChosen, NoAnswerFromStaleCodes) {
  const Model model = MakeModel({.q_heads = 4, .kv_heads = 2});
  for (const bool unified : {false, true}) {
    Pair pair(model.get(), 4096, 2, unified);
    OperateAtRandom(&pair, [](double) {});
  }
  EXPECT_GT(ThePlugin().Count("checked"), 100) << "SEINE_CHECK=1 must be set";
  EXPECT_GT(ThePlugin().Count("changed_windows"), 0);
  EXPECT_EQ(ThePlugin().Count("stale_windows"), 0) << ThePlugin().report();
}

// ---- Profiles: settings are read once a process, so that each has one of its own ----

// What processes of Profiles.* below run.
TEST(Apart, DecodesAText) {
  const char *architecture = std::getenv("TEST_ARCHITECTURE"), *base = std::getenv("TEST_ROPE_BASE");
  const char *tokens = std::getenv("TEST_TOKENS"), *token = std::getenv("TEST_TOKEN");
  const std::vector<llama_seq_id> sequences =
      std::getenv("TEST_STREAMS") == nullptr ? std::vector<llama_seq_id>{0} : std::vector<llama_seq_id>{0, 1};
  ModelShape shape = {.embedding = 256, .q_heads = 4, .kv_heads = 2};
  if (architecture != nullptr) shape.architecture = architecture;
  if (base != nullptr) shape.rope_base = static_cast<float>(std::atof(base));
  const llama_token one = token == nullptr ? -1 : std::atoi(token);
  const Model model = MakeModel(shape);
  Pair pair(model.get(), 1024, static_cast<int>(sequences.size()), sequences.size() == 1);
  for (int left = tokens == nullptr ? 700 : std::atoi(tokens); left > 0; left -= 200) {
    EXPECT_LT(pair.Decode(sequences, std::min(left, 200), one), kSame);
  }
  for (int i = 0; i < 70; ++i) ASSERT_LT(pair.Decode(sequences, 1, one), kSame) << i;
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
  // Decodes with these variables set as well. said_ and report_ become what it wrote.
  void Decode(const std::string& variables) {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
    const std::string command = variables + " SEINE_REPORT=" + Path("report") + " " + program +
                                " --gtest_filter=Apart.* > " + Path("out") + " 2> " + Path("err");
    EXPECT_EQ(std::system(command.c_str()), 0) << Contents(Path("out"));
    said_ = Contents(Path("err"));
    report_ = Contents(Path("report"));
  }
  bool Said(const std::string& what) const { return said_.find(what) != std::string::npos; }
  bool Reported(const std::string& what) const { return report_.find(what) != std::string::npos; }

  const std::string folder_ = ::testing::TempDir() + "seine-profiles-" + std::to_string(getpid());
  std::string said_, report_;
};

TEST_F(Profiles, AMeasuredOneIsFoundAndUsed) {
  const std::string path = Path("tiny.profile.safetensors"), other = Path("other.safetensors");
  Decode("SEINE_CALIBRATE_TOKENS=600 SEINE_CALIBRATE=" + path);
  EXPECT_TRUE(Said("SEINE_CALIBRATE: " + path + ": a profile of 2 layers over ")) << said_;
  EXPECT_TRUE(Reported("\"answered\": 0, ") && Reported("\"codec\": \"\"")) << report_;
  EXPECT_EQ(ReadProfile(path)->model, "tiny");

  Decode("SEINE_PROFILES=" + folder_);
  EXPECT_TRUE(Reported("\"codec\": \"balanced\", \"profile\": \"" + path + "\"")) << report_;
  EXPECT_TRUE(Reported("\"answered\": 140, ")) << report_;
  EXPECT_FALSE(Said("seine")) << said_;

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
  EXPECT_FALSE(Said("seine")) << said_;
}

// Equal tokens have equal keys, queries and values once RoPE is undone: a moment is then the mean's square, and keys do
// not deviate from a window's mean but by what they turn in it.
TEST_F(Profiles, MomentsAreThoseBeforeRope) {
  for (const char* run : {"TEST_ARCHITECTURE=llama", "TEST_ARCHITECTURE=qwen2", "TEST_STREAMS=2"}) {
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
