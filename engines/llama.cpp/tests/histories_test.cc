// Random histories of what programs do to a cache. From time to time a new context loads the whole of it and decodes
// the same tokens: with every token chosen, both have the same logits but for the order of sums. Where both load the
// state, cells lie alike, and logits are equal bit for bit, however few are chosen. Every answer is checked for codes
// that are of other cells. SEINE_HISTORIES=n: so many for each model in place of a few.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engines/llama.cpp/tests/fixtures/loaded_plugin.h"
#include "engines/llama.cpp/tests/fixtures/one_context.h"

namespace seine::llama {
namespace {

constexpr int kSequences = 3, kOperations = 24;
// Sums in another order; logits deviate by 2. A mask, row or code that is wrong makes a hundred times as much.
constexpr double kOrderOfSums = 5e-3;

int Histories() {
  const char* given = std::getenv("SEINE_HISTORIES");
  return given == nullptr ? 3 : std::atoi(given);
}

bool AllAreChosen() { return std::getenv("SEINE_TOP_K") == nullptr || std::atoi(std::getenv("SEINE_TOP_K")) >= 4096; }

class History {
 public:
  History(llama_model* model, const std::vector<llama_adapter_lora*>& adapters, const CacheTypes& types, uint32_t seed)
      : model_(model), adapters_(adapters), types_(types), rng_(seed), shape_(RandomShape()), old_(model, shape_) {}

  void Run() {
    static constexpr int kLengths[] = {63, 64, 65, 127, 300, 400, 500, 640};
    Read(0, kLengths[Below(8)]);
    if (Below(6) == 0) Read(0, 2046 - old_.End(0) + Below(4));  // to about 2,048 cells
    for (int i = 0; i < kOperations && !::testing::Test::HasFailure(); ++i) {
      said_ += " ";
      Operate();
      for (int t = Below(3); t >= 0; --t) Read(Any(), 1);
      if (Below(4) == 0) Compare();
    }
    Compare();
  }
  const std::string& said() const { return said_; }
  int compared() const { return compared_; }

 private:
  int Below(int n) { return static_cast<int>(rng_() % n); }
  llama_seq_id Any() { return Below(3) == 0 ? Below(kSequences) : 0; }

  ContextShape RandomShape() {
    return {.cells = 3072,
            .sequences = kSequences,
            .ubatch = 64 << Below(4),
            .unified = Below(2) == 0,
            .full_windows = Below(3) == 0,
            .types = types_};
  }

  void Say(const std::string& what) { said_ += what; }

  // False: llama.cpp has no room, or holds positions that do not follow. Then the sequence begins anew.
  bool Read(llama_seq_id sequence, int count) { return ReadAll({sequence}, count); }
  bool ReadAll(const std::vector<llama_seq_id>& sequences, int count) {
    if (count <= 0) return true;
    if (!old_.Decode(sequences, RandomTokens(count, rng_(), old_.vocabulary())).empty()) return true;
    Say("(refused)");
    for (const llama_seq_id s : sequences) Remove(s, -1, -1);
    return false;
  }

  bool Remove(llama_seq_id sequence, llama_pos begin, llama_pos end) {
    Broken(sequence);
    return llama_memory_seq_rm(old_.memory(), sequence, begin, end);
  }

  void Broken(llama_seq_id sequence) { checkpoints_.erase(sequence); }  // positions before it may change

  void Operate() {
    const llama_seq_id s = Any();
    const llama_pos end = old_.End(s);
    const int what = Below(14), some = 1 + Below(100);
    Say(std::to_string(what) + ":" + std::to_string(s) + "," + std::to_string(some));
    switch (what) {
      case 0:
        return (void)Read(s, some + Below(200));
      case 1:
        return Draft(s);
      case 2:
        return (void)ReadAll({0, 1, 2}, 1 + Below(2));
      case 3:
        return RemoveEnd(s, end - some);
      case 4:
        return RemoveMiddle(s, end, some);
      case 5:
        return Copy(s);
      case 6:
        return Below(3) == 0 ? Keep(s) : (void)Read(s, 2);
      case 7:
        return Save(s);
      case 8:
        return LoadSaved();
      case 9:
        return LoadFew(s, some);
      case 10:
        return Checkpoint(s);
      case 11:
        return Restore();
      case 12:
        return FailToLoad(s);
      default:
        return ChangeAdapter();
    }
  }

  // A draft of tokens, of which some are not accepted.
  void Draft(llama_seq_id s) {
    const int count = 2 + Below(15);
    if (Read(s, count)) RemoveEnd(s, old_.End(s) - Below(count));
  }

  void RemoveEnd(llama_seq_id s, llama_pos begin) {
    if (begin > 0 && begin < old_.End(s) && !llama_memory_seq_rm(old_.memory(), s, begin, -1)) Remove(s, -1, -1);
    const auto held = checkpoints_.find(s);
    if (held != checkpoints_.end() && held->second.end > begin) Broken(s);
  }

  // A hole; with a context shift what lies behind it moves up.
  void RemoveMiddle(llama_seq_id s, llama_pos end, int some) {
    if (end < some + 40) return;
    const llama_pos begin = 4 + Below(end - some - 30);
    if (!Remove(s, begin, begin + some)) return;
    if (Below(2) == 0 && llama_memory_can_shift(old_.memory())) {
      llama_memory_seq_add(old_.memory(), s, begin + some, -1, -some);
    }
  }

  void Copy(llama_seq_id from) {
    const llama_seq_id to = (from + 1 + Below(kSequences - 1)) % kSequences;
    Remove(to, -1, -1);
    llama_memory_seq_cp(old_.memory(), from, to, -1, -1);
  }

  void Keep(llama_seq_id s) {
    for (int i = 0; i < kSequences; ++i) {
      if (i != s) Broken(i);
    }
    llama_memory_seq_keep(old_.memory(), s);
  }

  void Save(llama_seq_id s) {
    if (Below(3) == 0) s = -1;
    if (s < 0 || old_.End(s) > 0) saved_[s] = old_.Save(s);
  }

  void LoadSaved() {
    if (saved_.empty()) return;
    const auto& [of, state] = *std::next(saved_.begin(), Below(static_cast<int>(saved_.size())));
    const llama_seq_id to = of < 0 ? -1 : Any();
    for (int i = 0; i < kSequences; ++i) {
      if (to < 0 || i == to) Broken(i);
    }
    if (!old_.Load(state, to)) Say("(not loaded)");
  }

  // A state of few cells, into whatever is free: the middle of windows that are encoded, where there is a hole.
  void LoadFew(llama_seq_id s, int some) {
    const llama_seq_id short_one = (s + 1) % kSequences;
    Remove(short_one, -1, -1);
    if (!Read(short_one, some)) return;
    const State few = old_.Save(short_one);
    Remove(short_one, -1, -1);
    const llama_pos end = old_.End(s);
    if (end > 200) Remove(s, end / 2, end / 2 + some);
    old_.Load(few, short_one);
  }

  // What a server does: the part that cannot be cut back is kept, and restored before the rest is cut.
  void Checkpoint(llama_seq_id s) {
    if (old_.End(s) > 0) checkpoints_[s] = {old_.Save(s, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY), old_.End(s)};
  }
  void Restore() {
    if (checkpoints_.empty()) return;
    const llama_seq_id s = checkpoints_.begin()->first;
    const auto& [state, end] = checkpoints_.begin()->second;
    if (old_.End(s) < end) return Broken(s);
    const bool loaded = old_.Load(state, s, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    if (!loaded || !llama_memory_seq_rm(old_.memory(), s, end, -1)) Remove(s, -1, -1);
  }

  void FailToLoad(llama_seq_id s) {
    State state = old_.Save(0);
    if (state.size() < 100) return;
    state.resize(state.size() - 1 - Below(static_cast<int>(state.size() / 2)));
    Broken(s);
    EXPECT_FALSE(old_.Load(state, s));
    Remove(s, -1, -1);
  }

  void ChangeAdapter() {
    adapter_ = adapters_.empty() || Below(3) == 0 ? nullptr : adapters_[Below(static_cast<int>(adapters_.size()))];
    old_.Use(adapter_);
  }

  void Compare() {
    const State state = old_.Save(-1);
    OneContext fresh(model_, shape_);
    fresh.Use(adapter_);
    const bool both_load = Below(2) == 0;
    if (both_load) {
      ASSERT_TRUE(old_.Load(state, -1)) << said_;
    }
    ASSERT_TRUE(fresh.Load(state, -1)) << said_;
    for (int i = 0; i < 4; ++i) {
      std::vector<llama_seq_id> sequences = {Any()};
      if (i == 3) sequences = {0, 1, 2};
      const std::vector<llama_token> tokens = RandomTokens(i == 1 ? 5 : 1, rng_(), old_.vocabulary());
      const std::vector<float> got = old_.Decode(sequences, tokens), want = fresh.Decode(sequences, tokens);
      if (both_load) {
        ASSERT_TRUE(got == want) << Largest(got, want) << " at " << i << " of" << said_;
      } else if (AllAreChosen()) {
        ASSERT_LT(Largest(got, want), kOrderOfSums) << i << " of" << said_;
      }
      ++compared_;
      if (got.empty()) return;  // no room, in both
    }
  }

  struct Kept {
    State state;
    llama_pos end = 0;
  };

  llama_model* const model_;
  const std::vector<llama_adapter_lora*> adapters_;
  const CacheTypes types_;
  std::mt19937 rng_;
  const ContextShape shape_;
  OneContext old_;
  llama_adapter_lora* adapter_ = nullptr;
  std::map<llama_seq_id, State> saved_;
  std::map<llama_seq_id, Kept> checkpoints_;
  std::string said_;
  int compared_ = 0;
};

// Each history in caches of the next types.
void RunHistories(const ModelShape& shape, const std::vector<CacheTypes>& types = {CacheTypes()}) {
  const Model model = MakeModel(shape);
  std::vector<llama_adapter_lora*> adapters;
  if (shape.architecture != "lfm2" && shape.architecture != "gemma4") {  // whose layers' values differ in size
    adapters = {MakeAdapter(model.get(), shape, {shape.layers - 1}, 5), MakeAdapter(model.get(), shape, {0}, 6)};
  }
  int compared = 0;
  for (int i = 0; i < Histories() && !::testing::Test::HasFailure(); ++i) {
    const int64_t stale = ThePlugin().Count("stale_windows");
    History history(model.get(), adapters, types[i % types.size()], 100 + i);
    history.Run();
    EXPECT_EQ(ThePlugin().Count("stale_windows") - stale, 0) << "history " << i << ":" << history.said();
    compared += history.compared();
  }
  std::printf("%s: %d histories, %d steps compared with a new context's, %lld answers checked in all\n",
              shape.architecture.c_str(), Histories(), compared, static_cast<long long>(ThePlugin().Count("checked")));
  EXPECT_GT(ThePlugin().Count("checked"), 100) << "SEINE_CHECK=1 must be set";
}

TEST(Histories, Llama) { RunHistories({.q_heads = 4, .kv_heads = 2}); }

TEST(Histories, QuantisedCaches) {
  RunHistories({.q_heads = 4, .kv_heads = 2},
               {CacheTypes(GGML_TYPE_Q8_0), CacheTypes(GGML_TYPE_Q4_0), CacheTypes(GGML_TYPE_Q8_0, GGML_TYPE_Q4_0),
                CacheTypes(GGML_TYPE_Q8_0, GGML_TYPE_F16)});
}

TEST(Histories, QuantisedRings) {
  RunHistories({.architecture = "gemma3", .layers = 3, .q_heads = 4, .kv_heads = 2, .sliding_window = 200},
               {CacheTypes(GGML_TYPE_Q4_0, GGML_TYPE_Q8_0), CacheTypes(GGML_TYPE_F16, GGML_TYPE_Q8_0)});
}

// Rings of 300 cells and more, which wrap many times.
TEST(Histories, Gemma3) {
  RunHistories({.architecture = "gemma3", .layers = 3, .q_heads = 4, .kv_heads = 2, .sliding_window = 200});
}

TEST(Histories, TwoShapes) {
  RunHistories({.architecture = "gemma4", .q_heads = 4, .kv_heads = 2, .head_dim = 128, .sliding_window = 200});
}

TEST(Histories, Hybrid) {
  RunHistories({.architecture = "lfm2", .layers = 4, .embedding = 256, .q_heads = 4, .kv_heads = 2});
}

}  // namespace
}  // namespace seine::llama
