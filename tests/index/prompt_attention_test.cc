// Blocks of a prompt's tokens: what they see, which runs they take, and how near that is to all.
#include "index/prompt/prompt_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "index/prompt/choose_runs.h"
#include "index/prompt/prompt_batch.h"
#include "kernels/backend.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/targets.h"

namespace seine {
namespace {

// What tokens sampled of runs have of them: [runs][tokens].
struct Sampled {
  int runs, tokens;
  std::vector<float> masses;

  double Weight(int run, int without) const {  // without a token's own mass; -1: of all
    double sum = 0;
    for (int t = 0; t < tokens; ++t) sum += t == without ? 0 : masses[run * tokens + t];
    return sum;
  }
  // What tokens have of runs that the others alone weigh by `least` or more.
  double HeldOut(double least) const {
    double sum = 0;
    for (int run = 0; run < runs; ++run) {
      for (int t = 0; t < tokens; ++t) sum += Weight(run, t) >= least ? masses[run * tokens + t] : 0;
    }
    return sum;
  }
  bool Choose(double wanted, int64_t most, std::vector<int32_t>* chosen) const {
    return ChooseRuns(masses.data(), runs, tokens, 1, wanted, most, chosen);
  }
};

TEST(ChooseRuns, TakesTheFewestThatAreEnoughForATokenThatDidNotChoose) {
  std::mt19937 random(3);
  int failed = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    Sampled s{1 + static_cast<int>(random() % 100), 1 + static_cast<int>(random() % 9), {}};
    s.masses.resize(static_cast<size_t>(s.runs) * s.tokens);
    for (float& mass : s.masses) {  // powers of two: sums of few of them are exact
      mass = random() % 4 == 0 ? 0 : std::ldexp(1.0f, -static_cast<int>(random() % 12));
    }
    const double wanted = static_cast<double>(random() % 1000) / 1000 * s.HeldOut(-1);
    std::vector<int32_t> chosen;
    const auto enough = [&](double least) { return s.HeldOut(least) >= wanted; };
    if (!s.Choose(wanted, s.runs, &chosen)) {
      EXPECT_FALSE(enough(1e-9));
      ++failed;
      continue;
    }
    if (chosen.empty()) {
      EXPECT_TRUE(enough(1e9));
      continue;
    }
    ASSERT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
    double lightest = 1e9, heaviest_left = 0;
    for (int run = 0; run < s.runs; ++run) {
      const bool taken = std::binary_search(chosen.begin(), chosen.end(), run);
      (taken ? lightest : heaviest_left) =
          taken ? std::min(lightest, s.Weight(run, -1)) : std::max(heaviest_left, s.Weight(run, -1));
    }
    ASSERT_GT(lightest, heaviest_left);
    // An eighth of an octave is told apart.
    EXPECT_TRUE(enough(heaviest_left));
    EXPECT_FALSE(enough(lightest * 1.126));
    EXPECT_FALSE(s.Choose(wanted, static_cast<int64_t>(chosen.size()) - 1, &chosen));
  }
  EXPECT_GT(failed, 20);
  EXPECT_LT(failed, 800);
}

// Each token looks at a run of its own, as one that copies does: nothing says where the next one would look.
TEST(ChooseRuns, TokensThatLookWhereNoOtherDoesHaveNoChoice) {
  Sampled s{64, 8, std::vector<float>(size_t{64} * 8)};
  for (int t = 0; t < 8; ++t) s.masses[(t * 7 * 8) + t] = .6f, s.masses[63 * 8 + t] = .4f;
  std::vector<int32_t> chosen;
  EXPECT_FALSE(s.Choose(.9 * 8, 64, &chosen));
  EXPECT_TRUE(s.Choose(.39 * 8, 64, &chosen));
  EXPECT_EQ(chosen, std::vector<int32_t>{63});
}

// Keys of which some runs match the queries far better than others.
struct Prompt {
  static constexpr int kDim = 64, kGroup = 3, kTokens = 64;
  int places;
  std::vector<float> keys, values, queries, out;
  std::vector<const float*> rows;
  std::vector<float*> outputs;
  const uint8_t *first_key, *first_value;
  PromptBlock block{kTokens};
  PromptTask task;

  Prompt(int num_places, float sharpness) : places(num_places) {
    std::mt19937 random(static_cast<uint32_t>(num_places));
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>* x, size_t count) {
      x->resize(count);
      for (float& v : *x) v = normal(random);
    };
    fill(&keys, static_cast<size_t>(places) * kDim);
    fill(&values, keys.size());
    fill(&queries, size_t{kTokens} * kGroup * kDim);
    for (size_t r = 0; r < size_t{kTokens} * kGroup; ++r) {  // one direction that rows share
      for (int j = 0; j < kDim; ++j) queries[r * kDim + j] += j == 0 ? 8.0f : 0.0f;
    }
    for (int run = 0; run * 8 < places; ++run) {
      const float pull = random() % 20 == 0 ? sharpness : 0;
      for (int i = run * 8; i < std::min(places, run * 8 + 8); ++i) keys[static_cast<size_t>(i) * kDim] += pull;
    }
    out.resize(queries.size());
    for (size_t r = 0; r < size_t{kTokens} * kGroup; ++r) {
      rows.push_back(&queries[r * kDim]);
      outputs.push_back(&out[r * kDim]);
    }
    std::vector<uint64_t> words(kTokens);
    for (int first = 0; first < places; first += 64) {  // causal: the block's tokens are the last
      for (int t = 0; t < kTokens; ++t) {
        words[t] = 0;
        for (int i = 0; i < 64; ++i) {
          words[t] |= static_cast<uint64_t>(first + i <= places - kTokens + t ? 1 : 0) << i;
        }
      }
      block.Add(first, words.data());
    }
    block.Seal();
    first_key = reinterpret_cast<const uint8_t*>(keys.data());
    first_value = reinterpret_cast<const uint8_t*>(values.data());
    task.block = &block;
    task.queries = rows.data();
    task.group = kGroup;
    task.scale = 0.125f;
    task.keys = {&first_key, 1 << 30, kDim, DType::kFloat32};
    task.values = {&first_value, 1 << 30, kDim, DType::kFloat32};
    task.num_places = places;
  }

  // In float64.
  std::vector<double> Exact() const {
    std::vector<double> want(queries.size());
    for (int r = 0; r < kTokens * kGroup; ++r) {
      const int end = places - kTokens + r / kGroup + 1;
      std::vector<double> weights(end);
      double most = -1e300, sum = 0;
      for (int i = 0; i < end; ++i) {
        for (int j = 0; j < kDim; ++j) weights[i] += double{keys[static_cast<size_t>(i) * kDim + j]} * rows[r][j] / 8;
        most = std::max(most, weights[i]);
      }
      for (double& w : weights) sum += w = std::exp(w - most);
      for (int i = 0; i < end; ++i) {
        for (int j = 0; j < kDim; ++j) {
          want[static_cast<size_t>(r) * kDim + j] += weights[i] / sum * values[static_cast<size_t>(i) * kDim + j];
        }
      }
    }
    return want;
  }
  double ErrorOf(const std::vector<double>& want) const {
    double error = 0, norm = 0;
    for (size_t i = 0; i < out.size(); ++i) error += (out[i] - want[i]) * (out[i] - want[i]), norm += want[i] * want[i];
    return std::sqrt(error / norm);
  }
};

TEST(PromptAttention, ExactIsNearFloat64) {
  for (const int places : {64, 65, 100, 1000, 4099}) {
    Prompt prompt(places, 4);
    const PromptCounts counts = AttendPrompt(prompt.task, {}, prompt.outputs.data(), nullptr);
    EXPECT_LT(prompt.ErrorOf(prompt.Exact()), 2e-6) << places;
    EXPECT_EQ(counts.exact_blocks, Prompt::kGroup);
    EXPECT_EQ(counts.taken, counts.seen);
  }
}

TEST(PromptAttention, ChosenRunsHoldTheMass) {
  for (const int places : {4096, 5003, 12000}) {
    Prompt prompt(places, 8);
    const std::vector<double> want = prompt.Exact();
    double before = 1;
    for (const double mass : {.5, .8, .9, .95}) {
      PromptParams params;
      params.mass = mass;
      const PromptCounts counts = AttendPrompt(prompt.task, params, prompt.outputs.data(), nullptr);
      EXPECT_EQ(counts.exact_blocks, 0);
      EXPECT_LT(counts.taken, counts.seen / 3);
      const double error = prompt.ErrorOf(want);
      EXPECT_LE(error, before) << places << " " << mass;
      before = error;
    }
    EXPECT_LT(before, .15) << places;
  }
}

TEST(PromptAttention, BroadHeadsAndShortZonesAreExact) {
  Prompt broad(6000, 0), few(2000, 4);
  PromptParams params;
  params.mass = .95;
  EXPECT_EQ(AttendPrompt(broad.task, params, broad.outputs.data(), nullptr).exact_blocks, Prompt::kGroup);
  EXPECT_LT(broad.ErrorOf(broad.Exact()), 2e-6);
  EXPECT_EQ(AttendPrompt(few.task, params, few.outputs.data(), nullptr).exact_blocks, Prompt::kGroup);
  params.most = 1;
  const PromptCounts counts = AttendPrompt(broad.task, params, broad.outputs.data(), nullptr);
  EXPECT_EQ(counts.exact_blocks, 0);
  EXPECT_LT(broad.ErrorOf(broad.Exact()), .3);
}

TEST(PromptAttention, TheSameRunsOnEveryTargetThatFuses) {
  Prompt prompt(5003, 8);
  PromptParams params;
  params.mass = .9;
  std::vector<float> want;
  int64_t taken = 0;
  for (const std::string& target : cpu::SupportedTargets()) {
    if (target == "SSE4") continue;
    ASSERT_TRUE(cpu::ForceTarget(target));
    const PromptCounts counts = AttendPrompt(prompt.task, params, prompt.outputs.data(), nullptr);
    if (taken == 0) taken = counts.taken;
    EXPECT_EQ(counts.exact_blocks, 0);
    EXPECT_EQ(counts.taken, taken) << target;
    if (target == "AVX3_DL" && cpu::HasAmx()) continue;  // its tiles sum in another order
    if (want.empty()) want = prompt.out;
    EXPECT_TRUE(prompt.out == want) << target;
  }
  cpu::ForceTarget("");
}

// A batch as arrays have it, and its attention in float64.
struct Arrays {
  static constexpr int kRows = 2, kHeads = 2, kGroup = 3, kDim = 64, kTokens = 150, kPlaces = 211;
  std::vector<float> queries, keys, values, out, log_sum_exp;

  Arrays() {
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>* x, size_t count) {
      x->resize(count);
      for (float& v : *x) v = normal(random);
    };
    fill(&queries, size_t{kRows} * kHeads * kGroup * kTokens * kDim);
    fill(&keys, size_t{kRows} * kHeads * kPlaces * kDim);
    fill(&values, keys.size());
    out.resize(queries.size());
  }
  void Attend(const PromptMask& mask, Backend* backend) {
    const auto rows_of = [this](int64_t row, int head) {
      const auto at = [&](const std::vector<float>& rows) {
        return reinterpret_cast<const uint8_t*>(rows.data() + (row * kHeads + head) * kPlaces * kDim);
      };
      return PromptBatch::Rows::Dense(at(keys), at(values), kDim, DType::kFloat32);
    };
    PromptBatch batch{.rows_of = rows_of};
    batch.mask = &mask, batch.rows = kRows, batch.num_kv_heads = kHeads, batch.head_dim = kDim, batch.scale = .2f;
    constexpr int64_t kQHeads = kHeads * kGroup;
    batch.queries = queries.data(), batch.query_strides = {kQHeads * kTokens * kDim, kDim, kTokens * kDim};
    batch.outputs = out.data(), batch.output_strides = {kQHeads * kTokens * kDim, kQHeads * kDim, kDim};
    log_sum_exp.resize(out.size() / kDim);
    batch.log_sum_exp = log_sum_exp.data();
    const PromptCounts counts = AttendPromptBatch(batch, {}, OnThreadsOf(backend));
    EXPECT_EQ(counts.blocks, kRows * kHeads * kGroup * mask.num_blocks());
  }
  template <typename Sees>  // (row, head, token, place)
  void ExpectExact(const Sees& sees) const {
    for (int row = 0; row < kRows; ++row) {
      for (int q = 0; q < kHeads * kGroup; ++q) {
        for (int t = 0; t < kTokens; t += 7) {
          const size_t head = static_cast<size_t>(row) * kHeads + q / kGroup;
          const float* query = &queries[((static_cast<size_t>(row) * kHeads * kGroup + q) * kTokens + t) * kDim];
          std::vector<double> want(kDim);
          double sum = 0;
          for (int place = 0; place < kPlaces; ++place) {
            if (!sees(row, q / kGroup, t, place)) continue;
            const size_t at = (head * kPlaces + place) * kDim;
            double dot = 0;
            for (int j = 0; j < kDim; ++j) dot += double{query[j]} * keys[at + j];
            const double weight = std::exp(.2f * dot);
            sum += weight;
            for (int j = 0; j < kDim; ++j) want[j] += weight * values[at + j];
          }
          const float* got = &out[((static_cast<size_t>(row) * kTokens + t) * kHeads * kGroup + q) * kDim];
          for (int j = 0; j < kDim; ++j) ASSERT_NEAR(got[j], sum > 0 ? want[j] / sum : 0, 1e-5);
          const float logarithm = log_sum_exp[(static_cast<size_t>(row) * kTokens + t) * kHeads * kGroup + q];
          if (sum > 0) {
            ASSERT_NEAR(logarithm, std::log(sum), 1e-4);
          }
        }
      }
    }
  }
};

TEST(PromptBatch, EveryRowHeadAndTokenSeesWhatItsMaskSays) {
  const std::unique_ptr<Backend> backend = MakeCpuBackend(2);
  Arrays arrays;
  using A = Arrays;
  arrays.Attend(PromptMask(A::kTokens, A::kPlaces, A::kGroup, OnThreadsOf(backend.get())), backend.get());
  arrays.ExpectExact([](int, int, int token, int place) { return place <= A::kPlaces - A::kTokens + token; });
  for (const int rows : {1, A::kRows}) {
    for (const int heads : {1, A::kHeads}) {
      std::mt19937 random(rows * 10 + heads);
      std::vector<uint8_t> seen(size_t{1} * rows * heads * A::kTokens * A::kPlaces);
      for (uint8_t& byte : seen) byte = static_cast<uint8_t>(random() % 3 == 0 ? random() % 256 : 0);
      std::fill_n(seen.begin(), A::kPlaces, 0);  // the first token sees nothing
      arrays.Attend(PromptMask(seen.data(), rows, heads, A::kTokens, A::kPlaces, A::kGroup, OnThreadsOf(backend.get())),
                    backend.get());
      arrays.ExpectExact([&](int row, int head, int token, int place) {
        const size_t of = static_cast<size_t>(rows > 1 ? row : 0) * heads + (heads > 1 ? head : 0);
        return seen[(of * A::kTokens + token) * A::kPlaces + place] != 0;
      });
    }
  }
}

TEST(PromptBatch, HeadsMaySeeOtherNumbersOfPlaces) {
  const std::unique_ptr<Backend> backend = MakeCpuBackend(2);
  Arrays arrays;
  using A = Arrays;
  std::vector<std::vector<int64_t>> ends(A::kHeads);
  for (int h = 0; h < A::kHeads; ++h) {
    for (int t = 0; t < A::kTokens; ++t) ends[h].push_back(std::min<int64_t>(A::kPlaces, t / 3 * (h + 2)));
  }
  arrays.Attend(PromptMask(ends, A::kPlaces, A::kGroup, OnThreadsOf(backend.get())), backend.get());
  arrays.ExpectExact([&](int, int head, int token, int place) { return place < ends[head][token]; });
}

}  // namespace
}  // namespace seine
