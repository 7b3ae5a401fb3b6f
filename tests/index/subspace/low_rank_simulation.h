// An index's settings with low-rank stores, and a direct simulation of what such an index then holds.
#ifndef SEINE_TESTS_INDEX_SUBSPACE_LOW_RANK_SIMULATION_H_
#define SEINE_TESTS_INDEX_SUBSPACE_LOW_RANK_SIMULATION_H_

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "index/subspace/low_rank_store.h"
#include "index/subspace/shapes.h"
#include "kernels/ops/rows/rows.h"
#include "tests/index/test_util.h"

namespace seine::testing {

// A parameter of tests that hold for every kind of subspace.
struct SubspaceCase {
  const char* name;
  double full_rank;
  KeyFrame frame;
};

inline IndexConfig LowRankConfig(double full_rank = 0, KeyFrame frame = KeyFrame::kPostRope) {
  IndexConfig config = SmallConfig(KvStore::kKeysValues);
  config.geometry.rope = ParseRope(R"({"rope_theta": 10000})", 64, Rope::Style::kHalfSplit, 4096).value();
  SubspaceConfig subspace;
  subspace.key_rank = 24;
  subspace.value_rank = 33;
  subspace.frame = frame;
  subspace.full_rank = full_rank;
  subspace.version_tokens = 128;
  config.subspace = subspace;
  return config;
}

// One layer, head by head, as the settings say it should be kept.
class Simulation {
 public:
  Simulation(const IndexConfig& config, MemoryLedger* ledger)
      : config_(config), shapes_(MakeLowRankShapes(config).value()) {
    for (const LowRankShape& shape : shapes_[0]) heads_.push_back({{}, {}, {}, 0, LowRankStore(&shape, ledger)});
  }

  void Append(const std::vector<uint64_t>& names, int32_t first_position) {
    for (size_t h = 0; h < heads_.size(); ++h) {
      Head& head = heads_[h];
      for (size_t i = 0; i < names.size(); ++i) {
        head.positions.push_back(first_position + static_cast<int32_t>(i));
        head.keys.push_back(RowOf(names[i], h));
        head.values.push_back(RowOf(names[i] + kValueNames, h));
        Lower(&head);
      }
    }
  }

  // Keeps tokens whose positions are among those of each head.
  void Keep(const std::vector<std::vector<int32_t>>& kept) {
    for (size_t h = 0; h < heads_.size(); ++h) {
      Head& head = heads_[h];
      Head next = {{}, {}, {}, 0, head.store};
      std::vector<int64_t> low;
      for (size_t i = 0; i < head.positions.size(); ++i) {
        if (!std::binary_search(kept[h].begin(), kept[h].end(), head.positions[i])) continue;
        const auto place = static_cast<int64_t>(i);
        if (place < head.low_begin) ++next.low_begin;
        if (IsLow(head, place)) low.push_back(place - head.low_begin);
        next.positions.push_back(head.positions[i]);
        next.keys.push_back(head.keys[i]);
        next.values.push_back(head.values[i]);
      }
      next.store = head.store.Keep(low).value();
      head = std::move(next);
    }
  }

  void Truncate(int32_t position) {
    for (Head& head : heads_) {
      const auto place = std::lower_bound(head.positions.begin(), head.positions.end(), position);
      const auto size = place - head.positions.begin();
      head.positions.resize(size);
      head.keys.resize(size);
      head.values.resize(size);
      head.store.Truncate(size - head.low_begin);
    }
  }

  // As an index gathers it, in fp32.
  std::vector<float> Row(int h, int64_t place, bool of_values) const {
    const Head& head = heads_[h];
    std::vector<float> row(config_.geometry.head_dim);
    if (!IsLow(head, place)) {
      const std::string& bytes = (of_values ? head.values : head.keys)[place];
      cpu::ToFloat({bytes.data(), bytes.size(), DType::kFloat16}, 1, config_.geometry.head_dim, row.data());
      return row;
    }
    const int64_t in_store = place - head.low_begin;
    head.store.Read({&in_store, 1}, &head.positions[place], of_values ? nullptr : row.data(),
                    of_values ? row.data() : nullptr);
    return row;
  }

  void ExpectSame(const Index& index, const SequenceHandle& sequence) const {
    for (int h = 0; h < config_.geometry.num_kv_heads; ++h) {
      const Head& head = heads_[h];
      std::string keys, values, want_keys, want_values;
      ASSERT_TRUE(index.Gather(sequence, 0, h, head.positions, &keys, &values).ok());
      for (size_t i = 0; i < head.positions.size(); ++i) {
        for (const bool of_values : {false, true}) {
          const std::vector<float> row = Row(h, static_cast<int64_t>(i), of_values);
          std::string bytes(row.size() * 2, 0);
          Narrow(row.data(), static_cast<int64_t>(row.size()), DType::kFloat16,
                 reinterpret_cast<uint8_t*>(bytes.data()));
          (of_values ? want_values : want_keys) += bytes;
        }
      }
      EXPECT_EQ(keys, want_keys) << "head " << h;
      EXPECT_EQ(values, want_values) << "head " << h;
      std::vector<int32_t> positions;
      const int64_t end = index.DescribeHead(sequence, 0, h)->num_tokens;
      ASSERT_TRUE(index.Reconstruct(sequence, 0, h, 0, end, &positions, &keys, &values).ok());
      EXPECT_EQ(positions, head.positions);
      EXPECT_EQ(keys, want_keys);
      EXPECT_EQ(index.Reconstruct(sequence, 0, h, 0, end + 1, &positions, &keys, &values).code(),
                absl::StatusCode::kOutOfRange);
      const HeadInfo info = index.DescribeHead(sequence, 0, h).value();
      EXPECT_EQ(info.subspace->low_rank_tokens, head.store.size());
      EXPECT_EQ(info.subspace->code_bytes, head.store.bytes().codes);
      EXPECT_EQ(info.subspace->keys.rows, head.store.metrics().keys.rows);
    }
  }

  int64_t size(int h) const { return static_cast<int64_t>(heads_[h].positions.size()); }
  const std::vector<int32_t>& positions(int h) const { return heads_[h].positions; }

 private:
  struct Head {
    std::vector<int32_t> positions;
    std::vector<std::string> keys, values;  // as they came
    int64_t low_begin = 0;
    LowRankStore store;
  };

  static bool IsLow(const Head& head, int64_t place) {
    return place >= head.low_begin && place < head.low_begin + head.store.size();
  }
  std::string RowOf(uint64_t name, size_t head) const {
    const size_t bytes = config_.geometry.head_dim * 2;
    return TokenRow(config_.geometry, name).substr(head * bytes, bytes);
  }

  // What the zone's end has passed becomes low-rank.
  void Lower(Head* head) const {
    const Zones& z = config_.zones;
    const auto n = static_cast<int64_t>(head->positions.size());
    const int64_t zone = std::max<int64_t>(0, n - z.sink - z.local) / z.update_buffer * z.update_buffer;
    if (head->store.size() == 0) head->low_begin = z.sink;
    const int64_t begin = head->low_begin + head->store.size(), count = z.sink + zone - begin;
    if (zone == 0 || count <= 0) return;
    std::string keys, values;
    for (int64_t i = begin; i < begin + count; ++i) keys += head->keys[i], values += head->values[i];
    const size_t row = config_.geometry.head_dim * 2;
    const int64_t into = ((begin - z.sink) % z.update_buffer + z.update_buffer) % z.update_buffer;
    auto staged = head->store.Stage({{keys.data(), row, DType::kFloat16}, {values.data(), row, DType::kFloat16}},
                                    &head->positions[begin], count, z.update_buffer - into);
    ASSERT_TRUE(staged.ok()) << staged.status();
    head->store.Install(*std::move(staged));
  }

  const IndexConfig config_;
  const LowRankShapes shapes_;
  std::vector<Head> heads_;
};

}  // namespace seine::testing

#endif  // SEINE_TESTS_INDEX_SUBSPACE_LOW_RANK_SIMULATION_H_
