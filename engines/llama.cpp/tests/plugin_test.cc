// The plug-in in an unmodified llama.cpp, beside llama.cpp alone: the same logits wherever every cell is chosen,
// through everything that a program does to its cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "engines/llama.cpp/random_model.h"
#include "engines/llama.cpp/tests/fixtures/context_pair.h"
#include "engines/llama.cpp/tests/fixtures/loaded_plugin.h"
#include "llama.h"

namespace seine::llama {
namespace {

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
void ExpectDeclined(const ModelShape& shape, CacheTypes types, const std::string& reason) {
  SCOPED_TRACE(reason + ", " + ggml_type_name(types.k) + " " + ggml_type_name(types.v));
  const Model model = MakeModel(shape);
  Pair pair(model.get(), 1024, 1, true, types);
  const int64_t answered = ThePlugin().Count("answered"), encoded = ThePlugin().Count("encoded_keys");
  const int64_t declined = ThePlugin().Count(reason);
  for (int i = 0; i < 2; ++i) pair.Decode({0}, 256);
  for (int i = 0; i < 5; ++i) EXPECT_LT(pair.Decode({0}, 1), kSame);
  EXPECT_EQ(ThePlugin().Count("answered"), answered);
  EXPECT_EQ(ThePlugin().Count("encoded_keys"), encoded);
  EXPECT_EQ(ThePlugin().Count(reason) - declined, 5 * shape.layers) << ThePlugin().report();  // nodes, not questions
}

TEST(Plugin, OtherCacheTypesAreLeftAlone) {
  for (const CacheTypes& types : {CacheTypes(GGML_TYPE_Q5_1), CacheTypes(GGML_TYPE_F16, GGML_TYPE_Q4_1)}) {
    ExpectDeclined({.q_heads = 4, .kv_heads = 2}, types, "a cache of another type than f16, bf16, q8_0 or q4_0");
  }
  for (const CacheTypes& types : {CacheTypes(GGML_TYPE_F32), CacheTypes(GGML_TYPE_F16, GGML_TYPE_F32)}) {
    ExpectDeclined({.q_heads = 4, .kv_heads = 2}, types,
                   "a cache of f32, whose rows llama.cpp copies to f16 for each token");
  }
}

// A program ends a context and makes another one. Its cache takes the memory of the first's, with as many cells.
void ExpectAnswered(const ModelShape& shape, CacheTypes types) {
  SCOPED_TRACE(std::to_string(shape.head_dim) + ", " + ggml_type_name(types.k) + " " + ggml_type_name(types.v));
  const Model model = MakeModel(shape);
  Pair pair(model.get(), 1024, 1, true, types);
  const int64_t before = ThePlugin().Count("answered");
  for (int i = 0; i < 2; ++i) pair.Decode({0}, 256);
  for (int i = 0; i < 20; ++i) ASSERT_LT(pair.Decode({0}, 1), Near(types)) << i;
  EXPECT_EQ(ThePlugin().Count("answered") - before, 20 * 2) << ThePlugin().report();
}

TEST(Plugin, AnotherContextInTheSameMemory) {
  for (const int dim : {64, 128, 64}) {
    for (const CacheTypes& types : {CacheTypes(GGML_TYPE_F16), CacheTypes(GGML_TYPE_BF16), CacheTypes(GGML_TYPE_Q8_0),
                                    CacheTypes(GGML_TYPE_BF16, GGML_TYPE_F16), CacheTypes(GGML_TYPE_Q4_0)}) {
      ExpectAnswered({.q_heads = 256 / dim, .kv_heads = 128 / dim, .head_dim = dim}, types);
    }
  }
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
    for (const CacheTypes& types : {CacheTypes(GGML_TYPE_F16), CacheTypes(GGML_TYPE_Q8_0, GGML_TYPE_Q4_0)}) {
      Pair pair(model.get(), 4096, 2, unified, types);
      OperateAtRandom(&pair, [&](double difference) { EXPECT_LT(difference, Near(types)); });
    }
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
  // Our exact attention and llama.cpp's kernel, which adds values up in fp16, agree.
  EXPECT_GT(ThePlugin().Number("mean_plain_error"), 0);
  EXPECT_LT(ThePlugin().Number("worst_plain_error"), .01) << ThePlugin().report();
  for (const ggml_type type : {GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
    Pair pair(model.get(), 4096, 2, true, type);
    OperateAtRandom(&pair, [](double) {});
  }
  EXPECT_EQ(ThePlugin().Count("stale_windows"), 0) << ThePlugin().report();
  EXPECT_LT(ThePlugin().Number("worst_plain_error"), .05) << ThePlugin().report();  // which rounds queries
}

// With few tokens chosen from few candidates, and a gate that lets nothing be lost. Run by itself.
TEST(Gate, LayersThatLoseMuchAttendExactly) {
  const Model model = MakeModel({.embedding = 256, .q_heads = 4, .kv_heads = 2});
  Pair pair(model.get(), 2048, 3, false);
  pair.Decode({0}, 20);  // whose cells are all attended: it must not hold up the others' checks
  for (int i = 0; i < 5; ++i) pair.Decode({1, 2}, 200);
  double worst = 0;
  for (int i = 0; i < 150; ++i) worst = std::max(worst, pair.Decode({0, 1, 2}, 1));
  EXPECT_GT(worst, kSame);  // the first ones
  EXPECT_GE(ThePlugin().Count("gate_checks"), 2 * 2) << ThePlugin().report();
  EXPECT_GT(ThePlugin().Number("mean_lost"), 0) << ThePlugin().report();
  // What they wrote goes, so that what is left to differ is the answers.
  pair.Each([](llama_context* c) {
    for (const llama_seq_id s : {1, 2}) llama_memory_seq_rm(llama_get_memory(c), s, 1000, -1);
  });
  const int64_t before = ThePlugin().Count("gate_answers");
  for (int i = 0; i < 40; ++i) ASSERT_LT(pair.Decode({1, 2}, i % 3 + 1), kSame) << i << ThePlugin().report();
  EXPECT_EQ(ThePlugin().Count("gate_answers") - before, 40 * 2) << ThePlugin().report();
}

}  // namespace
}  // namespace seine::llama
