// Rotary position embedding as a model states it. Moments are carried through it in profile/moments.h.
//
// At position n, pair (a, b) of a vector turns by n * inv_freq[i]: z = x_a + j x_b becomes z e^{j n w_i}. Moments are
// kept in the frame before RoPE ("position 0"), where those of queries and keys are stationary (docs/profile.md).
// Source: RoFormer; scalings as transformers' modeling_rope_utils defines them.
#ifndef SEINE_PROFILE_ROPE_H_
#define SEINE_PROFILE_ROPE_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace seine {

struct Rope {
  // Which coordinates turn together: i with i + rotary_dim / 2 (Llama, SmolLM, Qwen), or 2i with 2i + 1 (GPT-J, GLM-4,
  // GGUF's own order).
  enum class Style : uint8_t { kHalfSplit = 0, kInterleaved = 1 };
  Style style = Style::kHalfSplit;
  std::vector<double> inv_freq;  // [head_dim / 2], radians a token, 0 where nothing turns; empty: RoPE is not stated
  // Pairs lie in so many first coordinates of a head; those behind are neighbours that do not turn. Even; 0: head_dim.
  int rotary_dim = 0;

  bool stated() const { return !inv_freq.empty(); }
  // Returns false of a layer without RoPE, which is stated by frequencies of 0.
  bool turns() const {
    return std::any_of(inv_freq.begin(), inv_freq.end(), [](double w) { return w > 0; });
  }
  int head_dim() const { return static_cast<int>(inv_freq.size()) * 2; }
  // Pairs in the part that turns.
  int half() const { return rotary_dim > 0 ? rotary_dim / 2 : static_cast<int>(inv_freq.size()); }
  // The two coordinates of pair i.
  int first(int i) const { return halved(i) ? i : 2 * i; }
  int second(int i) const { return halved(i) ? i + half() : 2 * i + 1; }

 private:
  bool halved(int i) const { return style == Style::kHalfSplit && i < half(); }
};

// `json`: rope_parameters of a config.json (transformers 5), or an object with rope_theta and rope_scaling (before).
// Empty or null: RoPE is not stated. Types default, linear, dynamic and longrope (as they are at `length` tokens),
// yarn, llama3, proportional, each with its partial_rotary_factor. Ours besides: {"rope_type": "none"}, a layer that
// does not turn, and {"rope_type": "table", "inv_freq": [...]}, any frequencies as they are, with rotary_dim where a
// part of the head turns. INVALID_ARGUMENT names the field that is missing, wrong or not known (several axes).
// Attention factors, which scale what turns, are left out: moments are of queries and keys as they were seen.
absl::StatusOr<Rope> ParseRope(absl::string_view json, int head_dim, Rope::Style style, int64_t length);

// `rope` for ParseRope, to the last bit; empty where it is not stated.
std::string RopeJson(const Rope& rope);

// RoPE of layers that turn otherwise than a model's others, or not at all.
using LayerRopes = std::map<int, Rope>;
inline const Rope& RopeOfLayer(const Rope& rope, const LayerRopes& others, int layer) {
  const auto own = others.find(layer);
  return own == others.end() ? rope : own->second;
}
// INVALID_ARGUMENT naming the layer unless each of `others` is one of num_layers and pairs coordinates as `rope` does,
// which turns. There may be none.
absl::Status CheckLayerRopes(const Rope& rope, const LayerRopes& others, int num_layers);
// `json`: [{"layers": [3, 7], "rope": {...}}, ...], with `rope` as ParseRope has it. Empty: there are none.
absl::StatusOr<LayerRopes> ParseLayerRopes(absl::string_view json, int head_dim, Rope::Style style, int64_t length);
// Returns the layers in that form, those of one RoPE together; empty: there are none.
std::string LayerRopesJson(const LayerRopes& ropes);

// x[head_dim] seen at `position`, turned back to position 0 (undo) or forth (apply). In place.
void UndoRope(const Rope& rope, int64_t position, double* x);
void ApplyRope(const Rope& rope, int64_t position, double* x);

}  // namespace seine

#endif  // SEINE_PROFILE_ROPE_H_
