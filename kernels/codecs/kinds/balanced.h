// The balanced codec: its options, its traits, and what it computes with, on host and device.
#ifndef SEINE_KERNELS_CODECS_KINDS_BALANCED_H_
#define SEINE_KERNELS_CODECS_KINDS_BALANCED_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/codecs/codec.h"
#include "kernels/codecs/codec_traits.h"
#include "kernels/codecs/table.h"

namespace seine {

// The balanced code (ours; README.md, "How retrieval works"): keys and queries in coordinates where both have the
// second moment diag(lambda), bits where they pay, an embedded Gaussian quantiser, and two 8-bit factors a key. One
// codec a head. Record of the fine stage: the bits that the coarse plane lacks, then the factor of the whole code.
struct BalancedOptions {
  int head_dim = 128;                 // a multiple of 16 in [32, 512]
  std::vector<float> key_map;         // [head_dim, head_dim] row-major: y = x * key_map for a row x
  std::vector<float> query_map;       // the same for queries; <q, x> = <q * query_map, y>
  std::vector<float> lambda;          // [head_dim] positive, descending
  std::vector<uint8_t> coarse_bits;   // [head_dim] at most 4 each, filling whole nibbles with whole coordinates
  std::vector<uint8_t> total_bits;    // [head_dim] at most 6 each, never below coarse_bits; kMaxBalancedBytes in all
  int centre_window = 64;             // a multiple of 64
  std::vector<float> key_scale = {};  // CodecTransform's
};
std::shared_ptr<const Codec> MakeBalancedCodec(const BalancedOptions& options);
// The layout of any balanced codec whose bits add up to these over a key's coordinates.
CodeLayout BalancedLayout(int head_dim, int coarse_bits, int total_bits, int centre_window);

extern const CodecTraits kBalancedTraits;

inline constexpr int kMaxGaussianBits = 6;
// GaussianQuantiserOf(bits) (balanced/gaussian_quantiser.h) for every width, [bits] first; what lies past a width's
// cells is 0.
struct GaussianTables {
  float thresholds[kMaxGaussianBits + 1][31];
  float levels[kMaxGaussianBits + 1][32];
  float merged[kMaxGaussianBits + 1][kMaxGaussianBits + 1][32];
  float distortion[kMaxGaussianBits + 1][kMaxGaussianBits + 1];
  // Levels of 1 to 6 bits in 7 bits, width b's from 2^(b-1) - 1 on, in units of levels[6][31] / 127.
  uint8_t levels8[64];
};

// Coarse row and record of a key, without its factor: what the fine stage holds in one register.
inline constexpr int kMaxBalancedBytes = 64;
inline constexpr int kRecordWords = kMaxBalancedBytes / 4;

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
// Shares of a balanced coordinate's squared weight (errors.h).
struct ErrorShare {
  float added = 0, unseen = 0, fine = 0;
};

// Views of a codec's tables (registry.h, CodecTables).
struct BalancedViews {
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

  // visit(table) for every table, by reference: to copy them and set where they lie.
  template <typename Visit>
  void ForEachTable(Visit visit) {
    visit(query_map);
    visit(deviation);
    visit(cells);
    visit(coarse_order);
    visit(key_map);
    visit(key_scale);
    visit(lambda);
    visit(error_shares);
    visit(fine_steps);
    visit(coarse_steps);
    visit(mixed_from);
    visit(plain_from);
    visit(quantiser);
  }
};

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_KINDS_BALANCED_H_
