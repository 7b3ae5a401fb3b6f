// Origin of rows, as the graph says: their RoPE and positions, rotations, and the device of their weights.
#ifndef SEINE_ENGINES_LLAMA_CPP_GGML_ORIGIN_H_
#define SEINE_ENGINES_LLAMA_CPP_GGML_ORIGIN_H_

#include <cstdint>

#include "absl/types/span.h"
#include "ggml.h"
#include "profile/rope.h"

namespace seine::llama {

// The GGML_OP_ROPE that queries or keys come out of, found among what they are computed of. nullptr: there is none.
const ggml_tensor* FindRope(const ggml_tensor* turned);
// The positions of the rows' tokens, by the RoPE that the rows come out of; empty: they cannot be read. Behind the last
// layer's RoPE their memory may be another tensor's.
absl::Span<const int32_t> PositionsOf(const ggml_tensor* rows);
// llama.cpp multiplies queries, keys and values by Walsh-Hadamard matrices of so many rows before it quantises a cache,
// unless LLAMA_ATTN_ROT_DISABLE is set. 0: these come without.
int RotationOf(const ggml_tensor* rows);
// Returns true if these rows are a product of weights that lie on a GPU, which then computes the layer's nodes.
bool ComesFromGpu(const ggml_tensor* rows);
// Returns true if its data is there and the CPU can read it.
bool IsOnHost(const ggml_tensor* tensor);
// Read off that node; frequencies are 0 where there is none. Not stated: it is of a kind that a profile's moments
// cannot be carried through. Frequency factors are read where there is data, of a GPU too. `stretched`: with YaRN and
// the scale of positions.
Rope RopeOf(const ggml_tensor* turned, bool stretched = true);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_GGML_ORIGIN_H_
