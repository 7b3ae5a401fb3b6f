// Every step on the calling thread.
#include "tests/kernels/cuda/search_host.h"

#include "kernels/ops/search/search_steps.h"
#include "tests/kernels/cuda/host_block.h"

namespace seine::cuda {

void RunSearchOnHost(const SearchPlan& plan, const SearchArgs& args, uint64_t seed) {
  RunSteps(plan, [&](auto body, BlockIndex grid, int lanes) {
    using Body = decltype(body);
    using Shared = typename Body::Shared;
    RunGridOnHost<Shared>(grid, lanes, ++seed, args,
                          [](HostBlock& block, Shared& shared, const SearchArgs& a) { Body::Run(block, shared, a); });
  });
}

}  // namespace seine::cuda
