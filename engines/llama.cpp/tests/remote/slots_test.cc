// Several chats in one context whose cache is smaller than any of them, as slots of a server are: read, rolled back,
// copied, removed, saved and loaded, beside llama.cpp alone with all cells. SEINE_SLOTS=n: so many operations for each
// kind of cache in place of a few.
#include <gtest/gtest.h>

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engines/llama.cpp/tests/fixtures/context_pair.h"
#include "engines/llama.cpp/tests/fixtures/loaded_plugin.h"
#include "engines/llama.cpp/tests/remote/remote_server.h"

namespace seine::llama {
namespace {

constexpr int kCellsOfSlots = 1024;  // of the engine's cache, of all slots
constexpr int kMostTokensOfSlot = 1900;
// What llama.cpp's sums in fp16 lose grows with the text, and its rows with it. Another chat's cells make ten times as
// much.
constexpr double kNear = 3 * kSame;

const ModelShape kSlotShape = {.embedding = 256, .q_heads = 4, .kv_heads = 2};

// Run with SEINE_CELLS the engine's cache has cells for all, and memory for few of them.
bool HasAllCells() { return std::getenv("SEINE_CELLS") != nullptr; }

int64_t ResidentBytes() {
  int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int Operations() {
  const char* given = std::getenv("SEINE_SLOTS");
  return given == nullptr ? 500 : std::atoi(given);
}

using Bytes = std::vector<uint8_t>;

// Chats by sequence.
class Slots {
 public:
  Slots(llama_model* model, int slots, bool unified)
      : slots_(slots), vocabulary_(llama_vocab_n_tokens(llama_model_get_vocab(model))) {
    plain_ = Make(model, kPlain, 2048 * slots, /*unified=*/false);
    unified_ = unified;
    model_ = model;
    StartEngine();
  }

  // The engine with the plug-in ends and begins anew, with nothing in its cache.
  void StartEngine() {
    remote_.reset();
    remote_ = Make(model_, kSeine, HasAllCells() ? 2048 * slots_ : kCellsOfSlots, unified_);
  }

  llama_pos End(llama_seq_id s) { return llama_memory_seq_pos_max(Memory(plain_), s) + 1; }
  llama_pos Begin(llama_seq_id s) { return llama_memory_seq_pos_min(Memory(remote_), s); }

  // Reads so many random tokens of each in one batch. The largest difference of their logits; infinite: the remote one
  // failed, and neither has the tokens.
  double Read(const std::vector<llama_seq_id>& sequences, int count) {
    MakeRoom(sequences, count);
    llama_batch batch = llama_batch_init(static_cast<int32_t>(sequences.size()) * count, 0, 1);
    for (const llama_seq_id s : sequences) {
      for (int i = 0; i < count; ++i) {
        const int n = batch.n_tokens++;
        batch.token[n] = static_cast<llama_token>(rng_() % vocabulary_);
        batch.pos[n] = End(s) + i;
        batch.n_seq_id[n] = 1;
        batch.seq_id[n][0] = s;
        batch.logits[n] = 1;
      }
    }
    double worst = 0;
    ThePlugin().set_mode(kSeine);
    if (llama_decode(remote_.get(), batch) != 0) worst = INFINITY;
    ThePlugin().set_mode(kPlain);
    if (worst == 0) {
      EXPECT_EQ(llama_decode(plain_.get(), batch), 0);
    }
    for (int n = 0; n < batch.n_tokens && std::isfinite(worst); ++n) {
      const float *a = llama_get_logits_ith(plain_.get(), n), *b = llama_get_logits_ith(remote_.get(), n);
      for (int v = 0; v < vocabulary_; ++v) worst = std::max(worst, std::abs(static_cast<double>(a[v]) - b[v]));
    }
    llama_batch_free(batch);
    return worst;
  }

  // In both.
  void Remove(llama_seq_id s, llama_pos begin) {
    for (const Context* c : {&plain_, &remote_}) llama_memory_seq_rm(Memory(*c), s, begin, -1);
  }
  void Copy(llama_seq_id from, llama_seq_id to) {
    Remove(to, -1);
    for (const Context* c : {&plain_, &remote_}) llama_memory_seq_cp(Memory(*c), from, to, -1, -1);
  }
  // The engine's own cells go, but the newest `left`.
  void RemoveOld(llama_seq_id s, llama_pos left) {
    if (End(s) > left && !HasAllCells()) llama_memory_seq_rm(Memory(remote_), s, 0, End(s) - left);
  }

  // What each has of a chat: all, and what few cells hold.
  struct Saved {
    Bytes plain, remote;
  };
  Saved Save(llama_seq_id s) {
    const auto save = [&](llama_context* context) {
      Bytes state(llama_state_seq_get_size(context, s));
      state.resize(llama_state_seq_get_data(context, state.data(), state.size(), s));
      return state;
    };
    return {save(plain_.get()), save(remote_.get())};
  }
  bool Load(const Saved& saved, llama_seq_id s) {
    Remove(s, -1);
    int64_t cells = 0;  // that the others leave
    for (llama_seq_id of = 0; of < slots_; ++of) cells += Held(of);
    if (cells > kCellsOfSlots / 4) {
      for (llama_seq_id of = 0; of < slots_; ++of) RemoveOld(of, 40);
    }
    const auto load = [&](llama_context* context, const Bytes& state) {
      return llama_state_seq_set_data(context, state.data(), state.size(), s) > 0;
    };
    const bool loaded = load(remote_.get(), saved.remote);
    EXPECT_TRUE(load(plain_.get(), saved.plain));
    if (!loaded) Remove(s, -1);
    return loaded;
  }

 private:
  static llama_memory_t Memory(const Context& context) { return llama_get_memory(context.get()); }

  Context Make(llama_model* model, Mode mode, int cells, bool unified) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = cells;
    params.n_batch = params.n_ubatch = 256;
    params.n_seq_max = slots_;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.kv_unified = unified;
    ThePlugin().set_mode(mode);
    Context made = {llama_init_from_model(model, params), &llama_free};
    EXPECT_NE(made, nullptr);
    return made;
  }

  int64_t Held(llama_seq_id s) {
    return Begin(s) < 0 ? 0 : llama_memory_seq_pos_max(Memory(remote_), s) + 1 - Begin(s);
  }
  // Cells for so many tokens of each: those that have more than their share lose old ones.
  void MakeRoom(const std::vector<llama_seq_id>& sequences, int count) {
    const int64_t cells = unified_ ? kCellsOfSlots - count * static_cast<int64_t>(sequences.size())
                                   : kCellsOfSlots - count * static_cast<int64_t>(slots_);
    const auto share = static_cast<llama_pos>(cells / slots_ - 8);
    for (llama_seq_id s = 0; s < slots_; ++s) {
      if (Held(s) > share) RemoveOld(s, share);
    }
  }

  const int slots_, vocabulary_;
  llama_model* model_ = nullptr;
  bool unified_ = false;
  std::mt19937 rng_{17};
  Context plain_ = {nullptr, &llama_free}, remote_ = {nullptr, &llama_free};
};

std::unique_ptr<Server> server_of_slots;

class SlotsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (server_of_slots == nullptr) server_of_slots = std::make_unique<Server>("256MiB");
  }
  static int64_t Count(const std::string& name) { return ThePlugin().Count(name); }
};

class SlotsOf : public SlotsTest, public ::testing::WithParamInterface<bool> {};

TEST_P(SlotsOf, FourChatsLongerThanTheCache) {
  const Model model = MakeModel(kSlotShape);
  Slots slots(model.get(), 4, GetParam());
  for (int i = 0; i < 12; ++i) {
    for (const llama_seq_id s : {0, 1, 2, 3}) ASSERT_LT(slots.Read({s}, 60 + 10 * s), kSame) << i << " " << s;
    ASSERT_LT(slots.Read({0, 1, 2, 3}, 1), kSame) << i;
    ASSERT_LT(slots.Read({3, 1}, 5), kSame) << i;
  }
  EXPECT_GT(slots.End(3), 4 * kCellsOfSlots / 4);
  if (HasAllCells()) {
    EXPECT_EQ(slots.Begin(0), 0);
    EXPECT_GT(Count("given_back_cells"), 1000);
  } else {
    EXPECT_GT(slots.Begin(0), 0);
  }
  // A slot's chat ends, and another one begins in it.
  slots.Remove(2, -1);
  for (int i = 0; i < 6; ++i) ASSERT_LT(slots.Read({2}, 70), kSame) << i;
  ASSERT_LT(slots.Read({0, 1, 2, 3}, 2), kSame);
}

// As `n` answers to one prompt are made, and as prompts that share a prefix may be.
TEST_P(SlotsOf, APrefixThatChatsShare) {
  const Model model = MakeModel(kSlotShape);
  Slots slots(model.get(), 3, GetParam());
  for (int i = 0; i < 8; ++i) ASSERT_LT(slots.Read({0}, 100), kSame);
  slots.Copy(0, 1);
  ASSERT_LT(slots.Read({0, 1}, 1), kSame);
  for (int i = 0; i < 5; ++i) ASSERT_LT(slots.Read({0, 1}, 20), kSame) << i;
  slots.Copy(1, 2);
  slots.Remove(2, slots.End(2) - 30);  // a part of it is shared
  for (int i = 0; i < 5; ++i) ASSERT_LT(slots.Read({2, 0, 1}, 7), kSame) << i;
}

TEST_P(SlotsOf, AChatThatIsLoadedIsKnownByItsRows) {
  const Model model = MakeModel(kSlotShape);
  Slots slots(model.get(), 2, GetParam());
  for (int i = 0; i < 8; ++i) ASSERT_LT(slots.Read({0}, 100), kSame);
  const Slots::Saved saved = slots.Save(0);
  slots.Remove(0, -1);
  for (int i = 0; i < 8; ++i) ASSERT_LT(slots.Read({0}, 90), kSame);
  ASSERT_TRUE(slots.Load(saved, 1));
  ASSERT_LT(slots.Read({1}, 1), kSame);
  ASSERT_LT(slots.Read({0, 1}, 3), kSame);
  ASSERT_TRUE(slots.Load(saved, 0));  // the same once more, behind which the other has gone on
  ASSERT_LT(slots.Read({0, 1}, 3), kSame);
}

// A restart: chats are loaded while others are answered.
TEST_P(SlotsOf, RowsThatAreLoadedAsZerosTakeNoMemory) {
  const Model model = MakeModel(kSlotShape);
  Slots slots(model.get(), 4, GetParam());
  for (int i = 0; i < 18; ++i) ASSERT_LT(slots.Read({0}, 100), kNear) << i;
  ASSERT_LT(slots.Read({0}, 1), kNear);
  const Slots::Saved saved = slots.Save(0);
  const int64_t begin = ResidentBytes();
  for (const llama_seq_id s : {1, 2, 3}) ASSERT_TRUE(slots.Load(saved, s)) << s;
  ASSERT_LT(slots.Read({0, 1, 2, 3}, 1), kNear);
  // Bytes of 1,801 tokens' keys and values in two layers. The deepest layer's keys stay.
  const int64_t rows = int64_t{3} * 1801 * 2 * 64 * 2;
  if (HasAllCells()) {
    EXPECT_LT(ResidentBytes() - begin, 2 * rows);
  }
}

TEST_P(SlotsOf, RandomOperations) {
  const Model model = MakeModel(kSlotShape);
  constexpr int kSlots = 3;
  Slots slots(model.get(), kSlots, GetParam());
  const char* seed = std::getenv("SEINE_SLOTS_SEED");
  std::mt19937 rng(seed == nullptr ? 23 : std::atoi(seed));
  const auto below = [&](int n) { return static_cast<int>(rng() % n); };
  std::vector<Slots::Saved> saved;
  std::string said;
  int64_t wrong = 0, read = 0;
  const int64_t answered = Count("answered");
  const auto check = [&](const std::vector<llama_seq_id>& sequences, int count) {
    const double difference = slots.Read(sequences, count);
    wrong += difference < kNear ? 0 : 1;
    ++read;
    EXPECT_LT(difference, kNear) << said << "\n" << ThePlugin().report();
  };
  for (int i = 0; i < Operations() && wrong < 3; ++i) {
    const llama_seq_id s = below(kSlots), other = (s + 1 + below(kSlots - 1)) % kSlots;
    const int what = below(12), some = 1 + below(80);
    said += " " + std::to_string(what) + ":" + std::to_string(s) + "," + std::to_string(some);
    for (llama_seq_id of = 0; of < kSlots; ++of) {
      if (slots.End(of) > kMostTokensOfSlot) slots.Remove(of, -1), said += "!";
    }
    if (what <= 3) check({s}, some);
    if (what == 4) check({0, 1, 2}, 1 + some % 20);
    if (what == 5) check({s, other}, 1 + some % 3);
    if (what == 6 && saved.empty() && slots.End(s) - slots.Begin(s) > some + 2) slots.Remove(s, slots.End(s) - some);
    // Rows are rolled back by more than a draft's few, which a saved state would not survive.
    if (what == 6 && slots.End(s) - slots.Begin(s) > some + 30) slots.Remove(s, slots.End(s) - some - 20);
    if (what == 7) {  // what differs by few rows is taken for a draft's as well
      slots.Copy(s, other);
      check({s, other}, 17 + some);
    }
    if (what == 8 && below(4) == 0) slots.Remove(s, -1);
    if (what == 9) slots.RemoveOld(s, 1 + some % 40);
    if (what == 10 && slots.End(s) > 0) saved.push_back(slots.Save(s));
    if (saved.size() > 8) saved.erase(saved.begin());  // the server does not keep all that ever was
    if (what == 11 && !saved.empty()) slots.Load(saved[below(static_cast<int>(saved.size()))], s);
    check({below(kSlots)}, 1);
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(read, Operations());
  EXPECT_GT(Count("answered") - answered, Operations());
  RecordProperty("read", std::to_string(read));
}

INSTANTIATE_TEST_SUITE_P(Caches, SlotsOf, ::testing::Bool(),
                         [](const auto& of) { return std::string(of.param ? "unified" : "streams"); });

// Run with SEINE_INDEX.
class KeptIndex : public SlotsTest {};

TEST_F(KeptIndex, AnEngineThatStartsAgainFindsItsChats) {
  const Model model = MakeModel(kSlotShape);
  Slots slots(model.get(), 2, /*unified=*/true);
  for (int i = 0; i < 10; ++i) {
    for (const llama_seq_id s : {0, 1}) ASSERT_LT(slots.Read({s}, 90 + 5 * s), kSame) << i;
  }
  slots.RemoveOld(0, 40), slots.RemoveOld(1, 1);
  const Slots::Saved first = slots.Save(0), second = slots.Save(1);
  slots.StartEngine();
  const int64_t bytes = Count("remote_bytes");
  ASSERT_TRUE(slots.Load(first, 0));
  ASSERT_TRUE(slots.Load(second, 1));
  ASSERT_LT(slots.Read({0, 1}, 1), kSame);
  EXPECT_EQ(Count("remote_bytes") - bytes, 2 * 2 * (2 * 2 * 64 * 2 + 4 * 64 * 4));  // of two tokens and two layers
  for (int i = 0; i < 3; ++i) ASSERT_LT(slots.Read({0, 1}, 20), kSame) << i;
  EXPECT_EQ(server_of_slots->Count("index list -o json", "chats-"), 1);
  // A chat that the server never had is not taken for another.
  slots.Remove(0, -1);
  ASSERT_LT(slots.Read({0}, 90), kSame);
}

TEST_F(KeptIndex, AServerThatStartsAgainHasItsChats) {
  const Model model = MakeModel(kSlotShape);
  Slots slots(model.get(), 2, /*unified=*/false);
  for (int i = 0; i < 8; ++i) {
    for (const llama_seq_id s : {0, 1}) ASSERT_LT(slots.Read({s}, 90 + 5 * s), kSame) << i;
  }
  server_of_slots->Kill(SIGTERM);
  EXPECT_EQ(slots.Read({0}, 1), INFINITY);
  server_of_slots->Start();
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // the plug-in tries again
  for (int i = 0; i < 4; ++i) ASSERT_LT(slots.Read({0, 1}, 1 + 7 * i), kSame) << ThePlugin().report();
}

// Layers that slide have an index of their own where they are as many as the others.
TEST_F(KeptIndex, LayersThatSlideLeaveTheOthersChats) {
  ModelShape shape = {.architecture = "gemma2", .layers = 4, .embedding = 256, .q_heads = 4, .kv_heads = 2};
  shape.head_dim = 256, shape.sliding_window = 64;
  const Model model = MakeModel(shape);
  Slots slots(model.get(), 2, /*unified=*/true);
  for (int i = 0; i < 12; ++i) ASSERT_LT(slots.Read({0}, 40), kNear) << i;  // at first both kinds see all
  slots.RemoveOld(0, 100);
  const Slots::Saved saved = slots.Save(0);
  slots.StartEngine();
  for (int i = 0; i < 3; ++i) ASSERT_LT(slots.Read({1}, 40), kNear) << i;
  ASSERT_TRUE(slots.Load(saved, 0));
  for (int i = 0; i < 3; ++i) ASSERT_LT(slots.Read({0}, 1 + i), kNear) << ThePlugin().report();
}

TEST_F(KeptIndex, ASequenceThatTheServerLost) {
  const Model model = MakeModel(kSlotShape);
  Slots slots(model.get(), 2, /*unified=*/true);
  for (int i = 0; i < 8; ++i) {
    for (const llama_seq_id s : {0, 1}) ASSERT_LT(slots.Read({s}, 90), kSame) << i;
  }
  // Another engine takes the first chat by its rows, and goes on with it.
  Slots thief(model.get(), 2, /*unified=*/true);
  ASSERT_TRUE(thief.Load(slots.Save(0), 0));
  ASSERT_LT(thief.Read({0}, 4), kSame);
  EXPECT_EQ(slots.Read({0}, 1), INFINITY);
  EXPECT_NE(std::string(ThePlugin().report()).find("the server: NOT_FOUND: "), std::string::npos);
  EXPECT_EQ(slots.Read({0}, 1), INFINITY);
  for (int i = 0; i < 3; ++i) ASSERT_LT(slots.Read({1}, 5), kSame) << i;
  for (int i = 0; i < 3; ++i) ASSERT_LT(thief.Read({0}, 5), kSame) << i;
}

}  // namespace
}  // namespace seine::llama
