#include "tests/kernels/cuda/host_launcher.h"

#include <cstdio>
#include <cstdlib>
#include <variant>

#include "kernels/codec_bodies.h"
#include "kernels/ops/attend/attend_cuda.h"
#include "kernels/ops/data/data_cuda.h"
#include "kernels/ops/learn/oja_cuda.h"
#include "kernels/ops/low_rank/low_rank_cuda.h"
#include "kernels/ops/score_keys/retain_cuda.h"
#include "kernels/ops/score_keys/score_keys_cuda.h"
#include "kernels/ops/score_keys/sum_keys_cuda.h"
#include "kernels/ops/search/search_steps.h"
#include "tests/kernels/cuda/host_block.h"

namespace seine::cuda {
namespace {

template <typename Args>
void Run(const Args& work, uint64_t seed) {
  ForEachKernel(work, [&](auto body, BlockIndex grid, int lanes) {
    using Body = decltype(body);
    using Shared = typename Body::Shared;
    static_assert(sizeof(Shared) <= kMostSharedBytes);
    if (!FitsGrid(grid)) {
      fprintf(stderr, "a grid of %d by %d blocks does not fit a device\n", grid.x, grid.y);
      abort();
    }
    RunGridOnHost<Shared>(grid, lanes, ++seed, KernelArgs(work),
                          [](HostBlock& block, Shared& shared, const auto& args) { Body::Run(block, shared, args); });
  });
}

}  // namespace

void RunOnHost(const Work& work, uint64_t seed) {
  std::visit([&](const auto& args) { Run(args, seed); }, work);
}

}  // namespace seine::cuda
