// What a codec computes with, as plain views: the same struct describes tables in the codec's own memory
// (Codec::Tables) and a copy of them on a device. Internal to kernels/.
#ifndef SEINE_KERNELS_CODEC_TABLES_H_
#define SEINE_KERNELS_CODEC_TABLES_H_

#include <cstdint>

#include "kernels/code.h"
#include "kernels/gaussian_quantiser.h"

namespace seine {

enum class CodecKind : uint8_t { kRsq = 0, kBalanced = 1 };

template <typename T>
struct Table {
  const T* data = nullptr;
  uint32_t size = 0;  // elements
};

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

// Thread safety: read only. Pointers live as long as the codec, or as the device's copy.
struct CodecTables {
  CodecKind kind = CodecKind::kRsq;
  CodeLayout layout;
  Centre centre = Centre::kNone;

  // rsq
  RsqTables rsq = {};
  Table<float> signs;  // of the rotation: [P], or [2P] where head_dim is no power of two (cpu/ops.h, Rotate)

  // balanced
  Table<float> query_map;           // [head_dim][head_dim]
  Table<float> deviation;           // [head_dim] sqrt(lambda)
  Table<BalancedCell> cells;        // [head_dim]
  Table<uint16_t> coarse_order;     // coordinates with coarse bits, ascending by coarse_at
  Table<int16_t> key_map;           // [head_dim][head_dim]: row i is column i of key_map / sqrt(lambda), fixed point
  Table<float> key_scale;           // [head_dim] true value of a product's unit, for a row of norm 32,000
  Table<float> lambda;              // [head_dim]
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
  visit(tables->quantiser);
}

}  // namespace seine

#endif  // SEINE_KERNELS_CODEC_TABLES_H_
