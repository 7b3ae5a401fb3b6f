// Forks, truncations and handles: whatever the history, a sequence equals one built from nothing.
#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <random>

#include "tests/index/test_util.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::MakeIndex;
using testing::Names;
using testing::Probe;
using testing::SameAnswers;
using testing::SmallConfig;
using testing::TestBackend;

using absl::StatusCode;

// The names of a sequence that holds Names(1, cut) and then other tokens up to n.
std::vector<uint64_t> Rewritten(int64_t cut, int64_t n) {
  std::vector<uint64_t> names = Names(1, cut);
  for (int64_t p = cut; p < n; ++p) names.push_back(50000 + p);
  return names;
}

std::vector<ItemAnswer> ProbeFresh(Index* index, const std::vector<uint64_t>& names) {
  const SequenceHandle fresh = *index->CreateSequence("");
  EXPECT_TRUE(AppendNames(index, fresh, 0, 0, names).ok());
  const auto answers = Probe(*index, fresh, 0);
  EXPECT_TRUE(index->DeleteSequence(fresh).ok());
  return answers;
}

struct CutConfig {
  std::string name;
  KvStore store;
  Centre centre;
  Coarse coarse;
  int update_buffer;
  int centre_window;
};

void PrintTo(const CutConfig& config, std::ostream* out) { *out << config.name; }

class CutTest : public ::testing::TestWithParam<CutConfig> {
 protected:
  IndexConfig Config() const {
    const CutConfig& c = GetParam();
    IndexConfig config = SmallConfig(c.store);
    config.geometry.num_layers = 1;
    config.zones.update_buffer = c.update_buffer;
    config.codec.centre = c.centre;
    config.codec.centre_window = c.centre_window;
    config.search.coarse = c.coarse;
    return config;
  }
  // Every position around the edges of the sink, of the first zones and windows, of chunks (256, 2048 positions) and
  // segments (sink + 2048), and of the last windows.
  static std::vector<int64_t> Cuts(int64_t n) {
    std::vector<int64_t> cuts;
    for (int64_t p = 0; p <= n; ++p) {
      const int64_t in_window = (p + 64 - 16) % 64;
      const bool window_edge = (in_window <= 1 || in_window == 63) && (p < 280 || p > 1900);
      const bool chunk_edge = (p + 1) % 256 <= 2 && (p < 600 || p > 1700);
      if (std::abs(p - 16) < 3 || window_edge || chunk_edge || p + 5 >= n) cuts.push_back(p);
    }
    return cuts;
  }
};

TEST_P(CutTest, TruncateAndForkEqualOneBuiltFromNothing) {
  TestBackend backend;
  auto index = MakeIndex(Config(), &backend);
  const int64_t n = 16 + 32 + 2048 + 200, sink = 16;
  const SequenceHandle whole = *index->CreateSequence("whole");
  ASSERT_TRUE(AppendNames(index.get(), whole, 0, 0, Names(1, n)).ok());
  const auto expected_whole = Probe(*index, whole, 0);
  int refused = 0, done = 0;
  for (const int64_t cut : Cuts(n)) {
    const auto fork = index->Fork(whole, "fork", cut);
    if (!fork.ok()) {  // only where keys are gone, inside a window
      ASSERT_EQ(GetParam().store, KvStore::kNone) << fork.status();
      ASSERT_EQ(fork.status().code(), StatusCode::kFailedPrecondition) << fork.status();
      ASSERT_TRUE(cut > sink && ((cut - sink) % GetParam().centre_window != 0 || GetParam().centre == Centre::kGlobal));
      const SequenceInfo before = *index->GetSequence(whole);
      ASSERT_EQ(index->Truncate(whole, cut), fork.status());
      ASSERT_EQ(index->GetSequence(whole)->layer_tokens, before.layer_tokens);
      long long below = 0, above = 0;
      const std::string message(fork.status().message());
      const size_t at = message.find("; ");
      ASSERT_EQ(std::sscanf(message.c_str() + at, "; %lld and %lld are", &below, &above), 2) << message;
      ASSERT_TRUE(below < cut && cut < above);
      ASSERT_TRUE(index->Fork(whole, "below", below).ok());
      ASSERT_TRUE(index->Fork(whole, "above", above).ok());
      ASSERT_TRUE(index->DeleteSequence({"below", 0}).ok() && index->DeleteSequence({"above", 0}).ok());
      ++refused;
      continue;
    }
    ++done;
    ASSERT_TRUE(SameAnswers(Probe(*index, *fork, 0), ProbeFresh(index.get(), Names(1, cut)))) << "cut at " << cut;
    const int64_t beyond = std::min(n, cut + 130);  // grows over hidden windows and encodes new ones
    for (int64_t p = cut; p < beyond; p += 29) {
      const std::vector<uint64_t> names = Names(p + 1, std::min<int64_t>(29, beyond - p));
      ASSERT_TRUE(AppendNames(index.get(), *fork, 0, p, names).ok());
    }
    ASSERT_TRUE(SameAnswers(Probe(*index, *fork, 0), ProbeFresh(index.get(), Names(1, beyond)))) << "cut at " << cut;
    // The fork truncated and written differently.
    const absl::Status again = index->Truncate(*fork, cut);
    ASSERT_TRUE(again.ok() || GetParam().store == KvStore::kNone) << again;
    if (again.ok()) {
      const auto names = Rewritten(cut, cut + 200);
      ASSERT_TRUE(AppendNames(index.get(), *fork, 0, 0, names).ok()) << cut;
      ASSERT_TRUE(SameAnswers(Probe(*index, *fork, 0), ProbeFresh(index.get(), names))) << "cut at " << cut;
    }
    ASSERT_TRUE(index->DeleteSequence(*fork).ok());
  }
  EXPECT_TRUE(SameAnswers(Probe(*index, whole, 0), expected_whole));  // the source never notices
  EXPECT_GT(done, 20);
  EXPECT_EQ(refused > 0, GetParam().store == KvStore::kNone);
}

INSTANTIATE_TEST_SUITE_P(
    Configs, CutTest,
    ::testing::Values(CutConfig{"keys", KvStore::kKeys, Centre::kWindow, Coarse::kSignIp, 64, 64},
                      CutConfig{"keys_values_global", KvStore::kKeysValues, Centre::kGlobal, Coarse::kSignIp, 128, 64},
                      CutConfig{"keys_collision", KvStore::kKeys, Centre::kNone, Coarse::kCollision, 64, 64},
                      CutConfig{"none", KvStore::kNone, Centre::kWindow, Coarse::kSignIp, 64, 64},
                      CutConfig{"none_wide_collision", KvStore::kNone, Centre::kNone, Coarse::kCollision, 128, 128},
                      CutConfig{"none_global", KvStore::kNone, Centre::kGlobal, Coarse::kSignIp, 128, 64}),
    [](const auto& test) { return test.param.name; });

// Rolling back up to one update buffer always works, and leaves log-sum-exps whole, whatever is kept.
TEST(RollBackTest, OneUpdateBufferIsAlwaysFree) {
  TestBackend backend;
  IndexConfig config = SmallConfig(KvStore::kNone);
  config.geometry.num_layers = 1;
  auto index = MakeIndex(config, &backend);
  const std::vector<float> queries = testing::Queries(config.geometry, 3);
  const auto answer = [&](const SequenceHandle& handle) {
    SearchParams params;  // kSoftmaxSum: scores depend on the dense keys
    return *index->Retrieve({{handle, 0, queries.data()}}, params);
  };
  for (int64_t n = 700; n < 830; n += 7) {
    for (const int64_t back : {1, 5, 63, 64}) {
      const SequenceHandle seq = *index->CreateSequence("s"), fresh = *index->CreateSequence("fresh");
      ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, n)).ok());
      ASSERT_TRUE(AppendNames(index.get(), fresh, 0, 0, Names(1, n - back)).ok());
      ASSERT_TRUE(index->Truncate(seq, n - back).ok()) << n << " - " << back;
      EXPECT_TRUE(SameAnswers(answer(seq), answer(fresh))) << n << " - " << back;
      ASSERT_TRUE(index->DeleteSequence(seq).ok() && index->DeleteSequence(fresh).ok());
    }
  }
}

TEST(RollBackTest, HiddenWindowsAreNotEncodedAgain) {
  TestBackend backend;
  auto index = MakeIndex(SmallConfig(), &backend);
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 16 + 32 + 256)).ok());
  const int64_t encoded = backend.encoded_keys;
  for (int i = 0; i < 5; ++i) {  // speculative decoding at the edge of a window
    ASSERT_TRUE(index->Truncate(seq, 16 + 32 + 255).ok());
    EXPECT_EQ(index->DescribeHead(seq, 0, 0)->zone_end, 16 + 192);
    ASSERT_TRUE(AppendNames(index.get(), seq, 0, 16 + 32 + 255, Names(16 + 32 + 256, 1)).ok());
    EXPECT_EQ(index->DescribeHead(seq, 0, 0)->zone_end, 16 + 256);
  }
  EXPECT_EQ(backend.encoded_keys, encoded);
}

TEST(ForkTest, SharesUntilOneSideWrites) {
  TestBackend backend;
  auto index = MakeIndex(SmallConfig(), &backend);
  const SequenceHandle seq = *index->CreateSequence("s");
  for (int layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(AppendNames(index.get(), seq, layer, 0, Names(1, 4400)).ok());
  }
  const IndexStats before = index->stats();
  const SequenceHandle fork = *index->Fork(seq, "f", -1);
  EXPECT_EQ(index->stats().store_bytes, before.store_bytes);
  EXPECT_EQ(index->stats().code_bytes, before.code_bytes);
  EXPECT_EQ(index->stats().num_sequences, 2);
  EXPECT_EQ(index->GetSequence(fork)->store_bytes, index->GetSequence(seq)->store_bytes);
  ASSERT_TRUE(AppendNames(index.get(), fork, 0, 4400, Names(4401, 1)).ok());
  const int64_t copied = index->stats().store_bytes - before.store_bytes;
  EXPECT_GT(copied, 0);
  EXPECT_LE(copied, 2048 * 2 * 64 * 2);  // one chunk
  ASSERT_TRUE(index->DeleteSequence(seq).ok());
  EXPECT_TRUE(SameAnswers(Probe(*index, fork, 0), Probe(*index, fork, 0)));
  EXPECT_EQ(index->stats().store_bytes, index->GetSequence(fork)->store_bytes);  // the rest is the fork's alone now
  ASSERT_TRUE(index->DeleteSequence(fork).ok());
  EXPECT_EQ(index->stats().store_bytes, 0);
  EXPECT_EQ(index->stats().code_bytes, 0);
}

TEST(ForkTest, LayersOfDifferentLengths) {
  TestBackend backend;
  auto index = MakeIndex(SmallConfig(), &backend);
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 300)).ok());
  ASSERT_TRUE(AppendNames(index.get(), seq, 1, 0, Names(1, 100)).ok());
  const SequenceHandle fork = *index->Fork(seq, "", 200);
  EXPECT_EQ(index->GetSequence(fork)->layer_tokens, (std::vector<int64_t>{200, 100}));
  ASSERT_TRUE(index->Truncate(seq, 150).ok());
  EXPECT_EQ(index->GetSequence(seq)->layer_tokens, (std::vector<int64_t>{150, 100}));
  EXPECT_EQ(index->GetSequence(fork)->layer_tokens, (std::vector<int64_t>{200, 100}));
  for (const int64_t wrong : {int64_t{-1}, int64_t{151}, INT64_MAX}) {
    EXPECT_EQ(index->Truncate(seq, wrong).code(), StatusCode::kOutOfRange);
  }
  EXPECT_EQ(index->Fork(seq, "", 151).status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(index->stats().num_sequences, 2);
}

TEST(ForkTest, TruncationThatCannotCopyCountsChangesNothing) {
  TestBackend backend;
  IndexConfig config = SmallConfig();
  config.search.coarse = Coarse::kCollision;
  config.codec.centre = Centre::kNone;
  auto index = MakeIndex(config, &backend);
  const SequenceHandle seq = *index->CreateSequence("s");
  for (int layer = 0; layer < 2; ++layer) ASSERT_TRUE(AppendNames(index.get(), seq, layer, 0, Names(1, 500)).ok());
  ASSERT_TRUE(index->Fork(seq, "f", -1).ok());
  const auto before = Probe(*index, seq, 1);
  for (int fail = 0; fail < 2; ++fail) {
    backend.fail_after = fail;
    EXPECT_EQ(index->Truncate(seq, 400).code(), StatusCode::kResourceExhausted);
    backend.fail_after = fail;
    EXPECT_EQ(index->Fork(seq, "g", 400).status().code(), StatusCode::kResourceExhausted);
  }
  backend.fail_after = -1;
  EXPECT_TRUE(SameAnswers(Probe(*index, seq, 1), before));
  EXPECT_EQ(index->GetSequence(seq)->layer_tokens, (std::vector<int64_t>{500, 500}));
  EXPECT_TRUE(index->Truncate(seq, 400).ok());
  EXPECT_TRUE(SameAnswers(Probe(*index, {"f", 0}, 1), before));
}

TEST(HandleTest, IdsAndGenerations) {
  TestBackend backend;
  auto index = MakeIndex(SmallConfig(), &backend);
  const SequenceHandle a = *index->CreateSequence("a");
  EXPECT_EQ(a.id, "a");
  EXPECT_NE(a.generation, 0u);
  EXPECT_EQ(index->CreateSequence("a").status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(index->Fork(a, "a", -1).status().code(), StatusCode::kAlreadyExists);
  ASSERT_TRUE(index->DeleteSequence(a).ok());
  EXPECT_EQ(index->DeleteSequence(a).code(), StatusCode::kNotFound);
  const SequenceHandle again = *index->CreateSequence("a");
  EXPECT_NE(again.generation, a.generation);
  EXPECT_EQ(index->GetSequence(a).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(index->DeleteSequence(a).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(index->Truncate(a, 0).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(index->Fork(a, "b", -1).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(index->DescribeHead(a, 0, 0).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(index->GetSequence({"a", 0})->handle.generation, again.generation);
  EXPECT_EQ(index->DescribeHead(again, 2, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index->DescribeHead(again, 0, 2).status().code(), StatusCode::kInvalidArgument);

  EXPECT_TRUE(index->CreateSequence(std::string(128, '~')).ok());
  EXPECT_EQ(index->CreateSequence(std::string(129, 'x')).status().code(), StatusCode::kInvalidArgument);
  for (const absl::string_view bad : {"a\n", "\x7f", "caf\xc3\xa9"}) {
    EXPECT_EQ(index->CreateSequence(bad).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(index->CreateSequence(absl::string_view("a\0b", 3)).status().code(), StatusCode::kInvalidArgument);

  ASSERT_TRUE(index->CreateSequence("seq-8").ok());
  std::map<std::string, uint64_t> made;
  for (int i = 0; i < 8; ++i) {  // made ids step over those in use
    const SequenceHandle handle = *index->CreateSequence("");
    EXPECT_TRUE(made.emplace(handle.id, handle.generation).second);
    EXPECT_NE(handle.id, "seq-8");
  }
  const auto list = index->ListSequences();
  ASSERT_EQ(list.size(), 11u);
  for (size_t i = 1; i < list.size(); ++i) EXPECT_LT(list[i - 1].handle.id, list[i].handle.id);
}

// A random history, and a model of it: the names of every layer's tokens.
class History {
 public:
  History(int seed, const IndexConfig& config)
      : none_(config.kv_store == KvStore::kNone),
        random_(seed),
        index_(MakeIndex(config, &backend_)),
        oracle_(MakeIndex(config, &backend_)) {}

  void Step() {
    const int64_t op = model_.empty() ? 0 : Below(20);
    if (op == 0) return Create("s" + std::to_string(Below(6)));
    const std::string id = std::next(model_.begin(), Below(model_.size()))->first;
    if (op == 1) return Delete(id);
    if (op <= 4) return Fork(id, "f" + std::to_string(Below(6)));
    if (op <= 7) return Truncate(id);
    Append(id, static_cast<int>(Below(2)));
  }

  // Lengths of all sequences, and one of them bit for bit against one built from nothing.
  void Compare() {
    if (model_.empty()) return;
    for (const auto& [id, layers] : model_) {
      const std::vector<int64_t> lengths = {Size(layers[0]), Size(layers[1])};
      ASSERT_EQ(index_->GetSequence({id, 0})->layer_tokens, lengths);
    }
    const auto& [id, layers] = *std::next(model_.begin(), Below(model_.size()));
    for (int layer = 0; layer < 2; ++layer) {
      const SequenceHandle fresh = *oracle_->CreateSequence("");
      ASSERT_TRUE(AppendNames(oracle_.get(), fresh, layer, 0, layers[layer]).ok());
      ASSERT_TRUE(SameAnswers(Probe(*index_, {id, 0}, layer), Probe(*oracle_, fresh, layer)));
      ASSERT_TRUE(oracle_->DeleteSequence(fresh).ok());
    }
    ++compared_;
  }

  void End() {
    for (const int count : {forked_, truncated_, conflicts_, appended_, compared_})
      EXPECT_GE(count, 5);  // each really ran
    for (const auto& [id, layers] : model_) ASSERT_TRUE(index_->DeleteSequence({id, 0}).ok());
    EXPECT_EQ(index_->stats().code_bytes, 0);
    EXPECT_EQ(index_->stats().store_bytes, 0);
  }

 private:
  using Layers = std::vector<std::vector<uint64_t>>;

  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % n); }
  static int64_t Size(const std::vector<uint64_t>& names) { return static_cast<int64_t>(names.size()); }
  static int64_t Longest(const Layers& layers) { return std::max(Size(layers[0]), Size(layers[1])); }
  static void Cut(int64_t position, Layers* layers) {
    for (auto& names : *layers) names.resize(std::min(Size(names), position));
  }
  // Whether a cut that may be refused under kNone was made.
  bool Made(const absl::Status& status) {
    EXPECT_TRUE(status.ok() || (none_ && status.code() == StatusCode::kFailedPrecondition)) << status;
    return status.ok();
  }

  void Create(const std::string& id) {
    const bool taken = model_.count(id) != 0;
    ASSERT_EQ(index_->CreateSequence(id).status().code(), taken ? StatusCode::kAlreadyExists : StatusCode::kOk);
    if (!taken) model_[id].resize(2);
  }

  void Delete(const std::string& id) {
    ASSERT_TRUE(index_->DeleteSequence({id, 0}).ok());
    model_.erase(id);
  }

  void Fork(const std::string& id, const std::string& fork) {
    const int64_t longest = Longest(model_[id]), cut = Below(longest + 3) - 1;
    const absl::Status status = index_->Fork({id, 0}, fork, cut).status();
    if (model_.count(fork) != 0) {
      ASSERT_EQ(status.code(), StatusCode::kAlreadyExists);
    } else if (cut > longest) {
      ASSERT_EQ(status.code(), StatusCode::kOutOfRange);
    } else if (Made(status)) {
      model_[fork] = model_[id];
      Cut(cut < 0 ? longest : cut, &model_[fork]);
      ++forked_;
    }
  }

  void Truncate(const std::string& id) {
    const int64_t longest = Longest(model_[id]);
    const int64_t cut = Below(3) == 0 ? Below(longest + 2) : std::max<int64_t>(0, longest - Below(70));
    const absl::Status status = index_->Truncate({id, 0}, cut);
    if (cut > longest) {
      ASSERT_EQ(status.code(), StatusCode::kOutOfRange);
    } else if (Made(status)) {
      Cut(cut, &model_[id]);
      ++truncated_;
    }
  }

  // New tokens, a replay, a replay that runs on, a rewrite or a gap.
  void Append(const std::string& id, int layer) {
    std::vector<uint64_t>& tokens = model_[id][layer];
    const int64_t n = Size(tokens), position = Below(4) == 0 ? Below(n + 3) : n;
    std::vector<uint64_t> names;
    for (int64_t p = position; p < n && Below(50) != 0; ++p) names.push_back(tokens[p]);
    const bool conflict = !names.empty() && Below(3) == 0;
    if (conflict) names[Below(Size(names))] = next_name_++;
    if (position + Size(names) >= n) {
      for (int64_t more = Below(3) == 0 ? Below(200) : 1 + Below(9); more > 0; --more) names.push_back(next_name_++);
    }
    const auto result = AppendNames(index_.get(), {id, 0}, layer, position, names);
    if (position > n) {
      ASSERT_EQ(result.status().code(), StatusCode::kOutOfRange);
    } else if (conflict) {
      ASSERT_EQ(result.status().code(), StatusCode::kAlreadyExists);
      ++conflicts_;
    } else {
      ASSERT_TRUE(result.ok()) << result.status();
      for (int64_t p = n - position; p < Size(names); ++p) tokens.push_back(names[p]);
      ASSERT_EQ(*result, Size(tokens));
      ++appended_;
    }
  }

  const bool none_;
  std::mt19937 random_;
  TestBackend backend_;
  std::unique_ptr<Index> index_, oracle_;
  std::map<std::string, Layers> model_;
  uint64_t next_name_ = 1;
  int forked_ = 0, truncated_ = 0, conflicts_ = 0, appended_ = 0, compared_ = 0;
};

class RandomHistoryTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, RandomHistoryTest, ::testing::Range(1, 13));

TEST_P(RandomHistoryTest, EqualsTheModel) {
  const int seed = GetParam();
  IndexConfig config = SmallConfig(static_cast<KvStore>(seed % 3));
  config.codec.centre = static_cast<Centre>(seed / 3 % 3);
  config.search.coarse = static_cast<Coarse>(seed % 2);
  if (config.search.coarse == Coarse::kCollision && config.codec.centre == Centre::kWindow) {
    config.codec.centre = Centre::kNone;
  }
  History history(seed, config);
  for (int step = 0; step < 400; ++step) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", step " << step);
    history.Step();
    if (step % 8 == 0) history.Compare();
    if (HasFatalFailure()) return;
  }
  history.End();
}

}  // namespace
}  // namespace seine
