#include "engines/llama.cpp/prompt.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "engines/llama.cpp/report.h"

namespace seine::llama {

// A graph goes through the layers in order: with a layer that is not behind the last one a new graph has begun, and
// masks may say something else.
const PromptAttention::Sight& PromptAttention::SightOf(const AttentionNode& node, int layer) {
  if (layer <= last_layer_) sights_.clear();
  last_layer_ = layer;
  const auto [at, is_new] = sights_.try_emplace(node.mask->data);
  Sight& sight = at->second;
  if (!is_new) return sight;
  sight.block_tokens = PromptBlockTokens(node.group());
  const auto blocks = static_cast<int>((node.num_tokens + sight.block_tokens - 1) / sight.block_tokens);
  const int64_t streams = node.mask->ne[3] > 1 ? node.num_streams : 1;
  sight.blocks.resize(streams * blocks);
  std::atomic<bool> weighed{false};
  team_.Run(static_cast<int>(sight.blocks.size()), [&](int i) {
    const int64_t first = int64_t{i % blocks} * sight.block_tokens;
    const int tokens = static_cast<int>(std::min<int64_t>(sight.block_tokens, node.num_tokens - first));
    sight.blocks[i] = PromptBlock(tokens);
    if (!node.CellsSeen(first, i / blocks, &sight.blocks[i])) weighed = true;
  });
  sight.weighed = weighed;
  return sight;
}

std::string PromptAttention::Answer(const AttentionNode& node, int layer, const PromptParams& params) {
  const Sight& sight = SightOf(node, layer);
  if (sight.weighed) return "a mask that weighs cells";
  const auto blocks = static_cast<int>((node.num_tokens + sight.block_tokens - 1) / sight.block_tokens);
  const auto streams = static_cast<int>(node.num_streams);
  const DType dtype = node.keys->type == GGML_TYPE_F16 ? DType::kFloat16 : DType::kBFloat16;
  constexpr int kOneChunk = std::numeric_limits<int>::max();
  std::mutex mutex;
  PromptCounts counts;
  // Later blocks see more: they begin first.
  team_.Run(streams * node.num_kv_heads * blocks, [&](int i) {
    const int b = blocks - 1 - i / (streams * node.num_kv_heads), head = i % node.num_kv_heads;
    const int stream = i / node.num_kv_heads % streams;
    PromptTask task;
    task.block = &sight.blocks[(node.mask->ne[3] > 1 ? stream : 0) * blocks + b];
    task.group = node.group();
    task.scale = node.scale;
    const auto rows_of = [&](const ggml_tensor* rows, const uint8_t** at) {
      *at = static_cast<const uint8_t*>(rows->data) + head * rows->nb[2] + stream * rows->nb[3];
      return ChunkedRows{at, kOneChunk, node.head_dim, dtype, rows->nb[1]};
    };
    const uint8_t *keys, *values;
    task.keys = rows_of(node.keys, &keys), task.values = rows_of(node.values, &values);
    task.num_places = node.num_cells;
    std::vector<const float*> queries;
    std::vector<float*> outputs;
    for (int t = 0; t < task.block->tokens(); ++t) {
      for (int g = 0; g < task.group; ++g) {
        const int64_t token = int64_t{b} * sight.block_tokens + t;
        queries.push_back(node.Query(head * task.group + g, token, stream));
        outputs.push_back(node.Output(head * task.group + g, token, stream));
      }
    }
    task.queries = queries.data();
    const PromptCounts of_block = AttendPrompt(task, params, outputs.data(), nullptr);
    const std::lock_guard<std::mutex> lock(mutex);
    counts.Add(of_block);
  });
  Report::Get().Prompt(counts);
  return {};
}

}  // namespace seine::llama
