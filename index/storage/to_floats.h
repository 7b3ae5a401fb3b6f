// Elements of a tensor as fp32, by the vector instructions that the CPU has. Of the standard library alone, so that
// whoever hands tensors to an index may include it.
#ifndef SEINE_INDEX_STORAGE_TO_FLOATS_H_
#define SEINE_INDEX_STORAGE_TO_FLOATS_H_

#include <cstddef>

#include "kernels/types.h"

namespace seine {

// Writes `count` elements of `raw`, which need no alignment, to `out` [count]. Exact for every finite value; infinities
// and NaNs stay what they are. Thread-safe.
void ToFloats(DType dtype, const void* raw, size_t count, float* out);

}  // namespace seine

#endif  // SEINE_INDEX_STORAGE_TO_FLOATS_H_
