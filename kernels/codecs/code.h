// The bytes that a codec keeps of a key, as planes, and the forms that queries and candidates take beside them.
//
// Coarse plane: read in full by every scan. Tiles of 16 keys, each tile [coarse_bytes / 4][16 keys][4 bytes], so that a
//   32-bit lane holds four code bytes of one key. A byte is two nibbles; each nibble indexes one table of 16 int8
//   entries; the sum over nibbles times the key's factor, plus <q, centre>, is the coarse estimate of <q, k>.
// Factor plane: one byte a key, a minifloat above its window's base (math.h, EncodeFactor).
// Centre plane: int8 [head_dim] and one float scale a centre window.
// Fine plane: key-major records of fine_bytes, read for candidates only: all that stage II needs of a key is in one
// place.
#ifndef SEINE_KERNELS_CODECS_CODE_H_
#define SEINE_KERNELS_CODECS_CODE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/types.h"

namespace seine {

enum class Centre : uint8_t { kNone = 0, kGlobal = 1, kWindow = 2 };
// How a scan scores coarse codes.
enum class Coarse : uint8_t { kSignIp = 0, kCollision = 1 };

struct CodeLayout {
  int head_dim = 0;
  int coarse_bytes = 0;   // a key; a multiple of 4
  int fine_bytes = 0;     // a key
  int centre_window = 0;  // tokens that share a centre (a multiple of 64); 0: no centre stored per window
  bool two_bits() const { return coarse_bytes * 8 == 2 * head_dim; }  // a coordinate, in the coarse plane
};

// Planes of `n` keys of one head, n a multiple of 64. T is uint8_t-like constness: see CodePlanes / ConstCodePlanes.
template <bool kConst>
struct BasicCodePlanes {
  template <typename T>
  using Ptr = std::conditional_t<kConst, const T*, T*>;
  Ptr<uint8_t> coarse = nullptr;        // [n / 16][coarse_bytes / 4][16][4]
  Ptr<uint8_t> factor = nullptr;        // [n]
  Ptr<uint32_t> factor_base = nullptr;  // [n / 64]
  Ptr<int8_t> centre = nullptr;         // [n / centre_window][head_dim], nullptr if none
  Ptr<float> centre_scale = nullptr;    // [n / centre_window]
  Ptr<uint8_t> fine = nullptr;          // [n][fine_bytes]
  Ptr<uint32_t> fine_base = nullptr;    // [n / 64], like factor_base, of the factors inside the records
};
using CodePlanes = BasicCodePlanes<false>;
using ConstCodePlanes = BasicCodePlanes<true>;

// A segment's planes come in two parts: what a scan streams, and the records that it leaves aside. Parts of one kind
// laid one after another keep the scan of many segments one stream.
enum class CodePart : uint8_t { kScan = 0, kFine = 1 };

// Bytes of one part of `num_keys` keys; and the part's planes laid out in such a buffer (64-byte aligned each).
size_t CodeBytes(const CodeLayout& layout, int num_keys, CodePart part);
void PlacePlanes(const CodeLayout& layout, int num_keys, CodePart part, uint8_t* buffer, CodePlanes* planes);

// The planes from key `first` on, a multiple of 64 and of centre_window.
CodePlanes PlanesFrom(const CodeLayout& layout, CodePlanes planes, int64_t first);

// Both parts in one buffer.
inline size_t CodeBytes(const CodeLayout& layout, int num_keys) {
  return CodeBytes(layout, num_keys, CodePart::kScan) + CodeBytes(layout, num_keys, CodePart::kFine);
}
inline CodePlanes PlanesAt(const CodeLayout& layout, int num_keys, uint8_t* buffer) {
  CodePlanes planes;
  PlacePlanes(layout, num_keys, CodePart::kScan, buffer, &planes);
  PlacePlanes(layout, num_keys, CodePart::kFine, buffer + CodeBytes(layout, num_keys, CodePart::kScan), &planes);
  return planes;
}
inline ConstCodePlanes AsConst(const CodePlanes& p) {
  return {p.coarse, p.factor, p.factor_base, p.centre, p.centre_scale, p.fine, p.fine_base};
}

// A key's coarse bytes lie in its tile, four together and sixteen keys apart: where they begin, and as a row.
// row[coarse_bytes].
inline const uint8_t* CoarseRowAt(const uint8_t* coarse, int coarse_bytes, uint32_t key) {
  return coarse + static_cast<size_t>(key / kTileTokens) * kTileTokens * coarse_bytes + key % kTileTokens * 4;
}
inline void CopyCoarseRow(const uint8_t* at, int coarse_bytes, uint8_t* row) {
  const auto copy = [&](int bytes) {
    for (int g = 0; g < bytes; g += 4) memcpy(row + g, at + g * kTileTokens, 4);
  };
  if (coarse_bytes == 16) return copy(16);  // the usual length without a loop
  copy(coarse_bytes);
}

// A frozen centre shared by all windows of one (sequence, layer, head): Centre::kGlobal. [head_dim] + scale.
struct SharedCentre {
  std::vector<int8_t> values;
  float scale = 0;
};

// One query of one head, ready to be compared with codes. Made once a (query, codec); read-only afterwards.
struct PreparedQuery {
  // Nibble tables of the coarse scan, entries in [0, 127] with bias 64: [coarse_bytes / 4][lo, hi][4 bytes][16].
  std::vector<uint8_t> tables;
  float coarse_step = 0;       // true value of one table unit (the SRHT's 1/sqrt(D) included)
  std::vector<int8_t> query8;  // [head_dim] in the codec's space, for centres and the fine stage
  float query8_step = 0;
  std::vector<float> transformed;  // [head_dim] the query in the codec's space, fp32
  // Balanced code: weights of the fine stage's levels, sqrt(lambda_i) q'_i in units of fine8_step. [head_dim] rounded
  // up to a multiple of 64.
  std::vector<int8_t> fine8;
  float fine8_step = 0;
};

// Candidates of one query: structure of arrays, ascending by index until selection reorders.
struct Candidates {
  std::vector<uint32_t> index;  // key index in the zone
  std::vector<float> coarse;    // coarse estimate, in units of coarse_step
  std::vector<float> base;      // <q, centre>, in the same units
  std::vector<uint8_t> rows;    // [size][coarse_bytes] coarse bytes copied while hot, where rows_copied
  bool rows_copied = true;      // else they are read from the planes
  size_t size = 0;
};

// How far a query's estimates are off (kernels/ops/query/zone_mass.h), as standard deviations of a key of factor 1 in
// units of coarse_step. Coarse: what is added to the true product by chance, and what of it is not seen. Fine: the
// share of an estimate less its base that is the product's mean given the estimate, and the product's deviation from
// that.
struct PredictedErrors {
  float added = 0, unseen = 0;
  float fine_shrink = 1, fine_spread = 0;
};

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_CODE_H_
