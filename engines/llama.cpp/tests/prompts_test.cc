// A prompt's micro-batches through the plug-in, in an unmodified llama.cpp: logits are llama.cpp's own where they are
// exact, whatever lies in the cache; sparse ones attend to fewer keys. What SEINE_PROMPT says is read once a process.
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

int64_t Count(const char* name) { return ThePlugin().Count(name); }

TEST(Prompts, AreLlamaCppsOwnInEachShape) {
  for (const ModelShape& shape : std::vector<ModelShape>{
           {.embedding = 256, .q_heads = 4, .kv_heads = 2},
           {.architecture = "qwen3", .embedding = 512, .q_heads = 6, .kv_heads = 2, .head_dim = 128},
           {.embedding = 256, .q_heads = 8, .kv_heads = 1},
           {.architecture = "gemma3", .layers = 3, .q_heads = 4, .kv_heads = 2, .sliding_window = 200}}) {
    SCOPED_TRACE(shape.architecture + " " + std::to_string(shape.q_heads));
    const Model model = MakeModel(shape);
    Pair pair(model.get(), 2048, 1, true);
    const int64_t before = Count("prompt_answered");
    for (const int tokens : {17, 63, 64, 65, 300, 512}) EXPECT_LT(pair.Decode({0}, tokens), kSame) << tokens;
    EXPECT_EQ(Count("prompt_answered") - before, 6 * shape.layers) << ThePlugin().report();
  }
}

// Slots whose cells lie between each other's, or in streams of their own; holes, shifts and rolls back.
TEST(Prompts, AreLlamaCppsOwnInUsedCaches) {
  const Model model = MakeModel({.embedding = 256, .q_heads = 4, .kv_heads = 2});
  for (const bool unified : {true, false}) {
    SCOPED_TRACE(unified);
    Pair pair(model.get(), unified ? 4096 : 1536, 3, unified);
    for (int i = 0; i < 3; ++i) {
      for (const llama_seq_id s : {0, 1, 2}) EXPECT_LT(pair.Decode({s}, 100 + 30 * s), kSame) << i << " " << s;
      EXPECT_LT(pair.Decode({0, 1, 2}, 40), kSame);
    }
    pair.Each([&](llama_context* c) { llama_memory_seq_rm(llama_get_memory(c), 1, 30, -1); });
    EXPECT_LT(pair.Decode({1}, 200), kSame);
    pair.Each([&](llama_context* c) {
      llama_memory_seq_rm(llama_get_memory(c), 0, 20, 90);
      llama_memory_seq_add(llama_get_memory(c), 0, 90, -1, -70);
    });
    EXPECT_LT(pair.Decode({0}, 150), kSame);
    EXPECT_LT(pair.Decode({2, 0}, 70), kSame);
  }
  EXPECT_GT(Count("prompt_compared"), 0);
  EXPECT_EQ(Count("prompt_exact_blocks"), Count("prompt_blocks"));
}

TEST(SparsePrompts, AttendToFewerKeys) {
  const Model model = MakeModel({.embedding = 256, .q_heads = 4, .kv_heads = 2});
  Pair pair(model.get(), 5120, 1, true);
  for (int i = 0; i < 8; ++i) EXPECT_LT(pair.Decode({0}, 512), 10.0) << i;
  EXPECT_GT(Count("prompt_blocks"), Count("prompt_exact_blocks"));
  EXPECT_LT(Count("prompt_runs_taken"), Count("prompt_runs_seen"));
  EXPECT_GT(Count("prompt_compared"), 0);
}

TEST(PromptsOff, AreLlamaCpps) {
  const Model model = MakeModel({.embedding = 256, .q_heads = 4, .kv_heads = 2});
  Pair pair(model.get(), 1024, 1, true);
  EXPECT_EQ(pair.Decode({0}, 500), 0.0);
  EXPECT_EQ(Count("prompt_answered"), 0);
}

}  // namespace
}  // namespace seine::llama
