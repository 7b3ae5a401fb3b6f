// The codecs' device code. The build includes each codec's NAME/*_cuda.h. A codec named Name in codec_list.h has there
//   EncodeNameBody<kDim>               the encoder of rows of up to kDim elements (encode_cuda.h)
//   NameSearch                         static functions by which a search prepares queries and reads records:
//     Transform    s.transformed from s.query, and the largest sizes of what becomes int8
//     Int8Source   what the int8 query is of; kFineWeights: whether s.weights becomes fine8
//     BeginNibbles, NibbleSum   sum of a nibble where its bits are v
//     NoiseOf      coordinate i's share of Codec::CoarseNoise; AddErrors, ErrorsOf: of Codec::PredictErrors
//     LoadSteps    what a block's rerank keeps in shared memory
//     FineUnit, FineSum   Codec::Rerank of one key
#ifndef SEINE_KERNELS_CODEC_BODIES_H_
#define SEINE_KERNELS_CODEC_BODIES_H_

#include "kernels/codec_bodies_found.h"  // made by kernels/CMakeLists.txt
#include "kernels/codecs/kinds/registry.h"
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

// The encoder of a kind for rows of up to kDim elements.
template <int kDim, typename Run>
void EncodeKernel(const EncodeArgs& args, Run run) {
  const BlockIndex grid = {args.num_units, 1};
  switch (args.kind) {
#define SEINE_CODEC_CASE(Name, member) \
  case CodecKind::k##Name:             \
    return run(Encode##Name##Body<kDim>(), grid, Lanes<kEncodeLanes>());
    SEINE_FOR_EACH_CODEC(SEINE_CODEC_CASE)
#undef SEINE_CODEC_CASE
  }
}
template <typename Run>
void ForEachKernel(const EncodeArgs& args, Run run) {
  if (args.head_dim <= 64) return EncodeKernel<64>(args, run);
  if (args.head_dim <= 128) return EncodeKernel<128>(args, run);
  if (args.head_dim <= 256) return EncodeKernel<256>(args, run);
  EncodeKernel<kMaxHeadDim>(args, run);
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_CODEC_BODIES_H_
