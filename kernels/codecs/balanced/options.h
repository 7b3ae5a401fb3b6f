// What the balanced codec's options may be.
#ifndef SEINE_KERNELS_CODECS_BALANCED_OPTIONS_H_
#define SEINE_KERNELS_CODECS_BALANCED_OPTIONS_H_

#include "kernels/codecs/codec_traits.h"

namespace seine {

// CodecTraits::check.
CodecFault BalancedFault(const CodecSpec& spec);

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_BALANCED_OPTIONS_H_
