// The block concept: a kernel's body written once, run by a CUDA thread block or, in tests, by one host thread.
//
// A body is a function template `void Body(Block& block, Shared& shared, const Args& args)`. It is a sequence of
// phases:
//   block.Lanes(fn)      fn(lane) for every lane of the block, then a barrier. What one lane writes to shared or global
//                        memory in a phase, another reads in a later one only.
//   block.Warps(fn)      the same with a barrier of the lane's warp only: what lanes hand on stays within a warp.
//   block.IsLast(at, of)  whether this block is the last of `of` to come here, counted at a place that began as 0. What
//                        any of them wrote before, in any memory, is there for the last to read. Once a phase.
//   block.Read(x)        the value of a shared variable that steers uniform code between phases; no lane goes on to
//                        overwrite it before all have read it.
//   Local<T> v(block)    a variable a lane, kept from phase to phase: v[lane]. Registers on a device.
//   block.Mma<u>(d, a, b) one tensor-core product a warp; every lane of the block takes part.
//   block.Butterfly<w>(v, n, op) each lane's v.of[i] becomes op over the w lanes of its w-aligned group, i < n.
// On the host (tests/kernels/cuda/host_block.h) the lanes of a phase run one after another in an order shuffled from a
// seed, blocks likewise, and shared memory begins with garbage: a result that depends on any order differs for some
// seed. Compiled by g++, clang and nvcc.
#ifndef SEINE_KERNELS_CUDA_BLOCK_H_
#define SEINE_KERNELS_CUDA_BLOCK_H_

#include <cstdint>
#include <type_traits>

#include "kernels/math.h"

#ifdef __CUDACC__
#define SEINE_BODY __device__
#else
#define SEINE_BODY
#endif

// Before a loop of constant length whose arrays are to stay in registers.
#ifdef __CUDA_ARCH__
#define SEINE_UNROLL _Pragma("unroll")
#else
#define SEINE_UNROLL
#endif
// Before a loop that stays one: unrolled it would need more registers than there are.
#ifdef __CUDACC__
#define SEINE_ROLLED _Pragma("unroll 1")
#else
#define SEINE_ROLLED
#endif

namespace seine::cuda {

inline constexpr int kWarp = 32;
// Shared memory that a block may have on every device of compute capability 8.0 or later: 8.6 and 8.9 have the least.
inline constexpr int kMostSharedBytes = 99 << 10;

template <typename T>
SEINE_HD constexpr T Least(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
SEINE_HD constexpr T Most(T a, T b) {
  return a < b ? b : a;
}

SEINE_BODY inline int BitCount(uint32_t v) {
#ifdef __CUDA_ARCH__
  return __popc(v);
#else
  return __builtin_popcount(v);
#endif
}
SEINE_BODY inline int LowestBit(uint32_t v) {  // v != 0
#ifdef __CUDA_ARCH__
  return __ffs(static_cast<int>(v)) - 1;
#else
  return __builtin_ctz(v);
#endif
}

SEINE_BODY inline int HighestBit(uint32_t v) {  // -1 of 0
#ifdef __CUDA_ARCH__
  return 31 - __clz(static_cast<int>(v));
#else
  return v == 0 ? -1 : 31 - __builtin_clz(v);
#endif
}

struct BlockIndex {
  int x = 0, y = 0;
};
// A grid's second dimension on a device.
inline constexpr int kMostGridRows = 65535;
inline bool FitsGrid(BlockIndex grid) { return grid.x >= 0 && grid.y >= 0 && grid.y <= kMostGridRows; }

// Lanes of a block, known to the compiler.
template <int kLanes>
using Lanes = std::integral_constant<int, kLanes>;

// Operands of one tensor-core product of 16 rows, 8 columns and depth 32 (PTX ISA, mma.m16n8k32): signed bytes, summed
// in int32. Of lane l with row r = l / 4 and j = l % 4:
//   a[0] row r, depths 4j .. 4j + 3;  a[1] row r + 8;  a[2], a[3] the same rows, depths 16 further on
//   b[0] column r, depths 4j .. 4j + 3;  b[1] depths 16 further on
//   d[0], d[1] row r, columns 2j, 2j + 1;  d[2], d[3] row r + 8
struct MmaA {
  uint32_t word[4];
};
struct MmaB {
  uint32_t word[2];
};
struct MmaD {
  int32_t sum[4];
};

// Floats that a lane brings to Butterfly.
template <int kCount>
struct FloatsOf {
  float of[kCount];
};
struct SumOf {
  SEINE_HD float operator()(float a, float b) const { return a + b; }
};
struct MostOf {
  SEINE_HD float operator()(float a, float b) const { return a < b ? b : a; }
};

#ifdef __CUDACC__

class DeviceBlock {
 public:
  template <typename T>
  class Local {
   public:
    __device__ explicit Local(const DeviceBlock&) {}
    __device__ T& operator[](int) { return value_; }

   private:
    T value_;
  };

  __device__ int num_lanes() const { return static_cast<int>(blockDim.x); }
  __device__ BlockIndex index() const { return {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y)}; }

  template <typename Fn>
  __device__ void Lanes(Fn fn) {
    fn(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
  template <typename Fn>
  __device__ void Warps(Fn fn) {
    fn(static_cast<int>(threadIdx.x));
    __syncwarp();
  }
  template <typename T>
  __device__ T Read(const T& shared) {
    const T value = shared;
    __syncthreads();
    return value;
  }
  // Every lane's fences: those before hand its writes on, those behind keep its reads from what a cache held before.
  __device__ bool IsLast(uint32_t* at, uint32_t of) {
    __threadfence();
    const bool last = __syncthreads_or(threadIdx.x == 0 && atomicAdd(at, 1u) == of - 1) != 0;
    __threadfence();
    return last;
  }
  template <typename T>
  __device__ static T AtomicAdd(T* at, T value) {
    return atomicAdd(at, value);
  }
  __device__ static void AtomicOr(uint32_t* at, uint32_t bits) { atomicOr(at, bits); }
  __device__ static void AtomicAnd(uint32_t* at, uint32_t bits) { atomicAnd(at, bits); }
  __device__ static void AtomicMax(uint32_t* at, uint32_t value) { atomicMax(at, value); }
  __device__ static void AtomicMin(uint32_t* at, uint32_t value) { atomicMin(at, value); }

  // Every lane of the block takes part; kWidth a power of two up to a warp.
  template <int kWidth, int kCount, typename Op>
  __device__ static void Butterfly(Local<FloatsOf<kCount>>& values, int count, Op op) {
    FloatsOf<kCount>& mine = values[0];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i >= count) continue;
#pragma unroll
      for (int h = kWidth / 2; h >= 1; h /= 2) mine.of[i] = op(mine.of[i], __shfl_xor_sync(~0u, mine.of[i], h));
    }
  }

  // d += a b; a's bytes are unsigned or signed.
  template <bool kUnsigned>
  __device__ static void Mma(Local<MmaD>& d, Local<MmaA>& a, Local<MmaB>& b) {
    MmaD& sums = d[0];
    const MmaA& x = a[0];
    const MmaB& y = b[0];
    if constexpr (kUnsigned) {
      asm volatile(
          "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+r"(sums.sum[0]), "+r"(sums.sum[1]), "+r"(sums.sum[2]), "+r"(sums.sum[3])
          : "r"(x.word[0]), "r"(x.word[1]), "r"(x.word[2]), "r"(x.word[3]), "r"(y.word[0]), "r"(y.word[1]));
    } else {
      asm volatile(
          "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+r"(sums.sum[0]), "+r"(sums.sum[1]), "+r"(sums.sum[2]), "+r"(sums.sum[3])
          : "r"(x.word[0]), "r"(x.word[1]), "r"(x.word[2]), "r"(x.word[3]), "r"(y.word[0]), "r"(y.word[1]));
    }
  }
};

#endif  // __CUDACC__

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_CUDA_BLOCK_H_
