// The plug-in with a seined, in an unmodified llama.cpp: a context of few cells beside llama.cpp alone with all of
// them. Logits are the same, or the decode fails; nothing between.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engines/llama.cpp/tests/fixtures/context_pair.h"
#include "engines/llama.cpp/tests/fixtures/loaded_plugin.h"
#include "engines/llama.cpp/tests/remote/remote_server.h"
#include "tests/temp_folder.h"

namespace seine::llama {
namespace {

constexpr int kFailed = -3;  // llama_decode's, of GGML_STATUS_FAILED
constexpr int kCells = 512;  // of the engine's cache, where all else is the server's

// One for all suites: the plug-in reads its address once a process.
std::unique_ptr<Server> server;

Context MakeContext(llama_model* model, Mode mode, int cells, int sequences = 1, ggml_type type = GGML_TYPE_F16,
                    bool unified = true, bool flash = true) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = cells;
  params.n_batch = params.n_ubatch = 256;
  params.n_seq_max = sequences;
  params.n_threads = params.n_threads_batch = 1;
  params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.kv_unified = unified;
  params.type_k = params.type_v = type;
  ThePlugin().set_mode(mode);
  return {llama_init_from_model(model, params), &llama_free};
}

// Tokens that follow each other. `second`: of two tokens the second is of the other sequence, at this position.
int Compute(llama_context* context, Mode mode, const std::vector<llama_token>& tokens, llama_pos position,
            llama_seq_id sequence = 0, llama_pos second = -1) {
  llama_batch batch = llama_batch_init(static_cast<int32_t>(tokens.size()), 0, 1);
  for (const llama_token token : tokens) {
    const int n = batch.n_tokens++;
    const bool other = second >= 0 && n == 1;
    batch.token[n] = token;
    batch.pos[n] = other ? second : position + n;
    batch.n_seq_id[n] = 1;
    batch.seq_id[n][0] = other ? 1 - sequence : sequence;
    batch.logits[n] = 1;
  }
  ThePlugin().set_mode(mode);
  const int result = llama_decode(context, batch);
  llama_batch_free(batch);
  return result;
}

// A text in both contexts.
class Texts {
 public:
  explicit Texts(llama_model* model, int cells = kCells, int sequences = 1, ggml_type type = GGML_TYPE_F16)
      : vocabulary_(llama_vocab_n_tokens(llama_model_get_vocab(model))),
        cells_(cells),
        plain_(MakeContext(model, kPlain, 4096, sequences, type)),
        remote_(MakeContext(model, kSeine, cells, sequences, type)) {}

  llama_context* plain() { return plain_.get(); }
  llama_context* remote() { return remote_.get(); }
  llama_pos end(llama_seq_id sequence = 0) { return llama_memory_seq_pos_max(llama_get_memory(plain()), sequence) + 1; }

  // Decodes random tokens in both, and returns the largest difference of their logits; infinite: the remote one failed.
  // Then neither has the tokens.
  double Decode(int count, llama_seq_id sequence = 0) {
    std::vector<llama_token> tokens(count);
    for (llama_token& token : tokens) token = static_cast<llama_token>(rng_() % vocabulary_);
    const llama_pos position = end(sequence);
    return Compare(tokens, position, sequence);
  }
  // Two tokens at once, one of each sequence.
  double DecodeBoth() { return Compare({1, 2}, end(0), 0, end(1)); }
  // Leaves room for `count` tokens in the remote context's cache by removing its oldest cells.
  void MakeRoom(int count) { RemoveBefore(end() + count - cells_); }
  void RemoveBefore(llama_pos position) {
    if (position > 0) llama_memory_seq_rm(llama_get_memory(remote()), 0, 0, position);
  }
  // Rolls both back: the newest tokens are not accepted.
  void RollBack(llama_pos position, llama_seq_id sequence = 0) {
    for (llama_context* c : {plain(), remote()}) llama_memory_seq_rm(llama_get_memory(c), sequence, position, -1);
  }
  // Reads a text of which the cache lacks the first part.
  void ReadLong(int count = 1000) {
    while (end() < count) {
      MakeRoom(125);
      ASSERT_LT(Decode(125), kSame) << end();
    }
  }

 private:
  double Compare(const std::vector<llama_token>& tokens, llama_pos position, llama_seq_id sequence,
                 llama_pos second = -1) {
    const int result = Compute(remote(), kSeine, tokens, position, sequence, second);
    if (result != 0) {
      EXPECT_EQ(result, kFailed);
      return INFINITY;
    }
    EXPECT_EQ(Compute(plain(), kPlain, tokens, position, sequence, second), 0);
    double worst = 0;
    for (size_t n = 0; n < tokens.size(); ++n) {
      const float *a = llama_get_logits_ith(plain(), static_cast<int32_t>(n)),
                  *b = llama_get_logits_ith(remote(), static_cast<int32_t>(n));
      for (int v = 0; v < vocabulary_; ++v) worst = std::max(worst, std::abs(static_cast<double>(a[v]) - b[v]));
    }
    return worst;
  }

  const int vocabulary_, cells_;
  std::mt19937 rng_{11};
  Context plain_, remote_;
};

const ModelShape kShape = {.embedding = 256, .q_heads = 4, .kv_heads = 2};

class Remote : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (server == nullptr) server = std::make_unique<Server>("12MiB");
  }
  static int64_t Count(const std::string& name) { return ThePlugin().Count(name); }
  static bool Reported(const std::string& what) {
    return std::string(ThePlugin().report()).find(what) != std::string::npos;
  }
};

TEST_F(Remote, ATextLongerThanTheCache) {
  for (const char* architecture : {"llama", "qwen2", "qwen3"}) {
    SCOPED_TRACE(architecture);
    ModelShape shape = kShape;
    shape.architecture = architecture;
    const Model model = MakeModel(shape);
    Texts texts(model.get());
    texts.ReadLong();
    const int64_t answered = Count("answered"), steps = Count("remote_steps"), bytes = Count("remote_bytes");
    for (int i = 0; i < 60; ++i) {
      texts.MakeRoom(1);
      ASSERT_LT(texts.Decode(1), kSame) << i;
    }
    EXPECT_EQ(Count("answered") - answered, 60 * 2) << ThePlugin().report();
    EXPECT_EQ(Count("remote_steps") - steps, 60 * 2);
    EXPECT_EQ(Count("remote_bytes") - bytes, 60 * 2 * (2 * 2 * 64 * 2 + 4 * 64 * 4));
    for (int i = 2; i <= 16; ++i) {  // as speculative decoding asks
      texts.MakeRoom(i);
      ASSERT_LT(texts.Decode(i), kSame) << i;
      texts.RollBack(texts.end() - i / 2);
    }
  }
}

TEST_F(Remote, BFloat16AndALayerAlone) {
  ModelShape shape = kShape;
  shape.layers = 1;
  const Model model = MakeModel(shape);
  Texts texts(model.get(), kCells, 1, GGML_TYPE_BF16);
  texts.ReadLong(700);
}

// Below SEINE_MIN_KV, and prompts whose cells are all there, llama.cpp attends; the server has the rows nonetheless.
TEST_F(Remote, APromptInTheCacheIsLlamaCppsOwn) {
  const Model model = MakeModel(kShape);
  Texts texts(model.get());
  const int64_t answered = Count("answered");
  EXPECT_LT(texts.Decode(200), kSame);
  EXPECT_LT(texts.Decode(1), kSame);
  EXPECT_LT(texts.Decode(250), kSame);
  EXPECT_EQ(Count("answered"), answered);
  texts.RemoveBefore(400);
  EXPECT_LT(texts.Decode(1), kSame);
  EXPECT_EQ(Count("answered"), answered + 2);
}

TEST_F(Remote, RollBack) {
  const Model model = MakeModel(kShape);
  Texts texts(model.get());
  texts.ReadLong();
  std::mt19937 rng(5);
  for (int i = 0; i < 12; ++i) {
    texts.RollBack(texts.end() - static_cast<int>(rng() % 60));
    texts.MakeRoom(40);
    ASSERT_LT(texts.Decode(1 + static_cast<int>(rng() % 40)), kSame) << i;
  }
  texts.RemoveBefore(texts.end() - 20);
  texts.RollBack(texts.end() - 30);  // further than there are cells: it may as well be another text
  EXPECT_EQ(texts.Decode(1), INFINITY);
  texts.RollBack(0);
  texts.ReadLong(600);
}

// Its rows and their positions change in the cache alone.
TEST_F(Remote, AShiftOfTheContext) {
  const Model model = MakeModel(kShape);
  Texts texts(model.get(), 1024);
  EXPECT_LT(texts.Decode(250), kSame);
  EXPECT_LT(texts.Decode(250), kSame);
  for (llama_context* c : {texts.plain(), texts.remote()}) {
    llama_memory_seq_rm(llama_get_memory(c), 0, 20, 120);
    llama_memory_seq_add(llama_get_memory(c), 0, 120, -1, -100);
  }
  const int64_t answered = Count("answered");
  for (int i = 0; i < 3; ++i) EXPECT_LT(texts.Decode(1), kSame);  // no cell is missing: llama.cpp attends
  EXPECT_EQ(Count("answered"), answered);
  EXPECT_GT(Count("a shift of the context, after which rows have other positions"), 0);
  texts.RemoveBefore(100);
  EXPECT_EQ(texts.Decode(1), INFINITY);
}

TEST_F(Remote, AStateIsLoaded) {
  const Model model = MakeModel(kShape);
  Texts texts(model.get());
  EXPECT_LT(texts.Decode(250), kSame);
  EXPECT_LT(texts.Decode(150), kSame);
  std::vector<uint8_t> saved(llama_state_seq_get_size(texts.plain(), 0));
  llama_state_seq_get_data(texts.plain(), saved.data(), saved.size(), 0);
  const auto load = [&] {
    for (llama_context* c : {texts.plain(), texts.remote()}) {
      EXPECT_GT(llama_state_seq_set_data(c, saved.data(), saved.size(), 0), 0u);
    }
  };
  texts.RollBack(0);
  EXPECT_LT(texts.Decode(200), kSame);
  EXPECT_LT(texts.Decode(200), kSame);
  load();  // another text of as many tokens, in the same cells
  EXPECT_LT(texts.Decode(1), kSame);
  load();
  texts.RemoveBefore(100);
  EXPECT_LT(texts.Decode(1), kSame);  // the server has its rows from when it was read
  // Rows that it never got.
  const Context other = MakeContext(model.get(), kPlain, 1024);
  EXPECT_EQ(Compute(other.get(), kPlain, std::vector<llama_token>(250, 7), 0), 0);
  saved.resize(llama_state_seq_get_size(other.get(), 0));
  llama_state_seq_get_data(other.get(), saved.data(), saved.size(), 0);
  load();
  EXPECT_LT(texts.Decode(1), kSame);
  EXPECT_GT(Count("a loaded state, whose rows the server has not"), 0);
  texts.RemoveBefore(100);
  EXPECT_EQ(texts.Decode(1), INFINITY);
}

// More of slots is in slots_test.cc.
TEST_F(Remote, SequencesOfOneCache) {
  const Model model = MakeModel(kShape);
  Texts texts(model.get(), 1024, 2);
  for (int i = 0; i < 3; ++i) {
    EXPECT_LT(texts.Decode(100, 0), kSame);
    EXPECT_LT(texts.Decode(130, 1), kSame);
  }
  texts.RemoveBefore(100);
  const int64_t answered = Count("answered");
  for (int i = 0; i < 3; ++i) {
    for (const llama_seq_id s : {0, 1}) EXPECT_LT(texts.Decode(1, s), kSame);
    EXPECT_LT(texts.DecodeBoth(), kSame);
  }
  EXPECT_EQ(Count("answered") - answered, 9 * 2);
  // A second one that goes on at a position that the server has of the first.
  EXPECT_EQ(Compute(texts.remote(), kSeine, {1}, 200, 1), -1);  // llama.cpp's own refusal
  Texts others(model.get(), 1024, 2);
  EXPECT_LT(others.Decode(200, 0), kSame);
  EXPECT_LT(others.Decode(200, 0), kSame);
  EXPECT_EQ(Compute(others.remote(), kSeine, {1}, 300, 1), kFailed);
}

// Positions that follow each other do not make one text of two.
TEST_F(Remote, SequencesWhosePositionsFollow) {
  const Model model = MakeModel(kShape);
  Texts texts(model.get(), 1024, 2);
  EXPECT_LT(texts.Decode(200, 1), kSame);
  EXPECT_LT(texts.Decode(199, 0), kSame);
  EXPECT_LT(texts.DecodeBoth(), kSame);
  texts.RemoveBefore(10);
  EXPECT_LT(texts.Decode(1), kSame);
  EXPECT_LT(texts.DecodeBoth(), kSame);
}

// The server takes a stream that is silent for so long to be dead.
TEST_F(Remote, AProgramThatPauses) {
  const Model model = MakeModel(kShape);
  Texts texts(model.get());
  texts.ReadLong(600);
  std::this_thread::sleep_for(std::chrono::seconds(22));
  texts.MakeRoom(1);
  EXPECT_LT(texts.Decode(1), kSame);
}

TEST_F(Remote, TwoContextsAtOnce) {
  const Model model = MakeModel(kShape);
  {
    Texts one(model.get()), two(model.get());
    for (const int end : {500, 700, 900}) {
      one.ReadLong(end);
      two.ReadLong(end + 60);
    }
    EXPECT_EQ(server->NumIndexes(), 2);
  }
  EXPECT_EQ(server->NumIndexes(), 0);
}

void ExpectOnlyWhole(const ModelShape& shape, ggml_type type, int whole, const std::string& reason) {
  SCOPED_TRACE(reason);
  const Model model = MakeModel(shape);
  Texts texts(model.get(), 1024, 1, type);
  const int64_t declined = ThePlugin().Count(reason), answered = ThePlugin().Count("answered");
  while (texts.end() < whole) ASSERT_LT(texts.Decode(50), kSame);
  texts.RemoveBefore(20);
  EXPECT_EQ(texts.Decode(1), INFINITY);
  EXPECT_GT(ThePlugin().Count(reason), declined) << ThePlugin().report();
  EXPECT_EQ(ThePlugin().Count("answered"), answered);
}

TEST_F(Remote, WhatNoServerAnswers) {
  const Model model = MakeModel(kShape);
  Texts f32(model.get(), kCells, 1, GGML_TYPE_F32);  // llama.cpp casts them: the plug-in does not see their attention
  EXPECT_EQ(f32.Decode(20), INFINITY);
  EXPECT_GT(Count("keys of f32"), 0);
  ExpectOnlyWhole(kShape, GGML_TYPE_Q8_0, 200, "a cache of another type than f16 or bf16");
  ExpectOnlyWhole({.architecture = "gemma3", .embedding = 256, .q_heads = 4, .kv_heads = 1, .head_dim = 256},
                  GGML_TYPE_F16, 200, "cells that were removed before it was seen which layers slide");
}

// Soft caps, sinks, two RoPEs, layers without one: those that see all are the server's, those that slide llama.cpp's.
struct SlidingCase {
  std::string name;
  ModelShape shape;
  int cells;    // of the engine's cache; 768: that of the layers that slide has fewer
  int served;   // layers
  int at_once;  // tokens of the first parts; 1: the other cache tells the window
  double near;  // of logits; differences add up over the layers
};

class RemoteSliding : public Remote, public ::testing::WithParamInterface<SlidingCase> {};

TEST_P(RemoteSliding, LayersThatSeeAllAreServed) {
  const SlidingCase& of = GetParam();
  const Model model = MakeModel(of.shape);
  ASSERT_NE(model, nullptr);
  Texts texts(model.get(), of.cells);
  const auto expect_answered = [&](int steps, const auto& decode) {
    const int64_t answered = Count("answered");
    decode();
    EXPECT_EQ(Count("answered") - answered, steps * of.served) << ThePlugin().report();
  };
  while (texts.end() < of.shape.sliding_window + 30) ASSERT_LT(texts.Decode(of.at_once), of.near) << texts.end();
  while (texts.end() < 1000) {
    texts.MakeRoom(97);
    ASSERT_LT(texts.Decode(97), of.near) << texts.end();
  }
  EXPECT_EQ(server->NumIndexes(), 1);  // of those that see all
  std::string index;
  EXPECT_EQ(server->Run("index list -o json", &index), 0);
  EXPECT_NE(index.find("\"num_layers\": " + std::to_string(of.served)), std::string::npos) << index;
  expect_answered(60, [&] {
    for (int i = 0; i < 60; ++i) {
      texts.MakeRoom(1);
      ASSERT_LT(texts.Decode(1), of.near) << i;
    }
  });
  expect_answered(12, [&] {
    for (int i = 0; i < 12; ++i) {
      texts.RollBack(texts.end() - 1 - 5 * i % 40);
      texts.MakeRoom(8);
      ASSERT_LT(texts.Decode(1 + i % 8), of.near) << i;
    }
  });
  // Another text, which a state of it takes the place of. Rows of a layer alone do not tell whose they are.
  texts.RollBack(0);
  for (int i = 0; i < 2; ++i) ASSERT_LT(texts.Decode(150), of.near) << i;
  std::vector<uint8_t> saved(llama_state_seq_get_size(texts.plain(), 0));
  llama_state_seq_get_data(texts.plain(), saved.data(), saved.size(), 0);
  expect_answered(5, [&] {
    for (int i = 0; i < 5; ++i) ASSERT_LT(texts.Decode(1), of.near) << i;
  });
  for (llama_context* c : {texts.plain(), texts.remote()}) {
    llama_memory_clear(llama_get_memory(c), true);
    EXPECT_GT(llama_state_seq_set_data(c, saved.data(), saved.size(), 0), 0u);
  }
  expect_answered(of.served > 1 ? 1 : 0, [&] {
    for (int i = 0; i < 5; ++i) ASSERT_LT(texts.Decode(1 + 20 * i), of.near) << i;
  });
  // A third one, of which the engine's cache at last lacks cells of the window.
  texts.RollBack(0);
  texts.ReadLong(700);
  texts.MakeRoom(1);
  ASSERT_LT(texts.Decode(1), of.near);
  texts.RemoveBefore(texts.end() - of.shape.sliding_window + 10);
  EXPECT_EQ(texts.Decode(1), INFINITY);
}

std::vector<SlidingCase> SlidingCases() {
  ModelShape gemma2 = {.architecture = "gemma2", .embedding = 256, .q_heads = 4, .kv_heads = 2, .head_dim = 256};
  ModelShape gemma3 = {.architecture = "gemma3", .embedding = 256, .q_heads = 4, .kv_heads = 1, .head_dim = 256};
  ModelShape gpt = {.architecture = "gpt-oss", .layers = 4, .embedding = 256, .q_heads = 8, .kv_heads = 1};
  ModelShape cohere = {.architecture = "cohere2", .layers = 4, .embedding = 512, .q_heads = 8, .kv_heads = 2};
  for (ModelShape* shape : {&gemma2, &gemma3, &gpt, &cohere}) shape->sliding_window = 64;
  return {{"gemma2", gemma2, 512, 1, 50, kSame},   {"gemma2_token_by_token", gemma2, 768, 1, 1, kSame},
          {"gpt_oss", gpt, 768, 2, 50, 2 * kSame}, {"gpt_oss_token_by_token", gpt, 512, 2, 1, 2 * kSame},
          {"gemma3", gemma3, 768, 1, 50, kSame},   {"cohere2", cohere, 512, 2, 1, 2 * kSame}};
}

INSTANTIATE_TEST_SUITE_P(Sliding, RemoteSliding, ::testing::ValuesIn(SlidingCases()),
                         [](const auto& of) { return of.param.name; });

TEST_F(Remote, WithoutFlashAttention) {
  const Model model = MakeModel(kShape);
  const Context context = MakeContext(model.get(), kSeine, kCells, 1, GGML_TYPE_F16, true, /*flash=*/false);
  EXPECT_EQ(Compute(context.get(), kSeine, {1, 2, 3}, 0), kFailed);
}

TEST_F(Remote, SettingsThatAServerHasNoUseForAreSaid) {
  const TempFolder folder;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string(), path = folder.Path("err");
  const std::string command = "SEINE_CALIBRATE=a SEINE_PROFILES=b SEINE_CHECK=1 " + program +
                              " --gtest_filter=Remote.WithoutFlashAttention > /dev/null 2> " + path;
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::ifstream file(path);
  const std::string said = {std::istreambuf_iterator<char>(file), {}};
  for (const char* name : {"SEINE_CALIBRATE", "SEINE_PROFILES", "SEINE_CHECK"}) {
    EXPECT_NE(said.find(std::string(name) + " is passed over, since SEINE_ENDPOINT is set"), std::string::npos) << said;
  }
  EXPECT_FALSE(std::filesystem::exists("a"));
}

TEST_F(Remote, AServerWithoutMemory) {
  const Model model = MakeModel(kShape);
  const Context context = MakeContext(model.get(), kSeine, kCells);
  int position = 0, result = 0;
  for (; position < 40000 && result == 0; position += 250) {
    llama_memory_seq_rm(llama_get_memory(context.get()), 0, 0, std::max(0, position - 200));
    result = Compute(context.get(), kSeine, std::vector<llama_token>(250, 1), position);
  }
  EXPECT_GT(position, 1000);
  EXPECT_EQ(result, kFailed);
  EXPECT_TRUE(Reported("the server: RESOURCE_EXHAUSTED: ")) << ThePlugin().report();
  Texts texts(model.get());  // what that text took is free again
  texts.ReadLong(600);
}

// Last: the others need it.
TEST_F(Remote, ZTheServerDies) {
  const Model model = MakeModel(kShape);
  Texts texts(model.get());
  texts.ReadLong(600);
  texts.MakeRoom(1);
  server->Kill();
  EXPECT_EQ(texts.Decode(1), INFINITY);
  EXPECT_EQ(texts.Decode(1), INFINITY);
  EXPECT_TRUE(Reported("the server: UNAVAILABLE: ")) << ThePlugin().report();
  texts.RollBack(0);  // a new text, which the cache holds whole
  for (int i = 0; i < 3; ++i) EXPECT_LT(texts.Decode(100), kSame);
  texts.RemoveBefore(10);
  EXPECT_EQ(texts.Decode(1), INFINITY);
  server->Start();
  EXPECT_EQ(texts.Decode(1), INFINITY);  // it knows nothing of this text
  texts.RollBack(0);
  texts.ReadLong(600);
}

}  // namespace
}  // namespace seine::llama
