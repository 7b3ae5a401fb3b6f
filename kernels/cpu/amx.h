// Tiles of AMX: matrix products of bfloat16, where the processor has them and the kernel lets this process use them.
#ifndef SEINE_KERNELS_CPU_AMX_H_
#define SEINE_KERNELS_CPU_AMX_H_

#include <cstddef>
#include <cstdint>

namespace seine::cpu {

// True where products of bfloat16 tiles run here. Asks the kernel once a process.
bool HasAmx();

#if defined(__x86_64__)

inline constexpr int kTileRows = 16, kTileBytes = 64;  // a row of a tile: 16 floats, or 16 pairs of bfloat16

// Eight tiles of 16 rows of 64 bytes in this thread. What another library had configured there is put back at the end:
// it may take its own for granted.
class TileScope {
 public:
  TileScope() {
    __asm__ volatile("sttilecfg %0" : "=m"(before_));
    Config ours = {};
    ours.bytes[0] = 1;  // the palette
    for (int i = 0; i < 8; ++i) ours.bytes[16 + 2 * i] = kTileBytes, ours.bytes[48 + i] = kTileRows;
    __asm__ volatile("ldtilecfg %0" ::"m"(ours));
  }
  ~TileScope() { __asm__ volatile("ldtilecfg %0" ::"m"(before_)); }
  TileScope(const TileScope&) = delete;

 private:
  struct alignas(64) Config {
    uint8_t bytes[64];
  };
  Config before_;
};

template <int kTile>
inline void LoadTile(const void* rows, size_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void StoreTile(void* rows, size_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void ZeroTile() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
// kSum[i][j] += <pair k of row i of kA, pair j of row k of kB>, over 16 pairs.
template <int kSum, int kA, int kB>
inline void MultiplyTiles() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
}

#endif  // __x86_64__

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_CPU_AMX_H_
