// The rsq codec: its options, its traits, and what it computes with, on host and device.
#ifndef SEINE_KERNELS_CODECS_KINDS_RSQ_H_
#define SEINE_KERNELS_CODECS_KINDS_RSQ_H_

#include <cstdint>
#include <memory>

#include "kernels/codecs/codec.h"
#include "kernels/codecs/codec_traits.h"
#include "kernels/codecs/table.h"

namespace seine {

// ParisKV's 4-bit RSQ codes (paper, section 4.1 and appendix B) over the SRHT, with our centres and 1-bit factor.
struct RsqOptions {
  int head_dim = 128;  // a multiple of 16 in [32, 512]
  uint64_t seed = 1;   // of the SRHT's signs
  Centre centre = Centre::kWindow;
  int centre_window = 64;  // Centre::kWindow: a multiple of 64
};
std::shared_ptr<const Codec> MakeRsqCodec(const RsqOptions& options);

extern const CodecTraits kRsqTraits;

// The quantiser of rsq as kernels use it; levels8[t] = levels[t] * 127 / levels[7], rounded.
// The bin of |x_j| in a subvector of norm r counts the t with x_j^2 > thresholds2[t] * r^2: no root is taken.
struct RsqTables {
  float thresholds2[7];  // squares of tau
  float levels[8];
  uint8_t levels8[8];
};

// Views of a codec's tables (registry.h, CodecTables).
struct RsqViews {
  RsqTables magnitudes = {};
  Table<float> signs;  // of the rotation: [P], or [2P] where head_dim is no power of two (rows.h, Rotate)

  // visit(table) for every table, by reference: to copy them and set where they lie.
  template <typename Visit>
  void ForEachTable(Visit visit) {
    visit(signs);
  }
};

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_KINDS_RSQ_H_
