// Families of models, each with what it has and Llama has not: llama.cpp's own logits through all that a program does.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "engines/llama.cpp/random_model.h"
#include "engines/llama.cpp/tests/fixtures/context_pair.h"
#include "engines/llama.cpp/tests/fixtures/loaded_plugin.h"
#include "llama.h"

namespace seine::llama {
namespace {

struct FamilyCase {
  std::string name;
  ModelShape shape;
  int answered;            // layers
  bool rolls_back = true;  // its memory may lose its last tokens
  CacheTypes types = {};
  bool turned = true;  // quantised keys, queries and values by Hadamard matrices
};

std::vector<FamilyCase> FamilyCases() {
  // `embedding`: 0: q_heads * head_dim, as some families must have it.
  const auto of = [](const char* architecture, int head_dim, int q_heads, int kv_heads, int layers = 2,
                     int embedding = 0) {
    ModelShape shape;
    shape.architecture = architecture;
    shape.layers = layers;
    shape.embedding = embedding > 0 ? embedding : q_heads * head_dim;
    shape.q_heads = q_heads, shape.kv_heads = kv_heads, shape.head_dim = head_dim;
    return shape;
  };
  ModelShape sharing = of("gemma4", 512, 4, 1, 4, 256);
  sharing.sharing_layers = 2;
  return {
      {"llama", of("llama", 128, 4, 1), 2},
      {"qwen2", of("qwen2", 64, 6, 2), 2},
      {"qwen3", of("qwen3", 128, 4, 2), 2},
      {"granite", of("granite", 64, 4, 2), 2},
      {"smollm3", of("smollm3", 64, 4, 1, 4), 4},
      {"phi3", of("phi3", 96, 4, 2), 2},
      {"glm4", of("glm4", 128, 4, 2, 2, 256), 2},
      {"stablelm", of("stablelm", 64, 4, 2), 2},
      {"olmo2", of("olmo2", 64, 4, 4), 2},
      {"exaone4", of("exaone4", 64, 4, 2), 2},
      {"cohere2", of("cohere2", 64, 8, 2), 2},
      {"gemma2", of("gemma2", 256, 4, 2, 2, 256), 2},
      {"gemma3", of("gemma3", 256, 4, 1, 3, 256), 3},
      {"gemma4", of("gemma4", 512, 16, 1, 2, 256), 2},  // as the one of 12 billion parameters
      {"gemma4_whose_last_layers_share_caches", sharing, 4},
      {"gpt_oss", of("gpt-oss", 64, 8, 1, 4, 256), 4},
      {"lfm2", of("lfm2", 64, 4, 2, 4), 2, false},  // the other two are convolutions
      {"llama_q8_0", of("llama", 128, 4, 1), 2, true, GGML_TYPE_Q8_0},
      {"llama_q8_0_not_turned", of("llama", 64, 6, 2), 2, true, GGML_TYPE_Q8_0, false},
      {"llama_q4_0", of("llama", 64, 6, 2), 2, true, GGML_TYPE_Q4_0},
      {"qwen3_q8_0_f16", of("qwen3", 128, 4, 2), 2, true, {GGML_TYPE_Q8_0, GGML_TYPE_F16}},
      {"qwen2_q8_0_q4_0", of("qwen2", 64, 6, 2), 2, true, {GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}},
      {"phi3_f16_q4_0", of("phi3", 96, 4, 2), 2, true, {GGML_TYPE_F16, GGML_TYPE_Q4_0}},
      {"gemma2_q8_0", of("gemma2", 256, 4, 2, 2, 256), 2, true, GGML_TYPE_Q8_0},
      {"gemma3_q8_0", of("gemma3", 256, 4, 1, 3, 256), 3, true, GGML_TYPE_Q8_0},
      {"gemma4_q8_0", sharing, 4, true, GGML_TYPE_Q8_0},
      {"gpt_oss_q8_0_bf16", of("gpt-oss", 64, 8, 1, 4, 256), 4, true, {GGML_TYPE_Q8_0, GGML_TYPE_BF16}},
      {"lfm2_q8_0", of("lfm2", 64, 4, 2, 4), 2, false, GGML_TYPE_Q8_0},
  };
}

class FamilyTest : public ::testing::TestWithParam<FamilyCase> {};

TEST_P(FamilyTest, IsLlamaCppsOwn) {
  const FamilyCase& family = GetParam();
  const Model model = MakeModel(family.shape);
  ASSERT_NE(model, nullptr);
  if (!family.turned) setenv("LLAMA_ATTN_ROT_DISABLE", "1", 1);
  Pair pair(model.get(), 2048, 1, true, family.types);
  unsetenv("LLAMA_ATTN_ROT_DISABLE");
  const double near = 2 * Near(family.types);  // differences add up over the layers
  int64_t answered = ThePlugin().Count("answered"), prompts = ThePlugin().Count("prompt_answered");
  const auto expect_answered = [&](int64_t nodes, int64_t prompt_nodes) {
    EXPECT_EQ(ThePlugin().Count("answered") - answered, nodes * family.answered) << ThePlugin().report();
    EXPECT_EQ(ThePlugin().Count("prompt_answered") - prompts, prompt_nodes * family.answered) << ThePlugin().report();
    answered = ThePlugin().Count("answered"), prompts = ThePlugin().Count("prompt_answered");
  };
  for (int i = 0; i < 3; ++i) EXPECT_LT(pair.Decode({0}, 211), near) << i;  // past every window
  for (int i = 0; i < 80; ++i) ASSERT_LT(pair.Decode({0}, 1), near) << i;
  expect_answered(80, 3);
  std::vector<uint8_t> saved(llama_state_seq_get_size(pair.plain(), 0));
  llama_state_seq_get_data(pair.plain(), saved.data(), saved.size(), 0);
  if (family.rolls_back) {  // other tokens behind a cut
    const llama_pos end = pair.End(0);
    pair.Each([&](llama_context* c) { EXPECT_TRUE(llama_memory_seq_rm(llama_get_memory(c), 0, end - 70, -1)); });
    for (int i = 0; i < 20; ++i) ASSERT_LT(pair.Decode({0}, 1 + i % 3), near) << i;
    expect_answered(20, 0);
  }
  pair.Each([&](llama_context* c) {
    llama_memory_clear(llama_get_memory(c), true);
    EXPECT_GT(llama_state_seq_set_data(c, saved.data(), saved.size(), 0), 0u);
  });
  for (int i = 0; i < 20; ++i) ASSERT_LT(pair.Decode({0}, 1), near) << i;
  EXPECT_LT(pair.Decode({0}, 300), near);
  for (int i = 0; i < 20; ++i) ASSERT_LT(pair.Decode({0}, 1), near) << i;
  expect_answered(40, 1);
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyTest, ::testing::ValuesIn(FamilyCases()),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace seine::llama
