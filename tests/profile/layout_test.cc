// A profile in the order of coordinates that the other layout has, against one measured on vectors in that order.
#include "profile/layout.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "profile/filters.h"
#include "profile/moments.h"

namespace seine {
namespace {

constexpr int kDim = 8, kTokens = 300;
constexpr Rope::Style kHalf = Rope::Style::kHalfSplit, kPairs = Rope::Style::kInterleaved;

Rope RopeOf(Rope::Style style) { return {style, {1, .3, .1, .01}}; }

// Coordinate c of the half-split order stands at 2c, or from the half on at 2(c - 4) + 1: by hand.
constexpr int kPlace[kDim] = {0, 2, 4, 6, 1, 3, 5, 7};

std::vector<float> Interleaved(const std::vector<float>& rows) {
  std::vector<float> out(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) out[i / kDim * kDim + kPlace[i % kDim]] = rows[i];
  return out;
}

std::vector<float> Correlated(uint64_t seed, int heads) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(kTokens) * heads * kDim);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = normal(rng) * static_cast<float>(1 + i % 3) + (i % kDim > 0 ? .7f * rows[i - 1] : 1.0f);
  }
  return rows;
}

std::shared_ptr<const Profile> Measure(Rope::Style style) {
  std::vector<float> keys = Correlated(1, 1), queries = Correlated(2, 2), values = Correlated(3, 1);
  if (style == kPairs) keys = Interleaved(keys), queries = Interleaved(queries);
  ProfileBuilder builder(1, 2, 1, kDim);
  builder.AddKeys(0, keys.data(), kTokens, 0, RopeOf(style));
  builder.AddQueries(0, queries.data(), kTokens, 0, RopeOf(style));
  builder.AddValues(0, values.data(), kTokens);
  Profile profile = builder.Finish().value();
  profile.rope_json = RopeJson(RopeOf(style));
  profile.rope_style = style;
  return std::make_shared<const Profile>(std::move(profile));
}

TEST(Layout, AProfileOfOneIsTheOthersInItsOrder) {
  for (const auto& [from, to] : {std::pair{kHalf, kPairs}, {kPairs, kHalf}}) {
    const auto brought = InLayout(Measure(from), RopeOf(to)), own = Measure(to);
    EXPECT_EQ(brought->rope_style, to);
    const LayerProfile &a = brought->layers[0], &b = own->layers[0];
    for (int q = 0; q < 2; ++q) {
      EXPECT_LT((a.q_mean[q] - b.q_mean[q]).norm(), 1e-9);
      EXPECT_LT((a.q_moment[q] - b.q_moment[q]).norm(), 1e-9);
    }
    EXPECT_LT((a.k_mean[0] - b.k_mean[0]).norm(), 1e-9);
    EXPECT_LT((a.k_moment[0] - b.k_moment[0]).norm(), 1e-9);
    EXPECT_LT((a.k_residual[0] - b.k_residual[0]).norm(), 1e-4);  // centres are rounded to int8 in fp32
    EXPECT_EQ(a.v_moment[0], b.v_moment[0]);                      // values have no pairs
    EXPECT_GT((a.k_moment[0] - Measure(from)->layers[0].k_moment[0]).norm(), 1);
  }
}

// Pairs of a part of a head lie in its first coordinates in the half-split order: by hand again.
TEST(Layout, PartsOfHeadsAreBroughtToo) {
  constexpr int kPlaceOfPart[kDim] = {0, 2, 1, 3, 4, 5, 6, 7};  // two pairs turn, of coordinates 0 to 3
  const auto rope = [](Rope::Style style, int rotary_dim) { return Rope{style, {1, .3, 0, 0}, rotary_dim}; };
  const auto measure = [&](const Rope& of, bool placed) {
    std::vector<float> keys = Correlated(1, 1), rows = keys;
    for (size_t i = 0; placed && i < rows.size(); ++i) rows[i / kDim * kDim + kPlaceOfPart[i % kDim]] = keys[i];
    ProfileBuilder builder(1, 1, 1, kDim);
    builder.AddKeys(0, rows.data(), kTokens, 0, of);
    builder.AddQueries(0, rows.data(), kTokens, 0, of);
    Profile profile = builder.Finish().value();
    profile.head_dim = kDim, profile.rope_json = RopeJson(of), profile.rope_style = of.style;
    return std::make_shared<const Profile>(std::move(profile));
  };
  const Rope half = rope(kHalf, 4), pairs = rope(kPairs, 4), whole = rope(kPairs, 0);
  const auto of_half = measure(half, false), of_pairs = measure(pairs, true), of_whole = measure(whole, true);
  for (const auto& [from, to, want] : {std::tuple(of_half, pairs, of_pairs),
                                       {of_pairs, half, of_half},
                                       {of_half, whole, of_pairs},
                                       {of_whole, half, of_half}}) {
    const auto brought = InLayout(from, to);
    EXPECT_LT((brought->layers[0].k_moment[0] - want->layers[0].k_moment[0]).norm(), 1e-9);
    EXPECT_LT((brought->layers[0].q_mean[0] - want->layers[0].q_mean[0]).norm(), 1e-9);
    EXPECT_EQ(InLayout(brought, to), brought);  // it says how it lies now
  }
  EXPECT_EQ(InLayout(of_whole, pairs), of_whole);  // neighbours are the same in both
}

TEST(Layout, WhatIsAlreadySoIsNotCopied) {
  const auto profile = Measure(kHalf);
  EXPECT_EQ(InLayout(profile, RopeOf(kHalf)), profile);
  EXPECT_EQ(InLayout(profile, Rope{kPairs, {}}), profile);  // an index that states no RoPE has no pairs
  Profile observed = *profile;
  observed.rope_json.clear();  // moments as observed: their layout is not known
  const auto unknown = std::make_shared<const Profile>(observed);
  EXPECT_EQ(InLayout(unknown, RopeOf(kPairs)), unknown);
  EXPECT_EQ(InLayout(nullptr, RopeOf(kPairs)), nullptr);
}

TEST(Layout, QFiltersOfAProfileAreInTheLayoutOfTheRope) {
  const Filters own = FiltersFromProfile(*Measure(kPairs), 0, RopeOf(kPairs), 100, 400).value();
  const Filters brought = FiltersFromProfile(*Measure(kHalf), 0, RopeOf(kPairs), 100, 400).value();
  for (int j = 0; j < kDim; ++j) EXPECT_NEAR(brought[j], own[j], 1e-5);
}

}  // namespace
}  // namespace seine
