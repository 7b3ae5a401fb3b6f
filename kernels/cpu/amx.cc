#include "kernels/cpu/amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace seine::cpu {
namespace {

bool AskForTiles() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned kBfloat16Tiles = 1u << 22, kTiles = 1u << 24;  // of cpuid's leaf 7, edx
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBfloat16Tiles) == 0 || (d & kTiles) == 0) return false;
  constexpr int kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM of XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

bool HasAmx() {
  static const bool has = AskForTiles();
  return has;
}

}  // namespace seine::cpu
