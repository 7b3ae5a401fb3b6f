#include "bench/measures/evict_stream.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/machine/median.h"
#include "bench/measures/recall.h"
#include "index/index.h"
#include "index/memory/memory_budget.h"

namespace seine::bench {
namespace {

// Decode steps, in intervals: enough evictions for a median.
constexpr int kIntervals = 9;

// The layer's keys as they are appended: [tokens, kv_heads, head_dim].
std::vector<uint8_t> Interleaved(const EvictLayer& layer) {
  const size_t row = layer.head_dim * SizeOf(layer.dtype), heads = layer.heads.size();
  std::vector<uint8_t> tokens(static_cast<size_t>(layer.scored) * heads * row);
  for (size_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < layer.scored; ++i) {
      std::memcpy(&tokens[(i * heads + h) * row], &layer.heads[h].tokens[i * row], row);
    }
  }
  return tokens;
}

IndexConfig ConfigOf(const EvictLayer& layer) {
  IndexConfig config;
  const int kv_heads = static_cast<int>(layer.heads.size());
  config.geometry = {.num_layers = 1,
                     .num_q_heads = kv_heads * layer.group,
                     .num_kv_heads = kv_heads,
                     .head_dim = layer.head_dim,
                     .dtype = layer.dtype};
  return config;
}

EvictionConfig EvictionOf(const EvictLayer& layer, const EvictSetting& setting, int64_t interval) {
  EvictionConfig eviction;
  eviction.scorer = setting.scorer;
  eviction.keep = setting.keep;
  eviction.interval = interval;
  eviction.budget = setting.budget;
  if (setting.budget.ratio > 0) {
    eviction.budget.tokens =
        std::max<int64_t>(1, static_cast<int64_t>(double(layer.scored) * (1 - setting.budget.ratio)));
    eviction.budget.ratio = 0;
  }
  if (setting.scorer.name == "qfilters") eviction.filters = {layer.filters};
  return eviction;
}

// An index of one sequence that a layer's tokens go to, over and over.
class Stream {
 public:
  Stream(const EvictLayer& layer, const std::vector<uint8_t>& tokens)
      : layer_(layer), tokens_(tokens), token_bytes_(tokens.size() / layer.scored) {}

  absl::Status Open(const IndexConfig& config, Backend* backend) {
    auto index = Index::Create(config, backend, memory_);
    if (!index.ok()) return index.status();
    index_ = *std::move(index);
    auto sequence = index_->CreateSequence("");
    if (!sequence.ok()) return sequence.status();
    sequence_ = *std::move(sequence);
    asks_ = QueriesKept(config) > 0 || (config.eviction && config.eviction->scorer.accumulate);
    return absl::OkStatus();
  }

  // Microseconds that the next `count` tokens take.
  absl::StatusOr<double> Append(int64_t count) {
    const int64_t first = length_ % layer_.scored;
    const TensorView keys = {tokens_.data() + first * token_bytes_, count, static_cast<size_t>(count) * token_bytes_};
    const std::vector<float> queries = Queries(count);
    const auto begin = std::chrono::steady_clock::now();
    auto length = index_->Append(sequence_, 0, length_, keys, {}, {queries.data(), asks_ ? count : 0});
    const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
    if (!length.ok()) return length.status();
    length_ = *length;
    return us;
  }

  absl::Status CountTokens(StreamRow* row) const {
    for (size_t h = 0; h < layer_.heads.size(); ++h) {
      auto head = index_->DescribeHead(sequence_, 0, static_cast<int>(h));
      if (!head.ok()) return head.status();
      row->most_tokens = std::max(row->most_tokens, head->num_retained);
    }
    return absl::OkStatus();
  }
  int64_t evictions() const { return index_->stats().evictions; }
  int64_t peak_bytes() const { return memory_->peak_bytes(); }

 private:
  // Queries of the next `count` tokens, where the scorer looks at some: the layer's own, over and over.
  std::vector<float> Queries(int64_t count) const {
    std::vector<float> queries;
    const size_t row = layer_.observed_queries.size() / layer_.observed;
    for (int64_t i = 0; asks_ && i < count; ++i) {
      const float* from = layer_.observed_queries.data() + (length_ + i) % layer_.observed * row;
      queries.insert(queries.end(), from, from + row);
    }
    return queries;
  }

  const EvictLayer& layer_;
  const std::vector<uint8_t>& tokens_;
  const size_t token_bytes_;
  std::shared_ptr<MemoryBudget> memory_ = std::make_shared<MemoryBudget>(0);
  std::unique_ptr<Index> index_;
  SequenceHandle sequence_;
  bool asks_ = false;
  int64_t length_ = 0;
};

absl::Status AppendBlocks(Stream* stream, int64_t tokens, StreamRow* row) {
  for (int64_t done = 0; done < tokens; done += row->interval) {
    if (auto us = stream->Append(std::min(row->interval, tokens - done)); !us.ok()) return us.status();
    if (absl::Status s = stream->CountTokens(row); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status TimeSteps(Stream* stream, double heads, StreamRow* row) {
  std::vector<double> plain, evicting;
  for (int64_t step = 0; step < kIntervals * row->interval; ++step) {
    const int64_t before = stream->evictions();
    auto us = stream->Append(1);
    if (!us.ok()) return us.status();
    if (absl::Status s = stream->CountTokens(row); !s.ok()) return s;
    (stream->evictions() == before ? plain : evicting).push_back(*us / heads);
  }
  row->step_us = Median(std::move(plain));
  row->eviction_us = Median(std::move(evicting));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<StreamRow>> MeasureStream(const EvictLayer& layer, const EvictSetting& setting,
                                                       int64_t interval, Backend* backend) {
  const std::vector<uint8_t> tokens = Interleaved(layer);
  IndexConfig config = ConfigOf(layer);
  StreamRow row;
  row.interval = interval;
  {
    Stream whole(layer, tokens);
    if (absl::Status s = whole.Open(config, backend); !s.ok()) return s;
    if (auto us = whole.Append(layer.scored); !us.ok()) return us.status();
    row.whole_bytes = whole.peak_bytes();
  }
  config.eviction = EvictionOf(layer, setting, interval);
  if (!Validate(config).ok()) return std::nullopt;
  Stream stream(layer, tokens);
  if (absl::Status s = stream.Open(config, backend); !s.ok()) return s;
  if (absl::Status s = AppendBlocks(&stream, layer.scored, &row); !s.ok()) return s;
  row.peak_bytes = stream.peak_bytes();
  if (absl::Status s = TimeSteps(&stream, static_cast<double>(layer.heads.size()), &row); !s.ok()) return s;
  return row;
}

}  // namespace seine::bench
