// Follows rows to what they are computed of.
#include "engines/llama.cpp/ggml/origin.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "engines/llama.cpp/ggml/node.h"
#include "ggml-backend.h"

namespace seine::llama {

namespace {

// The matrix that rows are multiplied by in `node`: square, and an input of the graph, which weights are not. nullptr:
// another operation.
const ggml_tensor* RotationIn(const ggml_tensor* node) {
  if (node->op != GGML_OP_MUL_MAT) return nullptr;
  const ggml_tensor* matrix = node->src[0];
  return (matrix->flags & GGML_TENSOR_FLAG_INPUT) != 0 && matrix->ne[0] == matrix->ne[1] ? matrix : nullptr;
}

// Among what rows are computed of, the nearest node for which is(node).
template <typename Is>
const ggml_tensor* FindAmong(const ggml_tensor* rows, Is is) {
  constexpr int kDeepest = 12;  // views, scales and rotations between
  for (int depth = 0; rows != nullptr && depth <= kDeepest; ++depth) {
    if (is(rows)) return rows;
    rows = RotationIn(rows) != nullptr ? rows->src[1] : rows->src[0];
  }
  return nullptr;
}

// Returns true if rows are computed of nothing that turns: what they come of was followed to a weight, and parts of
// heads were not joined on the way.
bool NothingTurns(const ggml_tensor* rows) {
  const ggml_tensor* node = FindAmong(rows, [](const ggml_tensor* of) {
    return of->op == GGML_OP_ROPE || of->op == GGML_OP_CONCAT || (of->op == GGML_OP_NONE && of->view_src == nullptr);
  });
  return node != nullptr && node->op == GGML_OP_NONE;
}

}  // namespace

const ggml_tensor* FindRope(const ggml_tensor* turned) {
  return FindAmong(turned, [](const ggml_tensor* node) { return node->op == GGML_OP_ROPE; });
}

int RotationOf(const ggml_tensor* rows) {
  const ggml_tensor* node = FindAmong(rows, [](const ggml_tensor* of) { return RotationIn(of) != nullptr; });
  return node == nullptr ? 0 : static_cast<int>(node->src[0]->ne[0]);
}

bool ComesFromGpu(const ggml_tensor* rows) {
  const ggml_tensor* product = FindAmong(
      rows, [](const ggml_tensor* node) { return node->op == GGML_OP_MUL_MAT && RotationIn(node) == nullptr; });
  const ggml_tensor* weights = product == nullptr ? nullptr : RootOf(product->src[0]);
  if (weights == nullptr || weights->buffer == nullptr) return false;
  // The CPU has buffers of weights that are no host's: turned for its kernels.
  ggml_backend_dev_t device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(weights->buffer));
  return device != nullptr && !ggml_backend_buffer_is_host(weights->buffer) &&
         ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU;
}

absl::Span<const int32_t> PositionsOf(const ggml_tensor* rows) {
  const ggml_tensor* rope = FindRope(rows);
  const ggml_tensor* positions = rope == nullptr ? nullptr : rope->src[1];
  if (positions == nullptr || positions->type != GGML_TYPE_I32 || positions->ne[0] != rows->ne[1] ||
      !IsOnHost(positions)) {
    return {};
  }
  return {static_cast<const int32_t*>(positions->data), static_cast<size_t>(positions->ne[0])};
}

bool IsOnHost(const ggml_tensor* tensor) {
  const ggml_tensor* root = RootOf(tensor);
  return tensor->data != nullptr && (root->buffer == nullptr || ggml_backend_buffer_is_host(root->buffer));
}

Rope RopeOf(const ggml_tensor* turned, bool stretched) {
  const ggml_tensor* rope = FindRope(turned);
  if (rope == nullptr && !NothingTurns(turned)) return {};
  Rope out;
  out.inv_freq.resize(turned->ne[0] / 2);
  if (rope == nullptr) return out;
  const int dims = rope->op_params[1], mode = rope->op_params[2], original = rope->op_params[4];
  float base, scale, extrapolation, beta_fast, beta_slow;
  std::memcpy(&base, &rope->op_params[5], sizeof(float));
  std::memcpy(&scale, &rope->op_params[6], sizeof(float));
  std::memcpy(&extrapolation, &rope->op_params[7], sizeof(float));
  std::memcpy(&beta_fast, &rope->op_params[9], sizeof(float));
  std::memcpy(&beta_slow, &rope->op_params[10], sizeof(float));
  const bool neighbours = mode == GGML_ROPE_TYPE_NORMAL;
  constexpr int kOffset = 15;  // the parameter of the first coordinate that turns, where it is not the head's
  const bool known = neighbours || mode == GGML_ROPE_TYPE_NEOX;
  if (rope->ne[0] != turned->ne[0] || dims > rope->ne[0] || rope->op_params[kOffset] != 0 || !known) return {};
  std::vector<float> factors;
  if (const ggml_tensor* held = rope->src[2]) {
    if (held->data == nullptr || ggml_nbytes(held) < dims / 2 * sizeof(float)) return {};
    factors.resize(dims / 2);
    if (IsOnHost(held)) {
      std::memcpy(factors.data(), held->data, factors.size() * sizeof(float));
    } else {
      ggml_backend_tensor_get(held, factors.data(), 0, factors.size() * sizeof(float));
    }
  }
  // YaRN's ramp between coordinates that turn as they did in training and those that are stretched (its section 3.2).
  const auto corrected = [&](double turns) {
    return dims * std::log(original / (turns * 2 * M_PI)) / (2 * std::log(static_cast<double>(base)));
  };
  const double low = std::max(0.0, std::floor(corrected(beta_fast)));
  const double high = std::min(dims - 1.0, std::ceil(corrected(beta_slow)));
  constexpr double kSlowest = 1e-12;  // radians a token: what factors put to sleep, as Gemma 4's, does not turn
  if (dims < rope->ne[0]) out.rotary_dim = dims;
  out.style = neighbours ? Rope::Style::kInterleaved : Rope::Style::kHalfSplit;
  for (int i = 0; i < dims / 2; ++i) {
    double own = std::pow(static_cast<double>(base), -2.0 * i / dims);
    if (!factors.empty()) own /= factors[i];
    double frequency = stretched ? scale * own : own;
    if (stretched && extrapolation != 0) {
      const double ramp = 1 - std::clamp((i - low) / std::max(.001, high - low), 0.0, 1.0);
      frequency = frequency * (1 - ramp * extrapolation) + own * ramp * extrapolation;
    }
    out.inv_freq[i] = frequency < kSlowest ? 0 : frequency;
  }
  return out;
}

}  // namespace seine::llama
