// The rsq codec: its options, its traits and its tables.
#ifndef SEINE_KERNELS_CODECS_RSQ_RSQ_H_
#define SEINE_KERNELS_CODECS_RSQ_RSQ_H_

#include <cstdint>
#include <memory>

#include "kernels/codecs/codec.h"
#include "kernels/codecs/codec_traits.h"
#include "kernels/codecs/rsq/tables.h"

namespace seine {

// ParisKV's 4-bit RSQ codes (paper, section 4.1 and appendix B) over the SRHT, with our centres and 1-bit factor.
struct RsqOptions {
  int head_dim = 128;  // a multiple of 16 in [32, 256]
  uint64_t seed = 1;   // of the SRHT's signs
  Centre centre = Centre::kWindow;
  int centre_tokens = 64;  // Centre::kWindow: a multiple of 64
};
std::shared_ptr<const Codec> MakeRsqCodec(const RsqOptions& options);

extern const CodecTraits kRsqTraits;

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_RSQ_RSQ_H_
