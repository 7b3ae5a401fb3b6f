// Stage I for a query group: scores of the zone's keys and the candidate_fraction * n best of each query.
#ifndef SEINE_KERNELS_OPS_SCAN_COARSE_STAGE_H_
#define SEINE_KERNELS_OPS_SCAN_COARSE_STAGE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/ops/query/search.h"

namespace seine::cpu {

// Reused storage of one query of the group.
struct QueryWork {
  PreparedQuery prepared;
  std::vector<uint8_t> tiers;       // Coarse::kCollision
  float shared_base = 0;            // <q, shared centre> in units of coarse_step
  std::vector<float> scores;        // every key's score (short zones)
  std::vector<float> bases;         // every window's base beside them
  Candidates found;                 // keys at or above the threshold
  std::vector<uint32_t> chosen;     // places in `found` of the exact best, ascending by key
  std::vector<float> estimates;     // rerank of chosen
  std::vector<uint32_t> survivors;  // places in `chosen`
  // Sampled keys' scores; where the zone's mass is needed (kernels/ops/query/zone_mass.h) sign_ip's, and their
  // windows' bases.
  std::vector<float> sample, sample_bases;
  std::vector<std::pair<uint32_t, uint32_t>> sampled;  // ops/mass/zone_mass_cpu.cc
  std::vector<float> scratch;
};

// Candidates of every query: work[g].found and work[g].chosen, exactly `wanted` of them, ties by lowest position. Under
// params.recall_target each query has its own number, at least `wanted`.
void FindCandidates(const SearchTask& task, const SearchParams& params, size_t wanted, QueryWork* work,
                    SearchStats* stats);

// Fills `out` with the given keys of the zone, as the scan would have, without coarse scores and rows. `bases`: every
// window's base if the scan has left them, else nullptr.
void FillCandidates(const SearchTask& task, const QueryWork& work, const std::vector<uint32_t>& keys,
                    const float* bases, Candidates* out);

int64_t NowNs();

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_SCAN_COARSE_STAGE_H_
