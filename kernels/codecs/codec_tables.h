// What a codec computes with, as plain views: the same struct describes tables in the codec's own memory
// (Codec::Tables) and a copy of them on a device. Internal to kernels/.
#ifndef SEINE_KERNELS_CODECS_CODEC_TABLES_H_
#define SEINE_KERNELS_CODECS_CODEC_TABLES_H_

#include <cstdint>
#include <vector>

#include "kernels/codecs/balanced/gaussian_quantiser.h"
#include "kernels/codecs/code.h"

namespace seine {

enum class CodecKind : uint8_t { kRsq = 0, kBalanced = 1 };

template <typename T>
struct Table {
  const T* data = nullptr;
  uint32_t size = 0;  // elements
};
template <typename T>
Table(const T*, uint32_t) -> Table<T>;  // implied, but for clang 14

// The quantiser of rsq as kernels use it; levels8[t] = levels[t] * 127 / levels[7], rounded.
// The bin of |x_j| in a subvector of norm r counts the t with x_j^2 > thresholds2[t] * r^2: no root is taken.
struct RsqTables {
  float thresholds2[7];  // squares of tau
  float levels[8];
  uint8_t levels8[8];
};

// Where the balanced code keeps one coordinate: its index has total_bits; the leading coarse_bits lie at bit coarse_at
// of the coarse row (within one nibble), the others at bit fine_at of the record (least significant first).
struct BalancedCell {
  uint16_t coarse_at = 0, fine_at = 0;
  uint8_t coarse_bits = 0, total_bits = 0;
};

// How to read one coordinate of a balanced code. Its index is coarse * times + fine: fine lies at bit `shift` of a word
// of the record and the word after it, coarse in a word of the coarse row. Levels of b bits begin at 2^b, so `levels`
// plus the index is the place of its level.
struct FineStep {
  uint32_t shift, mask, levels;
  uint32_t coordinate;
};
struct CoarseStep {
  uint32_t word, shift, mask, times;
};
inline constexpr int kRecordWords = kMaxBalancedBytes / 4;
// Coordinates in the order of their words in the record: first those with coarse bits, then those without.
// mixed_from[w] to mixed_from[w + 1] are those of the first kind that begin in word w; likewise plain_from.
struct FineSteps {
  std::vector<FineStep> steps;
  std::vector<CoarseStep> coarse;                // of the first kind
  std::vector<uint16_t> mixed_from, plain_from;  // [kRecordWords + 1]
};
FineSteps MakeFineSteps(const std::vector<BalancedCell>& cells);

// Thread safety: read only. Pointers live as long as the codec, or as the device's copy.
// Shares of a balanced coordinate's squared weight (zone_mass.h, ErrorShares).
struct ErrorShare {
  float added = 0, unseen = 0, fine = 0;
};

struct CodecTables {
  CodecKind kind = CodecKind::kRsq;
  CodeLayout layout;
  Centre centre = Centre::kNone;

  // rsq
  RsqTables rsq = {};
  Table<float> signs;  // of the rotation: [P], or [2P] where head_dim is no power of two (cpu/ops.h, Rotate)

  // balanced
  Table<float> query_map;          // [head_dim][head_dim]
  Table<float> deviation;          // [head_dim] sqrt(lambda)
  Table<BalancedCell> cells;       // [head_dim]
  Table<uint16_t> coarse_order;    // coordinates with coarse bits, ascending by coarse_at
  Table<int16_t> key_map;          // [head_dim][head_dim]: row i is column i of key_map / sqrt(lambda), fixed point
  Table<float> key_scale;          // [head_dim] true value of a product's unit, for a row of norm 32,000
  Table<float> lambda;             // [head_dim]
  Table<ErrorShare> error_shares;  // [head_dim]
  float fine_shrink = 1;           // PredictedErrors
  Table<FineStep> fine_steps;      // FineSteps, as the next three
  Table<CoarseStep> coarse_steps;
  Table<uint16_t> mixed_from, plain_from;
  Table<GaussianTables> quantiser;  // [1]
};

// visit(table) for every table that a codec may have, by reference: to copy them and set where they lie.
template <typename Visit>
void ForEachTable(CodecTables* tables, Visit visit) {
  visit(tables->signs);
  visit(tables->query_map);
  visit(tables->deviation);
  visit(tables->cells);
  visit(tables->coarse_order);
  visit(tables->key_map);
  visit(tables->key_scale);
  visit(tables->lambda);
  visit(tables->error_shares);
  visit(tables->fine_steps);
  visit(tables->coarse_steps);
  visit(tables->mixed_from);
  visit(tables->plain_from);
  visit(tables->quantiser);
}

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_CODEC_TABLES_H_
