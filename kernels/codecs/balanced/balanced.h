// The balanced codec: its options, its traits and its tables.
#ifndef SEINE_KERNELS_CODECS_BALANCED_BALANCED_H_
#define SEINE_KERNELS_CODECS_BALANCED_BALANCED_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/codecs/balanced/tables.h"
#include "kernels/codecs/codec.h"
#include "kernels/codecs/codec_traits.h"

namespace seine {

// The balanced code (ours; README.md, "How retrieval works"): keys and queries in coordinates where both have the
// second moment diag(lambda), bits where they pay, an embedded Gaussian quantiser, and two 8-bit factors a key. One
// codec a head. Record of the fine stage: the bits that the coarse plane lacks, then the factor of the whole code.
struct BalancedOptions {
  int head_dim = 128;                 // a multiple of 16 in [32, 256]
  std::vector<float> key_map;         // [head_dim, head_dim] row-major: y = x * key_map for a row x
  std::vector<float> query_map;       // the same for queries; <q, x> = <q * query_map, y>
  std::vector<float> lambda;          // [head_dim] positive, descending
  std::vector<uint8_t> coarse_bits;   // [head_dim] at most 4 each, filling whole nibbles with whole coordinates
  std::vector<uint8_t> total_bits;    // [head_dim] at most 6 each, never below coarse_bits; kMaxBalancedBytes in all
  int centre_tokens = 64;             // a multiple of 64
  std::vector<float> key_scale = {};  // CodecTransform's
};
std::shared_ptr<const Codec> MakeBalancedCodec(const BalancedOptions& options);
// The layout of any balanced codec whose bits add up to these over a key's coordinates.
CodeLayout BalancedLayout(int head_dim, int coarse_bits, int total_bits, int centre_tokens);

extern const CodecTraits kBalancedTraits;

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_BALANCED_BALANCED_H_
