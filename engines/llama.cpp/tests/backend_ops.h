// Included before llama.cpp's own tests/test-backend-ops.cpp, which is compiled as it is: what it attends over and
// writes into becomes caches as llama.cpp has them, by name and by layout, for the plug-in takes nothing else. Nodes
// that it has permuted keep their layout under the names of caches.
#ifndef SEINE_ENGINES_LLAMA_CPP_TESTS_BACKEND_OPS_H_
#define SEINE_ENGINES_LLAMA_CPP_TESTS_BACKEND_OPS_H_

#include <cstring>
#include <memory>
#include <vector>

#include "ggml-backend.h"
#include "ggml.h"

namespace backend_ops {

// [head_dim, cells, heads, streams] as a view of [head_dim * heads, cells, streams], some of whose cells are not used.
inline ggml_tensor* CacheOf(ggml_context* context, ggml_tensor* like, const char* name) {
  if (like->op == GGML_OP_PERMUTE) {
    ggml_set_name(like->view_src, name);
    return like;
  }
  ggml_tensor* cache = ggml_new_tensor_3d(context, like->type, like->ne[0] * like->ne[2], like->ne[1] + 7, like->ne[3]);
  ggml_set_name(cache, name);
  ggml_tensor* view = ggml_view_4d(context, cache, like->ne[0], like->ne[2], like->ne[1], like->ne[3],
                                   ggml_row_size(like->type, like->ne[0]), cache->nb[1], cache->nb[2], 0);
  return ggml_permute(context, view, 0, 2, 1, 3);
}

inline ggml_tensor* Attention(ggml_context* context, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v, ggml_tensor* mask,
                              float scale, float max_bias, float softcap) {
  return ggml_flash_attn_ext(context, q, CacheOf(context, k, "cache_k_l0"), CacheOf(context, v, "cache_v_l0"), mask,
                             scale, max_bias, softcap);
}

// A cache of so many cells more that it is one which attention is answered over.
inline ggml_tensor* SetRows(ggml_context* context, ggml_tensor* like, ggml_tensor* rows, ggml_tensor* cells) {
  ggml_tensor* cache =
      ggml_new_tensor_4d(context, like->type, like->ne[0], like->ne[1] + 256, like->ne[2], like->ne[3]);
  return ggml_set_rows(context, ggml_set_name(cache, "cache_k_l0"), rows, cells);
}

// Masks by turns: as the test has them, which weigh cells; with what they do not hide seen; and with half of that.
inline void SetTensor(ggml_tensor* tensor, const void* data, size_t offset, size_t size) {
  static int masks = 0;
  if (std::strcmp(tensor->name, "m") != 0) return ggml_backend_tensor_set(tensor, data, offset, size);
  const int turn = masks++ % 3;
  const auto* given = static_cast<const ggml_fp16_t*>(data);
  std::vector<ggml_fp16_t> cells(given, given + size / sizeof(ggml_fp16_t));
  constexpr ggml_fp16_t kHidden = 0xFC00, kNegative = 0x8000;
  for (ggml_fp16_t& cell : cells) {
    if (turn == 1) cell = cell == kHidden ? kHidden : 0;
    if (turn == 2) cell = (cell & kNegative) != 0 ? kHidden : 0;
  }
  ggml_backend_tensor_set(tensor, cells.data(), offset, size);
}

// A backend is one context's, whose caches stay where they are: each graph has one of its own. It is planned once its
// caches are there.
inline bool Compare(ggml_backend_t backend, ggml_backend_t other, ggml_cgraph* graph, ggml_backend_eval_callback visit,
                    void* data, ggml_tensor const* const* nodes, size_t count) {
  const ggml_backend_dev_t device = ggml_backend_get_device(backend);
  const std::unique_ptr<ggml_backend, decltype(&ggml_backend_free)> own(ggml_backend_dev_init(device, nullptr),
                                                                        &ggml_backend_free);
  reinterpret_cast<ggml_backend_set_n_threads_t>(ggml_backend_reg_get_proc_address(
      ggml_backend_dev_backend_reg(device), "ggml_backend_set_n_threads"))(own.get(), 2);
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) ggml_backend_dev_supports_op(device, ggml_graph_node(graph, i));
  return ggml_backend_compare_graph_backend(own.get(), other, graph, visit, data, nodes, count);
}

}  // namespace backend_ops

#define ggml_flash_attn_ext backend_ops::Attention
#define ggml_set_rows backend_ops::SetRows
#define ggml_backend_tensor_set backend_ops::SetTensor
#define ggml_backend_compare_graph_backend backend_ops::Compare

#endif  // SEINE_ENGINES_LLAMA_CPP_TESTS_BACKEND_OPS_H_
