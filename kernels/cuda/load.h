// Loads of what a kernel only reads, and products of bytes, on a device and where bodies run on a host.
#ifndef SEINE_KERNELS_CUDA_LOAD_H_
#define SEINE_KERNELS_CUDA_LOAD_H_

#include <cstdint>
#include <cstring>

#include "kernels/cuda/block.h"

namespace seine::cuda {

// Reads of what no kernel of the same launch writes, which a device may cache as constants; `at` a multiple of the
// size.
template <typename T>
SEINE_BODY T Load(const void* at) {
#ifdef __CUDA_ARCH__
  return __ldg(static_cast<const T*>(at));
#else
  T value;
  memcpy(&value, at, sizeof(T));
  return value;
#endif
}
SEINE_BODY inline uint32_t LoadWord(const void* at) { return Load<uint32_t>(at); }

// 16 bytes of a row, which may begin at any multiple of 4.
struct alignas(16) Quad {
  uint32_t word[4];
};
SEINE_BODY inline Quad LoadQuad(const uint8_t* at) {
  Quad quad;
#ifdef __CUDA_ARCH__
  if (reinterpret_cast<uintptr_t>(at) % 16 == 0) {
    const uint4 four = Load<uint4>(at);
    quad.word[0] = four.x, quad.word[1] = four.y, quad.word[2] = four.z, quad.word[3] = four.w;
  } else {
    for (int i = 0; i < 4; ++i) quad.word[i] = LoadWord(at + i * 4);
  }
#else
  memcpy(&quad, at, sizeof(quad));
#endif
  return quad;
}

// Sum of the products of four signed bytes each.
SEINE_BODY inline int32_t Dot4(uint32_t a, uint32_t b, int32_t sum) {
#ifdef __CUDA_ARCH__
  return __dp4a(static_cast<int>(a), static_cast<int>(b), sum);
#else
  for (int i = 0; i < 32; i += 8) sum += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
  return sum;
#endif
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_CUDA_LOAD_H_
