// ParisKV's shares as its authors' released code sets them (docs/references.md): beta of the keys are candidates, and
// each subvector's tiers cover rho of them.
#ifndef SEINE_BENCH_METHODS_PAPER_SCHEDULE_H_
#define SEINE_BENCH_METHODS_PAPER_SCHEDULE_H_

#include <algorithm>
#include <cstdint>

namespace seine::bench {

struct PaperShares {
  double beta = 0, rho = 0;  // in (0, 1], rho >= beta as the paper has it (appendix B.2.1)
};

// By the length of the zone that is searched, in keys.
constexpr PaperShares PaperSchedule(int64_t zone_keys) {
  if (zone_keys < 5'000) return {.5, .5};
  if (zone_keys < 10'000) return {.25, .3};
  if (zone_keys < 30'000) return {.2, .25};
  return {.1, .2};
}

// Rho beside a beta that somebody else chose: the schedule's for long zones, and never below beta.
constexpr double PaperRho(double beta) { return std::max(.2, beta); }

}  // namespace seine::bench

#endif  // SEINE_BENCH_METHODS_PAPER_SCHEDULE_H_
