#include "tests/kernels/cuda/encode_host.h"

#include "kernels/codecs/balanced/encode_cuda.h"
#include "kernels/codecs/rsq/encode_cuda.h"
#include "tests/kernels/cuda/host_block.h"

namespace seine::cuda {
namespace {

template <int kDim>
void Run(const EncodeArgs& args, uint64_t seed) {
  const BlockIndex grid = {args.num_units, 1};
  if (args.kind == CodecKind::kRsq) {
    RunGridOnHost<RsqShared<kDim>>(grid, kEncodeLanes, seed, args, EncodeRsqBody());
  } else {
    RunGridOnHost<BalancedShared<kDim>>(grid, kEncodeLanes, seed, args, EncodeBalancedBody());
  }
}

}  // namespace

void RunEncodeOnHost(const EncodeArgs& args, uint64_t seed) {
  if (args.head_dim <= 64) return Run<64>(args, seed);
  if (args.head_dim <= 128) return Run<128>(args, seed);
  Run<256>(args, seed);
}

}  // namespace seine::cuda
