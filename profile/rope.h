// Rotary position embedding as a model states it. Moments are carried through it in profile/moments.h.
//
// At position n, pair (a, b) of a vector turns by n * inv_freq[i]: z = x_a + j x_b becomes z e^{j n w_i}. Moments are
// kept in the frame before RoPE ("position 0"), where those of queries and keys are stationary (docs/profile.md).
// Source: RoFormer; scalings as transformers' modeling_rope_utils defines them.
#ifndef SEINE_PROFILE_ROPE_H_
#define SEINE_PROFILE_ROPE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace seine {

struct Rope {
  // Which coordinates turn together: i with i + head_dim / 2 (Llama, SmolLM, Qwen), or 2i with 2i + 1 (GPT-J, GGUF's
  // own order).
  enum class Style : uint8_t { kHalfSplit = 0, kInterleaved = 1 };
  Style style = Style::kHalfSplit;
  std::vector<double> inv_freq;  // [head_dim / 2], radians a token; empty: RoPE is not stated

  bool stated() const { return !inv_freq.empty(); }
  int head_dim() const { return static_cast<int>(inv_freq.size()) * 2; }
  // The two coordinates of pair i.
  int first(int i) const { return style == Style::kHalfSplit ? i : 2 * i; }
  int second(int i) const { return style == Style::kHalfSplit ? i + static_cast<int>(inv_freq.size()) : 2 * i + 1; }
};

// `json`: rope_parameters of a config.json (transformers 5), or an object with rope_theta and rope_scaling (before).
// Empty or null: RoPE is not stated. Types default, linear, dynamic (as it is at `length` tokens), yarn, llama3.
// Ours besides: {"rope_type": "table", "inv_freq": [...]}, any frequencies as they are. INVALID_ARGUMENT names the
// field that is missing, wrong or not known (longrope, a partial_rotary_factor other than 1, several axes). Attention
// factors scale a head's logits as a whole and are left out.
absl::StatusOr<Rope> ParseRope(absl::string_view json, int head_dim, Rope::Style style, int64_t length);

// `rope` as a table for ParseRope, to the last bit; empty where it is not stated.
std::string RopeJson(const Rope& rope);

// x[head_dim] seen at `position`, turned back to position 0 (undo) or forth (apply). In place.
void UndoRope(const Rope& rope, int64_t position, double* x);
void ApplyRope(const Rope& rope, int64_t position, double* x);

}  // namespace seine

#endif  // SEINE_PROFILE_ROPE_H_
