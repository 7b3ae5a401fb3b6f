// Blocks of a prompt's tokens: what they see, which runs they take, and how near that is to all.
#include "index/prompt/prompt_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "index/prompt/choose_runs.h"
#include "kernels/cpu/targets.h"

namespace seine {
namespace {

TEST(ChooseRuns, TakesTheFewest) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    const int count = 1 + static_cast<int>(random() % 300);
    std::vector<float> masses(count);
    for (float& mass : masses) {  // many equal, many zero, many octaves
      mass = random() % 4 == 0 ? 0 : std::ldexp(static_cast<float>(1 + random() % 5), -static_cast<int>(random() % 30));
    }
    // A second head, whose masses are a quarter of the first's.
    constexpr float kTimes = 0.25f;
    std::vector<float> both;
    for (const float mass : masses) both.push_back(mass), both.push_back(mass * kTimes);
    const double sum = std::accumulate(masses.begin(), masses.end(), 0.0);
    const double wanted = sum * static_cast<double>(random() % 1000) / 1000;
    const bool second = random() % 2 == 0;  // which of them decides
    const double of_each[] = {second ? wanted / 2 : wanted, second ? wanted * kTimes : 0};
    std::vector<int32_t> order(count), chosen;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return masses[a] > masses[b]; });
    double mass = 0;
    size_t fewest = 0;
    while (mass < wanted * (1 - 1e-12) && fewest < order.size()) mass += masses[order[fewest++]];
    ASSERT_TRUE(ChooseRuns(both.data(), count, 2, of_each, count, &chosen));
    ASSERT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
    ASSERT_NEAR(static_cast<double>(chosen.size()), static_cast<double>(fewest), 1);
    order.resize(chosen.size());
    std::sort(order.begin(), order.end());
    ASSERT_EQ(chosen, order);
    if (chosen.size() > 1) {
      EXPECT_FALSE(ChooseRuns(both.data(), count, 2, of_each, static_cast<int64_t>(chosen.size()) - 1, &chosen));
    }
  }
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
    EXPECT_EQ(counts.exact_blocks, 1);
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
  EXPECT_EQ(AttendPrompt(broad.task, params, broad.outputs.data(), nullptr).exact_blocks, 1);
  EXPECT_LT(broad.ErrorOf(broad.Exact()), 2e-6);
  EXPECT_EQ(AttendPrompt(few.task, params, few.outputs.data(), nullptr).exact_blocks, 1);
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
    if (want.empty()) want = prompt.out, taken = counts.taken;
    EXPECT_EQ(counts.exact_blocks, 0);
    EXPECT_EQ(counts.taken, taken) << target;
    EXPECT_TRUE(prompt.out == want) << target;
  }
  cpu::ForceTarget("");
}

}  // namespace
}  // namespace seine
