// Ranges of the balanced codec's options.
#ifndef SEINE_KERNELS_CODECS_BALANCED_OPTIONS_H_
#define SEINE_KERNELS_CODECS_BALANCED_OPTIONS_H_

#include "kernels/codecs/codec_traits.h"

namespace seine {

// The first of the balanced codec's options that is out of its range; an empty `option` where none is
// (CodecTraits::check).
CodecFault BalancedFault(const CodecSpec& spec);

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_BALANCED_OPTIONS_H_
