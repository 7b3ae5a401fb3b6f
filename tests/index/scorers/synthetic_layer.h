// One layer of synthetic keys, values and queries for tests of scorers, and what a scorer says about it.
#ifndef SEINE_TESTS_INDEX_SCORERS_SYNTHETIC_LAYER_H_
#define SEINE_TESTS_INDEX_SCORERS_SYNTHETIC_LAYER_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "index/scorers/scorer.h"

namespace seine::testing {

// Anisotropic: coordinates of different spread about a mean. Chunks of a length that divides nothing.
struct MadeUpLayer {
  MadeUpLayer(int kv_heads, int group_size, int head_dim, int tokens, int queries_given, uint32_t seed = 1)
      : dim(head_dim), group(group_size), n(tokens), num_queries(queries_given) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>* out, size_t count, float mean) {
      out->resize(count);
      for (size_t i = 0; i < count; ++i) {
        const size_t j = i % dim;
        (*out)[i] = normal(random) * (2.0f / (1 + j % 9)) + (j % 5 == 0 ? mean : 0);
      }
    };
    keys.resize(kv_heads);
    values.resize(kv_heads);
    for (auto& head : keys) fill(&head, static_cast<size_t>(n) * dim, 1.5f);
    for (auto& head : values) fill(&head, static_cast<size_t>(n) * dim, .5f);
    fill(&queries, static_cast<size_t>(num_queries) * kv_heads * group * dim, 1);
  }

  // Views; what they point to stays as it is meanwhile.
  ScoreInput Input(Backend* backend) {
    ScoreInput input;
    input.backend = backend;
    input.head_dim = dim;
    input.group = group;
    input.softmax_scale = 1 / std::sqrt(static_cast<float>(dim));
    input.length = n;
    input.queries = num_queries > 0 ? queries.data() : nullptr;
    input.num_queries = num_queries;
    key_chunks = Chunks(keys);
    value_chunks = Chunks(values);
    for (size_t h = 0; h < keys.size(); ++h) {
      HeadTokens& head = input.heads.emplace_back();
      head.count = n;
      head.keys = {key_chunks[h].data(), kChunk, dim, DType::kFloat32};
      head.values = {value_chunks[h].data(), kChunk, dim, DType::kFloat32};
    }
    return input;
  }

  const float* Key(int head, int i) const { return keys[head].data() + static_cast<size_t>(i) * dim; }
  const float* Query(int q, int head, int g) const {
    return queries.data() + ((static_cast<size_t>(q) * keys.size() + head) * group + g) * dim;
  }

  static constexpr int kChunk = 37;
  const int dim, group, n, num_queries;
  std::vector<std::vector<float>> keys, values;  // [kv_heads][n, dim]
  std::vector<float> queries;                    // [num_queries, q_heads, dim]
  std::vector<std::vector<const uint8_t*>> key_chunks, value_chunks;

 private:
  std::vector<std::vector<const uint8_t*>> Chunks(const std::vector<std::vector<float>>& rows) const {
    std::vector<std::vector<const uint8_t*>> chunks(rows.size());
    for (size_t h = 0; h < rows.size(); ++h) {
      for (int i = 0; i < n; i += kChunk) {
        chunks[h].push_back(reinterpret_cast<const uint8_t*>(rows[h].data() + static_cast<size_t>(i) * dim));
      }
    }
    return chunks;
  }
};

inline Scores ScoresOf(const ScorerConfig& config, const ScoreInput& input) {
  auto scorer = MakeScorer(config);
  EXPECT_TRUE(scorer.ok()) << scorer.status();
  Scores scores;
  const absl::Status status = (*scorer)->Score(input, &scores);
  EXPECT_TRUE(status.ok()) << status;
  return scores;
}

inline Scores ScoresOf(const char* name, const ScoreInput& input) {
  ScorerConfig config;
  config.name = name;
  return ScoresOf(config, input);
}

}  // namespace seine::testing

#endif  // SEINE_TESTS_INDEX_SCORERS_SYNTHETIC_LAYER_H_
