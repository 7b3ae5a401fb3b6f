// The codecs' device code, one include a codec. A codec named Name in registry.h has there
//   NameShared<kDim>, EncodeNameBody   the encoder: a block's shared memory, and its body (encode_cuda.h)
//   NameSearch                         static functions by which a search prepares queries and reads records:
//     Transform    s.transformed from s.query, and the largest sizes of what becomes int8
//     Int8Source   what the int8 query is of; kFineWeights: whether s.weights becomes fine8
//     BeginNibbles, NibbleSum   sum of a nibble where its bits are v
//     NoiseOf      coordinate i's share of Codec::CoarseNoise; AddErrors, ErrorsOf: of Codec::PredictErrors
//     LoadSteps    what a block's rerank keeps in shared memory
//     FineUnit, FineSum   Codec::Rerank of one key
#ifndef SEINE_KERNELS_CODECS_REGISTRY_CUDA_H_
#define SEINE_KERNELS_CODECS_REGISTRY_CUDA_H_

#include <cstdlib>

#include "kernels/codecs/balanced/encode_cuda.h"
#include "kernels/codecs/balanced/search_cuda.h"
#include "kernels/codecs/registry.h"
#include "kernels/codecs/rsq/encode_cuda.h"
#include "kernels/codecs/rsq/search_cuda.h"
#include "kernels/cuda/block.h"

namespace seine::cuda {

// Calls fn with the NameSearch of a kind: on a device, or where its bodies run.
template <typename Fn>
SEINE_BODY void VisitCodec(CodecKind kind, Fn fn) {
  switch (kind) {
#define SEINE_CODEC_CASE(Name, member) \
  case CodecKind::k##Name:             \
    return fn(Name##Search());
    SEINE_FOR_EACH_CODEC(SEINE_CODEC_CASE)
#undef SEINE_CODEC_CASE
  }
}

// The encoder of one codec for rows of up to kDim elements.
template <typename SharedOf, typename BodyOf>
struct Encoder {
  using Shared = SharedOf;
  using Body = BodyOf;
};

// Calls fn with the Encoder of a kind, on the host: to start it.
template <int kDim, typename Fn>
auto WithEncoder(CodecKind kind, Fn fn) {
  switch (kind) {
#define SEINE_CODEC_CASE(Name, member) \
  case CodecKind::k##Name:             \
    return fn(Encoder<Name##Shared<kDim>, Encode##Name##Body>());
    SEINE_FOR_EACH_CODEC(SEINE_CODEC_CASE)
#undef SEINE_CODEC_CASE
  }
  std::abort();  // a kind that is none
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_CODECS_REGISTRY_CUDA_H_
