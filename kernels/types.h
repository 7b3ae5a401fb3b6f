// Element types and the small views that every kernel speaks. Shapes are written beside the data.
#ifndef SEINE_KERNELS_TYPES_H_
#define SEINE_KERNELS_TYPES_H_

#include <cstddef>
#include <cstdint>

// Marks functions that run on host and device.
#ifdef __CUDACC__
#define SEINE_HD __host__ __device__
#else
#define SEINE_HD
#endif

namespace seine {

// Element type of keys, values and queries as callers give them. Arithmetic is never done in 16 bits.
// The last two are of rows that are read in an engine's cache, and of no others. They are ggml's: 32 values share a
// scale d (fp16), which lies before them. q8_0: 32 int8 follow; a value is d times its byte. q4_0: 16 bytes follow;
// byte i holds values i (its low half) and 16 + i (its high half), and a value is d (half - 8). Such products are exact
// in fp32.
enum class DType : uint8_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2, kQ8 = 3, kQ4 = 4 };

inline constexpr int kScaledValues = 32;  // that share a scale
SEINE_HD constexpr bool IsQuantised(DType dtype) { return dtype == DType::kQ8 || dtype == DType::kQ4; }

// Bytes of an element; 0 where elements share bytes.
SEINE_HD constexpr size_t SizeOf(DType dtype) { return IsQuantised(dtype) ? 0 : dtype == DType::kFloat32 ? 4 : 2; }
// Bytes of `count` elements of a row; of quantised ones a multiple of kScaledValues.
SEINE_HD constexpr size_t BytesOf(DType dtype, size_t count) {
  if (dtype == DType::kQ8) return count / kScaledValues * (2 + kScaledValues);
  if (dtype == DType::kQ4) return count / kScaledValues * (2 + kScaledValues / 2);
  return count * SizeOf(dtype);
}

// Keys are encoded in windows of this many consecutive tokens; a window's code depends on its own keys alone
// (and on the sequence's frozen centre under Centre::kGlobal), so equal keys give equal codes whatever the history.
inline constexpr int kWindowTokens = 64;
// Keys in one 16-lane tile of the coarse plane.
inline constexpr int kTileTokens = 16;
inline constexpr int kHeadDims[] = {64, 80, 96, 128, 192, 256, 512};
inline constexpr int kMaxHeadDim = 512;
inline constexpr int kNarrowHeadDim = 256;  // above it some of a device's kernels are others, of more shared memory
inline constexpr int kMaxGroup = 32;        // query heads per KV head

// Rows of one head in host memory, [num_rows, head_dim], `stride_bytes` apart.
struct ConstRows {
  const void* data = nullptr;
  size_t stride_bytes = 0;
  DType dtype = DType::kFloat32;
  const void* row(int64_t i) const { return static_cast<const uint8_t*>(data) + i * stride_bytes; }
};

// Stored rows of one head by position: chunk c holds positions [c * chunk_tokens, (c + 1) * chunk_tokens), a row
// [head_dim] each row_stride bytes; 0: one behind another, as devices need them. chunks == nullptr: nothing is stored.
struct ChunkedRows {
  const uint8_t* const* chunks = nullptr;
  int chunk_tokens = 1;
  int head_dim = 0;
  DType dtype = DType::kFloat32;
  size_t row_stride = 0;
  size_t stride() const { return row_stride != 0 ? row_stride : BytesOf(dtype, head_dim); }
  const void* row(int64_t position) const {
    return chunks[position / chunk_tokens] + (position % chunk_tokens) * stride();
  }
};

}  // namespace seine

#endif  // SEINE_KERNELS_TYPES_H_
