// Asks ggml for what is known, and looks where it lies.
#include "engines/llama.cpp/ggml/ggml_layout.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <memory>

#include "engines/llama.cpp/ggml/ggml_calls.h"
#include "ggml-backend-impl.h"

namespace seine::llama {

namespace {

constexpr size_t kObjectBytes = 32;  // ggml's own struct before each tensor, which no header has

// These are called here alone, so that none of them is bound for good.
#define SEINE_FIND(name) const auto find_##name = reinterpret_cast<decltype(&name)>(FindInGgml(#name))

float FloatParam(const ggml_tensor* node, int i) {
  float value;
  std::memcpy(&value, &node->op_params[i], sizeof(value));
  return value;
}

bool TypesAreKnown() {
  SEINE_FIND(ggml_type_name);
  if (find_ggml_type_name == nullptr) return false;
  constexpr std::pair<ggml_type, const char*> kNames[] = {
      {GGML_TYPE_F32, "f32"}, {GGML_TYPE_F16, "f16"},   {GGML_TYPE_BF16, "bf16"}, {GGML_TYPE_I32, "i32"},
      {GGML_TYPE_I64, "i64"}, {GGML_TYPE_Q8_0, "q8_0"}, {GGML_TYPE_Q4_0, "q4_0"}};
  return std::all_of(std::begin(kNames), std::end(kNames), [&](const auto& known) {
    const char* const name = find_ggml_type_name(known.first);
    return name != nullptr && std::strcmp(name, known.second) == 0;
  });
}

bool TensorIsKnown(ggml_context* context) {
  SEINE_FIND(ggml_new_tensor_3d);
  SEINE_FIND(ggml_set_name);
  SEINE_FIND(ggml_view_2d);
  SEINE_FIND(ggml_reshape_2d);
  SEINE_FIND(ggml_permute);
  SEINE_FIND(ggml_transpose);
  if (find_ggml_new_tensor_3d == nullptr || find_ggml_set_name == nullptr || find_ggml_view_2d == nullptr ||
      find_ggml_reshape_2d == nullptr || find_ggml_permute == nullptr || find_ggml_transpose == nullptr) {
    return false;
  }
  ggml_tensor* const cache = find_ggml_new_tensor_3d(context, GGML_TYPE_F16, 128, 7, 3);
  find_ggml_set_name(cache, "cache_k_l7");
  const ggml_tensor* const view = find_ggml_view_2d(context, cache, 64, 5, 256, 512);
  return cache->type == GGML_TYPE_F16 && cache->op == GGML_OP_NONE && cache->ne[0] == 128 && cache->ne[1] == 7 &&
         cache->ne[2] == 3 && cache->ne[3] == 1 && cache->nb[0] == 2 && cache->nb[1] == 256 &&
         cache->nb[2] == 7 * 256 && cache->data == nullptr && cache->buffer == nullptr && cache->view_src == nullptr &&
         std::strcmp(cache->name, "cache_k_l7") == 0 && view->op == GGML_OP_VIEW && view->view_src == cache &&
         view->view_offs == 512 && view->ne[1] == 5 && view->src[0] == cache &&
         find_ggml_reshape_2d(context, cache, 64, 42)->op == GGML_OP_RESHAPE &&
         find_ggml_permute(context, cache, 0, 2, 1, 3)->op == GGML_OP_PERMUTE &&
         find_ggml_transpose(context, cache)->op == GGML_OP_TRANSPOSE;
}

bool AttentionIsKnown(ggml_context* context) {
  SEINE_FIND(ggml_new_tensor_3d);
  SEINE_FIND(ggml_flash_attn_ext);
  SEINE_FIND(ggml_flash_attn_ext_add_sinks);
  if (find_ggml_flash_attn_ext == nullptr || find_ggml_flash_attn_ext_add_sinks == nullptr) return false;
  ggml_tensor* const queries = find_ggml_new_tensor_3d(context, GGML_TYPE_F32, 64, 3, 4);
  ggml_tensor* const keys = find_ggml_new_tensor_3d(context, GGML_TYPE_F16, 64, 256, 2);
  ggml_tensor* const values = find_ggml_new_tensor_3d(context, GGML_TYPE_F16, 64, 256, 2);
  ggml_tensor* const mask = find_ggml_new_tensor_3d(context, GGML_TYPE_F16, 256, 64, 1);
  ggml_tensor* const sinks = find_ggml_new_tensor_3d(context, GGML_TYPE_F32, 4, 1, 1);
  ggml_tensor* const node = find_ggml_flash_attn_ext(context, queries, keys, values, mask, .5f, .25f, .125f);
  find_ggml_flash_attn_ext_add_sinks(node, sinks);
  ggml_cgraph* const graph = ggml_new_graph_custom(context, 16, false);
  ggml_build_forward_expand(graph, node);
  return node->op == GGML_OP_FLASH_ATTN_EXT && node->type == GGML_TYPE_F32 && node->src[0] == queries &&
         node->src[1] == keys && node->src[2] == values && node->src[3] == mask && node->src[4] == sinks &&
         node->ne[0] == 64 && node->ne[1] == 4 && node->ne[2] == 3 && FloatParam(node, 0) == .5f &&
         FloatParam(node, 1) == .25f && FloatParam(node, 2) == .125f && ggml_graph_n_nodes(graph) == 1 &&
         ggml_graph_node(graph, 0) == node && (node->flags & GGML_TENSOR_FLAG_COMPUTE) != 0;
}

bool WritesAreKnown(ggml_context* context) {
  SEINE_FIND(ggml_new_tensor_3d);
  SEINE_FIND(ggml_set_rows);
  SEINE_FIND(ggml_mul_mat);
  if (find_ggml_set_rows == nullptr || find_ggml_mul_mat == nullptr) return false;
  ggml_tensor* const cache = find_ggml_new_tensor_3d(context, GGML_TYPE_F16, 128, 256, 1);
  ggml_tensor* const rows = find_ggml_new_tensor_3d(context, GGML_TYPE_F32, 128, 3, 1);
  ggml_tensor* const cells = find_ggml_new_tensor_3d(context, GGML_TYPE_I64, 3, 1, 1);
  const ggml_tensor* const written = find_ggml_set_rows(context, cache, rows, cells);
  const ggml_tensor* const product = find_ggml_mul_mat(context, cache, rows);
  return written->op == GGML_OP_SET_ROWS && written->view_src == cache && written->src[0] == rows &&
         written->src[1] == cells && product->op == GGML_OP_MUL_MAT && product->src[0] == cache &&
         product->src[1] == rows;
}

bool RopeIsKnown(ggml_context* context) {
  SEINE_FIND(ggml_new_tensor_3d);
  SEINE_FIND(ggml_rope_ext);
  if (find_ggml_rope_ext == nullptr) return false;
  ggml_tensor* const rows = find_ggml_new_tensor_3d(context, GGML_TYPE_F32, 64, 4, 3);
  ggml_tensor* const positions = find_ggml_new_tensor_3d(context, GGML_TYPE_I32, 3, 1, 1);
  ggml_tensor* const factors = find_ggml_new_tensor_3d(context, GGML_TYPE_F32, 32, 1, 1);
  const ggml_tensor* const node =
      find_ggml_rope_ext(context, rows, positions, factors, 64, GGML_ROPE_TYPE_NEOX, 4096, 10000, .5f, .25f, 1, 32, 2);
  return node->op == GGML_OP_ROPE && node->src[0] == rows && node->src[1] == positions && node->src[2] == factors &&
         node->op_params[1] == 64 && node->op_params[2] == GGML_ROPE_TYPE_NEOX && node->op_params[4] == 4096 &&
         FloatParam(node, 5) == 10000 && FloatParam(node, 6) == .5f && FloatParam(node, 7) == .25f &&
         FloatParam(node, 9) == 32 && FloatParam(node, 10) == 2;
}

// ggml clears the struct of properties before a device fills it: so it tells how long it takes it for.
bool DeviceIsKnown(ggml_backend_dev_t device) {
  SEINE_FIND(ggml_backend_dev_get_props);
  SEINE_FIND(ggml_backend_dev_name);
  if (find_ggml_backend_dev_get_props == nullptr || find_ggml_backend_dev_name == nullptr) return false;
  constexpr unsigned char kUntouched = 0xA5;
  alignas(ggml_backend_dev_props) std::array<unsigned char, 4 * sizeof(ggml_backend_dev_props)> properties;
  properties.fill(kUntouched);
  find_ggml_backend_dev_get_props(device, reinterpret_cast<ggml_backend_dev_props*>(properties.data()));
  const auto end = std::find_if(properties.rbegin(), properties.rend(), [](auto byte) { return byte != kUntouched; });
  const ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(device);
  return properties.rend() - end == sizeof(ggml_backend_dev_props) && device->reg == registry &&
         device->iface.get_name(device) == find_ggml_backend_dev_name(device) &&
         device->iface.get_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU &&
         device->iface.get_buffer_type(device) == ggml_backend_dev_buffer_type(device) &&
         registry->iface.get_device(registry, 0) == device && registry->iface.get_proc_address != nullptr;
}

bool BackendIsKnown(ggml_backend_dev_t device) {
  SEINE_FIND(ggml_backend_guid);
  SEINE_FIND(ggml_backend_name);
  if (find_ggml_backend_guid == nullptr || find_ggml_backend_name == nullptr) return false;
  const ggml_backend_t backend = ggml_backend_dev_init(device, nullptr);
  if (backend == nullptr) return false;
  const bool known = backend->guid == find_ggml_backend_guid(backend) && backend->device == device &&
                     backend->device == ggml_backend_get_device(backend) && backend->iface.graph_compute != nullptr &&
                     backend->iface.get_name(backend) == find_ggml_backend_name(backend);
  ggml_backend_free(backend);
  return known;
}

#undef SEINE_FIND

}  // namespace

const char* UnfitLayout() {
  const auto overhead = reinterpret_cast<decltype(&ggml_tensor_overhead)>(FindInGgml("ggml_tensor_overhead"));
  if (overhead == nullptr || overhead() != sizeof(ggml_tensor) + kObjectBytes) return "a tensor's size";
  if (!TypesAreKnown()) return "the numbers of types";
  const std::unique_ptr<ggml_context, void (*)(ggml_context*)> context(
      ggml_init({.mem_size = 1 << 17, .mem_buffer = nullptr, .no_alloc = true}), &ggml_free);
  if (context == nullptr) return "how a context is made";
  if (!TensorIsKnown(context.get())) return "how a tensor is laid out";
  if (!AttentionIsKnown(context.get())) return "GGML_OP_FLASH_ATTN_EXT";
  if (!WritesAreKnown(context.get())) return "GGML_OP_SET_ROWS";
  if (!RopeIsKnown(context.get())) return "GGML_OP_ROPE";
  const ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (cpu == nullptr) return "it has no device for the CPU";
  if (!DeviceIsKnown(cpu)) return "how a device is laid out";
  if (!BackendIsKnown(cpu)) return "how a backend is laid out";
  return nullptr;
}

}  // namespace seine::llama
