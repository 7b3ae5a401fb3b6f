// A profile of one RoPE layout for an index of the other, on the committed trace as it is (half-split) and with its
// queries and keys in the order of interleaved pairs: recall as with the profile's own layout, and the same tokens kept
// by the scorers that use one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "bench/inputs/dataset.h"
#include "index/index.h"
#include "index/subspace/calibrate.h"
#include "profile/moments.h"
#include "profile/profile.h"

namespace seine::bench {
namespace {

constexpr int kLayoutDim = 64, kLayoutKvHeads = 3, kLayoutGroup = 3, kTopK = 100, kLayoutQueries = 12;

// By hand: coordinates i and i + 32 turn together, or 2i and 2i + 1.
int PlaceOf(int c) { return c < kLayoutDim / 2 ? 2 * c : 2 * (c - kLayoutDim / 2) + 1; }
template <typename T>
void Interleave(T* row) {
  T out[kLayoutDim];
  for (int c = 0; c < kLayoutDim; ++c) out[PlaceOf(c)] = row[c];
  std::copy_n(out, kLayoutDim, row);
}
void InterleaveMatrix(Eigen::MatrixXd* m) {
  const Eigen::MatrixXd old = *m;
  for (int i = 0; i < kLayoutDim; ++i) {
    for (int j = 0; j < kLayoutDim; ++j) (*m)(PlaceOf(i), PlaceOf(j)) = old(i, j);
  }
}

// The committed profile, of half-split keys, and what it would be had the model interleaved pairs.
std::shared_ptr<const Profile> ProfileIn(Rope::Style style) {
  Profile profile = *ReadProfile(SEINE_TEST_PROFILE);
  EXPECT_EQ(profile.rope_style, Rope::Style::kHalfSplit);
  if (style == Rope::Style::kInterleaved) {
    for (LayerProfile& layer : profile.layers) {
      for (auto* means : {&layer.q_mean, &layer.k_mean}) {
        for (Eigen::VectorXd& mean : *means) Interleave(mean.data());
      }
      for (auto* moments : {&layer.q_moment, &layer.k_moment, &layer.k_residual}) {
        for (Eigen::MatrixXd& moment : *moments) InterleaveMatrix(&moment);
      }
    }
  }
  profile.rope_style = style;
  return std::make_shared<const Profile>(std::move(profile));
}

class LayoutTest : public ::testing::Test {
 protected:
  // One layer of the trace, its queries and keys in a layout.
  void Load(Rope::Style style) {
    DatasetOptions o;
    o.trace = SEINE_TRACE;
    o.layers = {15};
    o.num_queries = kLayoutQueries;
    o.values = true;
    const auto dataset = *Dataset::Open(o);
    info_ = dataset->info();
    ASSERT_EQ(info_.dtype, DType::kFloat16);
    heads_.clear();
    for (int h = 0; h < kLayoutKvHeads; ++h) {
      Head& head = heads_.emplace_back(*dataset->Load(h));
      if (style == Rope::Style::kHalfSplit) continue;
      for (int64_t i = 0; i < head.num_tokens; ++i) {
        Interleave(reinterpret_cast<uint16_t*>(head.tokens.data()) + i * kLayoutDim);
        Interleave(&head.keys[i * kLayoutDim]);
      }
      for (size_t i = 0; i < head.queries.size(); i += kLayoutDim) Interleave(&head.queries[i]);
    }
    rope_ = *ParseRope(info_.rope_json, kLayoutDim, style, info_.num_tokens);
  }

  std::unique_ptr<Index> Make(IndexConfig config) {
    config.geometry = {.num_layers = 30,
                       .num_q_heads = kLayoutKvHeads * kLayoutGroup,
                       .num_kv_heads = kLayoutKvHeads,
                       .head_dim = kLayoutDim,
                       .dtype = DType::kFloat16,
                       .rope = rope_};
    config.zones = {.sink = 16, .local = 512, .update_buffer = 64, .dense_threshold = 0};
    config.kv_store = KvStore::kKeysValues;
    auto index = Index::Create(config, backend_.get());
    EXPECT_TRUE(index.ok()) << index.status();
    sequence_ = *(*index)->CreateSequence("trace");
    const auto gather = [&](auto bytes_of) {
      std::vector<uint8_t> rows(info_.num_tokens * kLayoutKvHeads * kLayoutDim * 2);
      for (int h = 0; h < kLayoutKvHeads; ++h) {
        for (int64_t i = 0; i < info_.num_tokens; ++i) {
          std::memcpy(&rows[(i * kLayoutKvHeads + h) * kLayoutDim * 2], &bytes_of(heads_[h])[i * kLayoutDim * 2],
                      kLayoutDim * 2);
        }
      }
      return rows;
    };
    const std::vector<uint8_t> keys = gather([](const Head& h) -> const auto& { return h.tokens; });
    const std::vector<uint8_t> values = gather([](const Head& h) -> const auto& { return h.values; });
    const auto length = (*index)->Append(sequence_, 15, 0, {keys.data(), info_.num_tokens, keys.size()},
                                         {values.data(), info_.num_tokens, values.size()});
    EXPECT_TRUE(length.ok()) << length.status();
    return *std::move(index);
  }

  double Recall(const Index& index) const {
    SearchParams params;
    params.scope = Scope::kPerQHead;
    params.top_k = kTopK;
    double recall = 0;
    for (int i = 0; i < kLayoutQueries; ++i) {
      std::vector<float> queries;
      for (const Head& head : heads_) {
        const float* from = &head.queries[static_cast<size_t>(i) * kLayoutGroup * kLayoutDim];
        queries.insert(queries.end(), from, from + kLayoutGroup * kLayoutDim);
      }
      const ItemAnswer answer = (*index.Retrieve({{sequence_, 15, queries.data()}}, params))[0];
      for (int q = 0; q < kLayoutKvHeads * kLayoutGroup; ++q) {
        const Head& head = heads_[q / kLayoutGroup];
        std::vector<std::pair<double, int32_t>> scored;
        for (int64_t p = head.zone_begin; p < head.zone_end; ++p) {
          double dot = 0;
          for (int j = 0; j < kLayoutDim; ++j)
            dot += double{queries[q * kLayoutDim + j]} * head.keys[p * kLayoutDim + j];
          scored.emplace_back(-dot, static_cast<int32_t>(p));
        }
        std::partial_sort(scored.begin(), scored.begin() + kTopK, scored.end());
        for (int k = 0; k < kTopK; ++k) {
          recall += std::binary_search(answer.positions[q].begin(), answer.positions[q].end(), scored[k].second);
        }
      }
    }
    return recall / (kLayoutQueries * kLayoutKvHeads * kLayoutGroup * kTopK);
  }

  std::vector<std::vector<int32_t>> Kept(const Index& index, const std::string& scorer) const {
    EvictParams params;
    params.scorer.name = scorer;
    params.budget.tokens = 1000;
    params.dry_run = true;
    const auto answer = const_cast<Index&>(index).Evict(sequence_, 15, params, {});
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer->kept;
  }

  std::unique_ptr<Backend> backend_ = MakeCpuBackend(2);
  DatasetInfo info_;
  std::vector<Head> heads_;
  Rope rope_;
  SequenceHandle sequence_;
};

double Overlap(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  std::vector<int32_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(b.size());
}

TEST_F(LayoutTest, RecallIsThatOfTheProfilesOwnLayout) {
  for (const Rope::Style style : {Rope::Style::kHalfSplit, Rope::Style::kInterleaved}) {
    const Rope::Style other = style == Rope::Style::kHalfSplit ? Rope::Style::kInterleaved : Rope::Style::kHalfSplit;
    Load(style);
    double recall[2];
    for (const bool brought : {false, true}) {
      IndexConfig config;
      config.codec.name = "balanced";
      config.codec.profile = ProfileIn(brought ? other : style);
      config.codec.horizon = 4096;
      recall[brought] = Recall(*Make(config));
    }
    std::printf("%s: own profile %.4f, the other layout's %.4f\n",
                style == Rope::Style::kHalfSplit ? "half-split" : "interleaved", recall[0], recall[1]);
    EXPECT_GT(recall[0], .95);
    EXPECT_NEAR(recall[1], recall[0], .002);
  }
}

TEST_F(LayoutTest, ScorersKeepTheSameTokensAndBasesSpanTheSame) {
  Load(Rope::Style::kInterleaved);
  for (const char* scorer : {"qfilters", "expected_attention"}) {
    std::vector<std::vector<int32_t>> kept[2];
    for (const bool brought : {false, true}) {
      IndexConfig config;
      EvictionConfig& eviction = config.eviction.emplace();
      eviction.scorer.name = scorer;
      eviction.budget.tokens = 9000;  // more than there are: calls alone evict
      eviction.profile = ProfileIn(brought ? Rope::Style::kHalfSplit : Rope::Style::kInterleaved);
      kept[brought] = Kept(*Make(config), scorer);
    }
    for (int h = 0; h < kLayoutKvHeads; ++h) EXPECT_GT(Overlap(kept[1][h], kept[0][h]), .998) << scorer;
  }
  for (const KeyFrame frame : {KeyFrame::kPostRope, KeyFrame::kPreRope}) {
    LayerBases bases[2];
    for (const bool brought : {false, true}) {
      IndexConfig config;
      config.subspace.emplace();
      config.subspace->frame = frame;
      config.subspace->oja.error_threshold = 1;  // as they began
      config.subspace->key_rank = config.subspace->value_rank = 32;
      config.subspace->profile = ProfileIn(brought ? Rope::Style::kHalfSplit : Rope::Style::kInterleaved);
      const auto index = Make(config);
      bases[brought] = *index->GetBases(sequence_, 15);
    }
    for (int h = 0; h < kLayoutKvHeads; ++h) {
      EXPECT_GT(seine::Overlap(bases[0].keys[h], bases[1].keys[h]), .9999) << h;
    }
  }
}

}  // namespace
}  // namespace seine::bench
