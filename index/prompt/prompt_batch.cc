#include "index/prompt/prompt_batch.h"

#include <algorithm>
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

// Token first + t of the block sees places [0, end_of(first + t)), which do not descend.
template <typename EndOf>
void FillByEnds(int64_t first, EndOf end_of, PromptBlock* block) {
  std::vector<uint64_t> words(block->tokens());
  const int64_t last = end_of(first + block->tokens() - 1);
  for (int64_t place = 0; place < last; place += host::kTileKeys) {
    for (int t = 0; t < block->tokens(); ++t) words[t] = FirstPlaces(end_of(first + t) - place);
    block->Add(place, words.data());
  }
}

// Query rows that share a pass over the keys: these are widened once for all of them, and the rows' sums still fit a
// core's caches.
constexpr int kRowsAtOnce = 384;

}  // namespace

PromptMask::PromptMask(int64_t rows, int heads, int64_t tokens, int64_t places, int group, RunTasks run, Fill fill)
    : rows_(rows),
      tokens_(tokens),
      places_(places),
      heads_(heads),
      group_(group),
      num_blocks_(static_cast<int>((tokens + kPromptBlockTokens - 1) / kPromptBlockTokens)),
      blocks_(rows * heads * num_blocks_) {
  run(static_cast<int>(blocks_.size()), [&](int i) {
    const int64_t first = int64_t{i % num_blocks_} * kPromptBlockTokens, of = i / num_blocks_;
    blocks_[i] = PromptBlock(static_cast<int>(std::min<int64_t>(kPromptBlockTokens, tokens - first)));
    fill(of / heads, static_cast<int>(of % heads), first, &blocks_[i]);
    blocks_[i].Seal();
  });
}

PromptMask::PromptMask(const std::vector<std::vector<int64_t>>& ends, int64_t places, int group, RunTasks run)
    : PromptMask(1, static_cast<int>(ends.size()), static_cast<int64_t>(ends[0].size()), places, group, run,
                 [&](int64_t, int head, int64_t first, PromptBlock* block) {
                   FillByEnds(
                       first, [&](int64_t t) { return ends[head][t]; }, block);
                 }) {}

PromptMask::PromptMask(int64_t tokens, int64_t places, int group, RunTasks run)
    : PromptMask(1, 1, tokens, places, group, run, [&](int64_t, int, int64_t first, PromptBlock* block) {
        FillByEnds(
            first, [&](int64_t t) { return places - tokens + t + 1; }, block);
      }) {}

PromptMask::PromptMask(const uint8_t* seen, int64_t rows, int heads, int64_t tokens, int64_t places, int group,
                       RunTasks run)
    : PromptMask(rows, heads, tokens, places, group, run,
                 [&](int64_t row, int head, int64_t first, PromptBlock* block) {
                   const uint8_t* const of_block = seen + ((row * heads + head) * tokens + first) * places;
                   std::vector<uint64_t> words(block->tokens());
                   for (int64_t place = 0; place < places; place += host::kTileKeys) {
                     const int64_t in_tile = std::min<int64_t>(host::kTileKeys, places - place);
                     for (int t = 0; t < block->tokens(); ++t)
                       words[t] = WordOf(of_block + t * places + place, in_tile);
                     block->Add(place, words.data());
                   }
                 }) {}

PromptCounts AttendPromptBatch(const PromptBatch& batch, const PromptParams& params, RunTasks run) {
  const PromptMask& mask = *batch.mask;
  const int blocks = mask.num_blocks(), group = mask.group(), heads = batch.num_kv_heads;
  const int64_t q_heads = int64_t{heads} * group;
  // Query heads that are worked at together, as near as parts of a group can be.
  const int most =
      std::max<int>(1, kRowsAtOnce / static_cast<int>(std::min<int64_t>(kPromptBlockTokens, mask.tokens())));
  const int parts = (group + most - 1) / most;
  std::mutex mutex;
  PromptCounts counts;
  const auto of_each = static_cast<int>(batch.rows * heads * parts);
  // Later blocks see more: they begin first.
  run(of_each * blocks, [&](int i) {
    const int b = blocks - 1 - i / of_each, part = i % parts, head = i / parts % heads;
    const int64_t row = i % of_each / parts / heads, first = int64_t{b} * kPromptBlockTokens;
    const int64_t first_head = int64_t{head} * group + part * group / parts;
    const int64_t end_head = int64_t{head} * group + (part + 1) * group / parts;
    PromptTask task;
    task.block = &mask.block(row, head, b);
    task.group = static_cast<int>(end_head - first_head);
    task.scale = batch.scale, task.softcap = batch.softcap;
    PromptBatch::Rows rows = batch.rows_of(row, head);
    if (rows.first_key != nullptr) rows.keys.chunks = &rows.first_key, rows.values.chunks = &rows.first_value;
    task.keys = rows.keys, task.values = rows.values;
    task.num_places = rows.num_places < 0 ? mask.places() : rows.num_places;
    const int64_t end = first + task.block->tokens();
    std::vector<const float*> queries;
    std::vector<float*> outputs;
    const auto at = [row](const PromptStrides& s, int64_t t, int64_t q) {
      return row * s.row + t * s.token + q * s.head;
    };
    for (int64_t t = first; t < end; ++t) {
      for (int64_t q = first_head; q < end_head; ++q) {
        queries.push_back(batch.queries + at(batch.query_strides, t, q));
        outputs.push_back(batch.outputs + at(batch.output_strides, t, q));
      }
    }
    task.queries = queries.data();
    std::vector<float> log_sum_exp(batch.log_sum_exp == nullptr ? 0 : queries.size());
    const PromptCounts of_block =
        AttendPrompt(task, params, outputs.data(), log_sum_exp.empty() ? nullptr : log_sum_exp.data());
    for (size_t r = 0; r < log_sum_exp.size(); ++r) {
      const int64_t t = row * mask.tokens() + first + static_cast<int64_t>(r) / task.group;
      batch.log_sum_exp[t * q_heads + first_head + static_cast<int64_t>(r) % task.group] = log_sum_exp[r];
    }
    const std::lock_guard<std::mutex> lock(mutex);
    counts.Add(of_block);
  });
  return counts;
}

}  // namespace seine
