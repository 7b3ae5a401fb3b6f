#include "engines/llama.cpp/cells/prompt.h"

#include <atomic>

#include "engines/llama.cpp/report.h"

namespace seine::llama {

// A graph goes through the layers in order: with a layer that is not behind the last one a new graph has begun, and
// masks may say something else.
const PromptAttention::Sight& PromptAttention::SightOf(const AttentionNode& node, int layer) {
  if (layer <= last_layer_) sights_.clear();
  last_layer_ = layer;
  const auto [at, is_new] = sights_.try_emplace({RootOf(node.mask), node.mask->data});
  Sight& sight = at->second;
  if (!is_new) return sight;
  std::atomic<bool> weighed{false};
  sight.mask = std::make_unique<const PromptMask>(node.mask->ne[3] > 1 ? node.num_streams : 1, /*heads=*/1,
                                                  node.num_tokens, node.num_cells, node.group(), OnTeam(),
                                                  [&](int64_t stream, int, int64_t first, PromptBlock* block) {
                                                    if (!node.CellsSeen(first, stream, block)) weighed = true;
                                                  });
  sight.weighed = weighed;
  return sight;
}

std::string PromptAttention::Answer(const AttentionNode& node, int layer, const PromptParams& params) {
  const Sight& sight = SightOf(node, layer);
  if (sight.weighed) return "a mask that weighs cells";
  const ggml_tensor &k = *node.keys, &v = *node.values, &q = *node.queries, &out = *node.node;
  const DType key_type = *RowTypeOf(&k), value_type = *RowTypeOf(&v);
  const auto rows_of = [&](int64_t stream, int head) {
    const auto first = [&](const ggml_tensor& rows) {
      return static_cast<const uint8_t*>(rows.data) + head * rows.nb[2] + stream * rows.nb[3];
    };
    auto dense = PromptBatch::Rows::Dense(first(k), first(v), node.head_dim, key_type, k.nb[1], v.nb[1]);
    dense.values.dtype = value_type;
    return dense;
  };
  const auto floats = [](size_t bytes) { return static_cast<int64_t>(bytes / sizeof(float)); };
  PromptBatch batch{.rows_of = rows_of};
  batch.mask = sight.mask.get(), batch.rows = node.num_streams, batch.num_kv_heads = node.num_kv_heads;
  batch.head_dim = node.head_dim, batch.scale = node.scale, batch.softcap = node.softcap;
  batch.queries = node.Query(0, 0, 0), batch.query_strides = {floats(q.nb[3]), floats(q.nb[1]), floats(q.nb[2])};
  batch.outputs = node.Output(0, 0, 0);
  batch.output_strides = {floats(out.nb[3]), floats(out.nb[2]), floats(out.nb[1])};
  if (node.sinks != nullptr) {
    log_sum_exp_.resize(node.num_streams * node.num_tokens * node.num_q_heads);
    batch.log_sum_exp = log_sum_exp_.data();
  }
  Report::Get().Prompt(AttendPromptBatch(batch, params, OnTeam()));
  if (node.sinks == nullptr) return {};
  team_.Run(static_cast<int>(node.num_streams * node.num_tokens), [&](int i) {
    const int64_t stream = i / node.num_tokens, token = i % node.num_tokens;
    node.TakeSinks(0, node.num_q_heads, &log_sum_exp_[int64_t{i} * node.num_q_heads], node.Output(0, token, stream));
  });
  return {};
}

}  // namespace seine::llama
