#include "tests/kernels/cuda/encode_host.h"

#include "kernels/codecs/registry_cuda.h"
#include "tests/kernels/cuda/host_block.h"

namespace seine::cuda {
namespace {

template <int kDim>
void Run(const EncodeArgs& args, uint64_t seed) {
  const BlockIndex grid = {args.num_units, 1};
  WithEncoder<kDim>(args.kind, [&](auto encoder) {
    using Encoder = decltype(encoder);
    RunGridOnHost<typename Encoder::Shared>(grid, kEncodeLanes, seed, args, typename Encoder::Body());
  });
}

}  // namespace

void RunEncodeOnHost(const EncodeArgs& args, uint64_t seed) {
  if (args.head_dim <= 64) return Run<64>(args, seed);
  if (args.head_dim <= 128) return Run<128>(args, seed);
  Run<256>(args, seed);
}

}  // namespace seine::cuda
