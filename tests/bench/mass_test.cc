// mass_p through the index on a real model's keys (the committed trace): the true mass of the answers, in float64 over
// all keys of the zone, against the p that was asked for, at beta .05.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/inputs/dataset.h"
#include "index/index.h"
#include "profile/profile.h"

namespace seine::bench {
namespace {

constexpr int kMassQueries = 48, kMassGroup = 3, kMassKvHeads = 3, kMassDim = 64;

struct Figures {
  double mean = 0, worst = 1;  // true mass, and of the head that has the least
  double error = 0;            // mean |estimated - true|
  int counted = 0, asked = 0;
};

class MassTest : public ::testing::Test {
 protected:
  MassTest() {
    DatasetOptions o;
    o.trace = SEINE_TRACE;
    o.num_queries = kMassQueries;
    auto dataset = Dataset::Open(o);
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    dataset_ = *std::move(dataset);
    for (int h = 0; h < dataset_->info().num_heads(); ++h) {
      heads_.push_back(*dataset_->Load(h));
      for (int g = 0; g < kMassGroup; ++g) weights_.push_back(Weights(heads_.back(), g));
    }
  }

  // [num_positions][num_keys] softmax weights over the zone.
  static std::vector<std::vector<double>> Weights(const Head& head, int g) {
    std::vector<std::vector<double>> out;
    for (size_t i = 0; i < head.queries.size() / (kMassGroup * kMassDim); ++i) {
      const float* q = &head.queries[(i * kMassGroup + g) * kMassDim];
      std::vector<double>& w = out.emplace_back();
      for (int64_t p = head.zone_begin; p < head.zone_end; ++p) {
        double dot = 0;
        for (int j = 0; j < kMassDim; ++j) dot += double{q[j]} * head.keys[p * kMassDim + j];
        w.push_back(dot / std::sqrt(kMassDim));
      }
      const double most = *std::max_element(w.begin(), w.end());
      double sum = 0;
      for (double& x : w) sum += x = std::exp(x - most);
      for (double& x : w) x /= sum;
    }
    return out;
  }

  std::unique_ptr<Index> MakeFilled(const std::string& codec) {
    IndexConfig config;
    const DatasetInfo& info = dataset_->info();
    config.geometry = {.num_layers = 30,
                       .num_q_heads = kMassKvHeads * kMassGroup,
                       .num_kv_heads = kMassKvHeads,
                       .head_dim = kMassDim,
                       .dtype = info.dtype};
    config.geometry.rope = *ParseRope(info.rope_json, kMassDim, info.rope_style, info.num_tokens);
    config.zones = {.sink = 16, .local = 512, .update_buffer = 64, .dense_threshold = 0};
    config.codec.name = codec;
    if (codec == "balanced") {
      config.codec.profile = std::make_shared<const Profile>(*ReadProfile(SEINE_TEST_PROFILE));
      config.codec.horizon = 4096;
    }
    auto index = Index::Create(config, backend_.get());
    EXPECT_TRUE(index.ok()) << index.status();
    sequence_ = *(*index)->CreateSequence("trace");
    const size_t row = kMassDim * SizeOf(info.dtype);
    for (size_t first = 0; first < heads_.size(); first += kMassKvHeads) {
      std::vector<uint8_t> tokens(info.num_tokens * kMassKvHeads * row);
      for (int h = 0; h < kMassKvHeads; ++h) {
        for (int64_t i = 0; i < info.num_tokens; ++i) {
          std::memcpy(&tokens[(i * kMassKvHeads + h) * row], &heads_[first + h].tokens[i * row], row);
        }
      }
      const TensorView keys = {tokens.data(), info.num_tokens, tokens.size()};
      EXPECT_TRUE((*index)->Append(sequence_, heads_[first].layer, 0, keys, {}).ok());
    }
    return *std::move(index);
  }

  // Measures the sets that their cap did not end.
  Figures Measure(const Index& index, float p, int cap) {
    SearchParams params;
    params.mass_p = p;
    params.top_k = cap;
    params.candidate_fraction = .05;
    params.scope = Scope::kPerQHead;
    Figures f;
    double sum = 0;
    std::map<size_t, std::pair<double, int>> by_head;
    for (size_t first = 0; first < heads_.size(); first += kMassKvHeads) {
      for (int i = 0; i < kMassQueries; ++i) {
        std::vector<float> queries;
        for (int h = 0; h < kMassKvHeads; ++h) {
          const float* from = &heads_[first + h].queries[static_cast<size_t>(i) * kMassGroup * kMassDim];
          queries.insert(queries.end(), from, from + kMassGroup * kMassDim);
        }
        const auto answers = index.Retrieve({{sequence_, heads_[first].layer, queries.data()}}, params);
        EXPECT_TRUE(answers.ok() && (*answers)[0].status.ok());
        const ItemAnswer& answer = (*answers)[0];
        bool any_short = false;
        for (size_t set = 0; set < answer.positions.size(); ++set) {
          const Head& head = heads_[first + set / kMassGroup];
          double mass = 0;
          for (const int32_t position : answer.positions[set]) {
            mass += weights_[first * kMassGroup + set][i][position - head.zone_begin];
          }
          ++f.asked;
          if (answer.masses[set] < p) {
            any_short = true;
            EXPECT_EQ(answer.positions[set].size(), static_cast<size_t>(cap));
            continue;
          }
          ++f.counted;
          sum += mass;
          f.error += std::fabs(answer.masses[set] - mass);
          auto& [of_head, count] = by_head[first * kMassGroup + set];
          of_head += mass;
          ++count;
        }
        EXPECT_EQ(answer.capped, any_short);
      }
    }
    f.mean = sum / f.counted;
    f.error /= f.counted;
    for (const auto& [head, of_head] : by_head) {
      if (of_head.second >= kMassQueries / 4) f.worst = std::min(f.worst, of_head.first / of_head.second);
    }
    return f;
  }

  std::unique_ptr<Backend> backend_ = MakeCpuBackend(2);
  std::unique_ptr<Dataset> dataset_;
  std::vector<Head> heads_;                                // [layers * kv_heads]
  std::vector<std::vector<std::vector<double>>> weights_;  // [layers * q_heads][num_positions][num_keys]
  SequenceHandle sequence_;
};

// A cap of 100 leaves beta to decide: 400 of 7,616 keys are candidates. One of 512 makes 2,048 of them candidates; one
// of 4,096 all, and hardly ends any set.
TEST_F(MassTest, TheTrueMassIsWhatWasAskedFor) {
  for (const std::string codec : {"balanced", "rsq"}) {
    const auto index = MakeFilled(codec);
    for (const int cap : {100, 512, 4096}) {
      for (const float p : {.5f, .8f, .9f, .95f}) {
        const Figures f = Measure(*index, p, cap);
        std::printf("%s cap %d p %.2f: mean %.4f worst head %.4f, |error| %.4f, reached %d of %d\n", codec.c_str(), cap,
                    static_cast<double>(p), f.mean, f.worst, f.error, f.counted, f.asked);
        EXPECT_LT(f.error, .015);
        EXPECT_GE(f.mean, p - .02) << codec << " " << cap;
        EXPECT_GE(f.worst, p - .02) << codec << " " << cap;
        if (cap == 4096) {
          EXPECT_GE(f.counted, f.asked - 5);
        }
      }
    }
  }
}

}  // namespace
}  // namespace seine::bench
