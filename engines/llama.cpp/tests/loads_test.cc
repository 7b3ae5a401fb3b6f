// Loads of states, with few tokens chosen: a context with a past answers as a new one that loads the same, bit for bit,
// and no window's codes are of other cells. SEINE_CHECK=1, SEINE_MIN_KV=600 and few
// chosen are set where this runs.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engines/llama.cpp/tests/fixtures/loaded_plugin.h"
#include "engines/llama.cpp/tests/fixtures/one_context.h"

namespace seine::llama {
namespace {

constexpr int kVocabulary = 64;

std::vector<llama_token> Text(int count, uint32_t seed) { return RandomTokens(count, seed, kVocabulary); }

std::vector<llama_token> Joined(std::vector<llama_token> a, const std::vector<llama_token>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// No answer since it was made had codes of other cells.
struct Stale {
  const int64_t before = ThePlugin().Count("stale_windows"), checked = ThePlugin().Count("checked");
  ~Stale() {
    EXPECT_GT(ThePlugin().Count("checked"), checked) << "SEINE_CHECK=1 must be set";
    EXPECT_EQ(ThePlugin().Count("stale_windows") - before, 0) << ThePlugin().report();
  }
};

// How many of `steps` tokens have other logits than in a new context that loads the state.
int CountOtherSteps(llama_model* model, const ContextShape& shape, OneContext* old, const State& state, int steps,
                    llama_adapter_lora* adapter = nullptr) {
  OneContext fresh(model, shape);
  fresh.Use(adapter);
  EXPECT_TRUE(fresh.Load(state, 0));
  int others = 0;
  for (const llama_token token : Text(steps, 77)) {
    const std::vector<float> want = fresh.Decode({0}, {token}), got = old->Decode({0}, {token});
    EXPECT_FALSE(want.empty());
    if (want != got) ++others;
  }
  return others;
}

// The cache of the layers that slide has 768 cells, of which 512 are in use: their writes are seen and their nodes are
// not. The other layers are answered.
TEST(Loads, AStateIntoAModelThatSlides) {
  const Model model = MakeModel({.architecture = "gemma3",
                                 .layers = 4,
                                 .embedding = 256,
                                 .q_heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 64,
                                 .sliding_window = 200});
  for (const bool full : {false, true}) {
    SCOPED_TRACE(full);
    const Stale stale;
    const ContextShape shape = {.cells = 2048, .sequences = 2, .ubatch = 128, .full_windows = full};
    const std::vector<llama_token> common = Text(700, 1);
    OneContext old(model.get(), shape);
    ASSERT_FALSE(old.Decode({0}, Joined(common, Text(400, 2))).empty());
    const State a = old.Save(0);
    llama_memory_clear(old.memory(), true);
    ASSERT_FALSE(old.Decode({0}, Joined(common, Text(400, 3))).empty());
    for (const llama_token token : Text(20, 5)) old.Decode({0}, {token});
    llama_memory_seq_rm(old.memory(), 0, -1, -1);
    ASSERT_TRUE(old.Load(a, 0));
    EXPECT_EQ(CountOtherSteps(model.get(), shape, &old, a, 40), 0);
  }
}

// As a server's checkpoints do: the sliding cache alone is loaded.
TEST(Loads, TheSlidingCacheAlone) {
  const Model model = MakeModel({.architecture = "gemma3",
                                 .layers = 4,
                                 .embedding = 256,
                                 .q_heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 64,
                                 .sliding_window = 300});
  const Stale stale;
  const ContextShape shape = {.cells = 2048, .sequences = 2};
  OneContext old(model.get(), shape);
  ASSERT_FALSE(old.Decode({0}, Text(900, 1)).empty());
  const State whole = old.Save(0), partial = old.Save(0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
  for (int round = 0; round < 3; ++round) {
    ASSERT_FALSE(old.Decode({0}, Text(400, 10 + round)).empty());
    for (const llama_token token : Text(10, 20 + round)) old.Decode({0}, {token});
    ASSERT_TRUE(old.Load(partial, 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY));
    ASSERT_TRUE(llama_memory_seq_rm(old.memory(), 0, 900, -1));
    EXPECT_EQ(CountOtherSteps(model.get(), shape, &old, whole, 30), 0) << round;
    ASSERT_TRUE(old.Load(partial, 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY));
    ASSERT_TRUE(llama_memory_seq_rm(old.memory(), 0, 900, -1));
  }
}

// An adapter on values leaves its own layer's keys as they are, and on the last layer all keys.
TEST(Loads, ValuesThatChangeUnderTheSameKeys) {
  const ModelShape of = {.layers = 3, .q_heads = 4, .kv_heads = 2};
  const Model model = MakeModel(of);
  for (const std::vector<int>& layers : std::vector<std::vector<int>>{{0}, {2}, {0, 1, 2}}) {
    SCOPED_TRACE(layers.size() * 10 + layers[0]);
    const Stale stale;
    const ContextShape shape = {.cells = 2048};
    llama_adapter_lora* const adapters[] = {MakeAdapter(model.get(), of, layers, 5),
                                            MakeAdapter(model.get(), of, layers, 6)};
    OneContext old(model.get(), shape);
    State states[2];
    for (int i : {0, 1}) {
      llama_memory_clear(old.memory(), true);
      old.Use(adapters[i]);
      ASSERT_FALSE(old.Decode({0}, Text(900, 1)).empty());
      states[i] = old.Save(0);
      for (const llama_token token : Text(3, 9)) old.Decode({0}, {token});
    }
    for (int i : {0, 1, 0}) {
      llama_memory_seq_rm(old.memory(), 0, -1, -1);
      ASSERT_TRUE(old.Load(states[i], 0));
      old.Use(adapters[i]);
      EXPECT_EQ(CountOtherSteps(model.get(), shape, &old, states[i], 20, adapters[i]), 0) << i;
    }
  }
}

// A few cells inside of windows that are encoded: another text's cells of the same positions take their place, and new
// tokens are written behind the end alone. Each answer is checked.
TEST(Loads, OfOneToAHundredCells) {
  const Model model = MakeModel({.q_heads = 4, .kv_heads = 2});
  const std::vector<int> counts = {1, 2, 3, 5, 8, 13, 20, 40, 63, 64, 65, 100};
  const auto begin_of = [](int count) { return 200 + 7 * count; };
  std::vector<State> states;
  for (const int count : counts) {
    OneContext other(model.get(), {.cells = 1024, .sequences = 2});
    ASSERT_FALSE(other.Decode({1}, Text(begin_of(count) + count, 100 + count)).empty());
    llama_memory_seq_rm(other.memory(), 1, 0, begin_of(count));
    states.push_back(other.Save(1));
  }
  OneContext old(model.get(), {.cells = 2048, .sequences = 2});
  ASSERT_FALSE(old.Decode({0}, Text(1500, 1)).empty());
  for (const llama_token token : Text(5, 2)) ASSERT_FALSE(old.Decode({0}, {token}).empty());
  const Stale stale;
  for (size_t i = 0; i < counts.size(); ++i) {
    const llama_pos begin = begin_of(counts[i]);
    llama_memory_seq_rm(old.memory(), 0, begin, begin + counts[i]);
    ASSERT_TRUE(old.Load(states[i], 1));
    llama_memory_seq_cp(old.memory(), 1, 0, -1, -1);
    llama_memory_seq_rm(old.memory(), 1, -1, -1);
    for (const llama_token token : Text(5, counts[i])) ASSERT_FALSE(old.Decode({0}, {token}).empty());
  }
}

// Layers of two shapes: each is answered by codes of its own length.
TEST(Loads, LayersOfTwoShapes) {
  const Model model = MakeModel({.architecture = "gemma4",
                                 .layers = 4,
                                 .embedding = 256,
                                 .q_heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 128,
                                 .sliding_window = 300});
  const Stale stale;
  const ContextShape shape = {.cells = 2048, .full_windows = true};
  OneContext old(model.get(), shape);
  ASSERT_FALSE(old.Decode({0}, Text(1000, 1)).empty());
  const int64_t answered = ThePlugin().Count("answered");
  for (const llama_token token : Text(20, 5)) ASSERT_FALSE(old.Decode({0}, {token}).empty());
  EXPECT_EQ(ThePlugin().Count("answered") - answered, 20 * 4) << ThePlugin().report();
}

// A hole near the beginning is filled: as many keys are encoded as for a text in a row, but for the hole's windows, and
// nothing is compared but what answers compare.
TEST(Loads, AHoleThatIsFilledCostsWhatATextInARowDoes) {
  const ModelShape of = {.q_heads = 4, .kv_heads = 2};
  const Model model = MakeModel(of);
  const Stale stale;
  const auto encoded = [&](bool hole) {
    OneContext context(model.get(), {.cells = 4096});
    EXPECT_FALSE(context.Decode({0}, Text(2000, 1)).empty());
    for (const llama_token token : Text(2, 4)) context.Decode({0}, {token});
    if (hole) llama_memory_seq_rm(context.memory(), 0, 200, 300);
    const int64_t before = ThePlugin().Count("encoded_keys");
    for (const llama_token token : Text(450, 5)) EXPECT_FALSE(context.Decode({0}, {token}).empty());
    return ThePlugin().Count("encoded_keys") - before;
  };
  constexpr int64_t kWindowOfAll = 64 * 2 * 2;  // keys of a window, of all heads and layers
  const int64_t row = encoded(false), filled = encoded(true);
  EXPECT_GT(row, 0);
  EXPECT_LE(filled, row + 2 * kWindowOfAll);
}

}  // namespace
}  // namespace seine::llama
