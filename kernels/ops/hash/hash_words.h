// What hash_rows.h and its plain twin share. Internal to kernels/ops/hash.
#ifndef SEINE_KERNELS_OPS_HASH_HASH_WORDS_H_
#define SEINE_KERNELS_OPS_HASH_HASH_WORDS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/types.h"

namespace seine::cpu {

inline constexpr size_t kHashLanes = 8;                    // words that are added up side by side
inline constexpr size_t kHashWords = kMaxHeadDim * 4 / 8;  // of the longest row

// Keys of the words' places: splitmix64 from 1 on.
inline constexpr std::array<uint64_t, kHashWords> kHashKeys = [] {
  std::array<uint64_t, kHashWords> keys = {};
  for (size_t i = 0; i < kHashWords; ++i) {
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    keys[i] = z ^ (z >> 31);
  }
  return keys;
}();

// What word `w` of a row adds, which lies there. A row of no whole number of words ends with one that overlaps the last
// whole one.
inline uint64_t HashOfWord(const uint8_t* at, size_t w) {
  uint64_t word;
  memcpy(&word, at, 8);
  const uint64_t keyed = word ^ kHashKeys[w];
  return (keyed & 0xffffffffu) * (keyed >> 32) + (word << 32 | word >> 32);
}

inline uint32_t MixHash(uint64_t sum) {
  sum = (sum ^ (sum >> 37)) * 0x165667919e3779f9u;
  return static_cast<uint32_t>(sum ^ (sum >> 32));
}

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_HASH_HASH_WORDS_H_
