#include "index/prompt/prompt_batch.h"

#include <algorithm>
#include <limits>
#include <mutex>

namespace seine {

namespace {

// Bit i of the word: byte i is not 0. `count` <= 64 bytes are read.
uint64_t WordOf(const uint8_t* bytes, int64_t count) {
  uint64_t word = 0;
  for (int64_t i = 0; i < count; ++i) word |= uint64_t{bytes[i] != 0} << i;
  return word;
}

// Sees [0, end) of 64 places.
uint64_t FirstPlaces(int64_t end) {
  return end >= host::kTileKeys ? ~uint64_t{0} : end <= 0 ? 0 : (uint64_t{1} << end) - 1;
}

}  // namespace

PromptMask::PromptMask(int64_t rows, int heads, int64_t tokens, int64_t places, int group)
    : rows_(rows),
      tokens_(tokens),
      places_(places),
      heads_(heads),
      group_(group),
      block_tokens_(PromptBlockTokens(group)),
      num_blocks_(static_cast<int>((tokens + block_tokens_ - 1) / block_tokens_)),
      blocks_(rows * heads * num_blocks_) {}

PromptMask::PromptMask(int64_t tokens, int64_t places, int group) : PromptMask(1, 1, tokens, places, group) {
  std::vector<uint64_t> words(block_tokens_);
  for (int b = 0; b < num_blocks_; ++b) {
    const int64_t first = int64_t{b} * block_tokens_;
    const auto count = static_cast<int>(std::min<int64_t>(block_tokens_, tokens - first));
    blocks_[b] = PromptBlock(count);
    for (int64_t place = 0; place < places - tokens + first + count; place += host::kTileKeys) {
      for (int t = 0; t < count; ++t) words[t] = FirstPlaces(places - tokens + first + t + 1 - place);
      blocks_[b].Add(place, words.data());
    }
    blocks_[b].Seal();
  }
}

PromptMask::PromptMask(const uint8_t* seen, int64_t rows, int heads, int64_t tokens, int64_t places, int group,
                       Backend* backend)
    : PromptMask(rows, heads, tokens, places, group) {
  backend->Run(static_cast<int>(blocks_.size()), [&](int i) {
    const int64_t first = int64_t{i % num_blocks_} * block_tokens_;
    const auto count = static_cast<int>(std::min<int64_t>(block_tokens_, tokens - first));
    const uint8_t* const of_block = seen + (int64_t{i / num_blocks_} * tokens + first) * places;
    std::vector<uint64_t> words(count);
    PromptBlock& block = blocks_[i] = PromptBlock(count);
    for (int64_t place = 0; place < places; place += host::kTileKeys) {
      const int64_t in_tile = std::min<int64_t>(host::kTileKeys, places - place);
      for (int t = 0; t < count; ++t) words[t] = WordOf(of_block + t * places + place, in_tile);
      block.Add(place, words.data());
    }
    block.Seal();
  });
}

PromptCounts AttendPromptBatch(const PromptBatch& batch, const PromptParams& params, Backend* backend, float* outputs) {
  const PromptMask& mask = *batch.mask;
  const int blocks = mask.num_blocks(), group = mask.group(), heads = batch.num_kv_heads;
  const int64_t tokens = mask.tokens(), dim = batch.head_dim, q_heads = int64_t{heads} * group;
  std::mutex mutex;
  PromptCounts counts;
  const auto of_each = static_cast<int>(batch.rows * heads);
  // Later blocks see more: they begin first.
  backend->Run(of_each * blocks, [&](int i) {
    const int b = blocks - 1 - i / of_each, head = i % heads;
    const int64_t row = i % of_each / heads, first = int64_t{b} * mask.block_tokens();
    PromptTask task;
    task.block = &mask.block(row, head, b);
    task.group = group;
    task.scale = batch.scale;
    const auto rows_of = [&](const void* rows, const uint8_t** at) {
      const int64_t before = (row * heads + head) * mask.places() * dim;
      *at = static_cast<const uint8_t*>(rows) + before * static_cast<int64_t>(SizeOf(batch.dtype));
      return ChunkedRows{at, std::numeric_limits<int>::max(), batch.head_dim, batch.dtype};
    };
    const uint8_t *keys, *values;
    task.keys = rows_of(batch.keys, &keys), task.values = rows_of(batch.values, &values);
    task.num_places = mask.places();
    std::vector<const float*> queries;
    std::vector<float*> rows;
    for (int64_t t = first; t < first + task.block->tokens(); ++t) {
      for (int64_t q = int64_t{head} * group; q < (int64_t{head} + 1) * group; ++q) {
        queries.push_back(batch.queries + ((row * q_heads + q) * tokens + t) * dim);
        rows.push_back(outputs + ((row * tokens + t) * q_heads + q) * dim);
      }
    }
    task.queries = queries.data();
    const PromptCounts of_block = AttendPrompt(task, params, rows.data(), nullptr);
    const std::lock_guard<std::mutex> lock(mutex);
    counts.Add(of_block);
  });
  return counts;
}

}  // namespace seine
