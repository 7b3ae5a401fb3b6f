// The scan of the coarse plane, by the best instruction set (cpu/targets.h).
#ifndef SEINE_KERNELS_OPS_SCAN_SCAN_H_
#define SEINE_KERNELS_OPS_SCAN_SCAN_H_

#include <cstddef>
#include <cstdint>

#include "kernels/codecs/code.h"
#include "kernels/types.h"

namespace seine::cpu {

// Queries that one pass over the codes serves: those of a group, or four of a larger one. More would leave no registers
// for their sums.
inline constexpr int kMostFused = 4;

struct ScanQuery {
  const PreparedQuery* prepared = nullptr;
  const uint8_t* tiers = nullptr;  // [coarse_bytes][256] of a collision scan, else nullptr; for all queries or none
  float shared_base = 0;           // base where no centre is stored a window
};

// Coarse scan of keys [begin, end) of one segment, both multiples of 64, for `count` queries at once. A query's scores
// are in units of its coarse_step:
//   sign_ip:   base(window) + factor * (sum of table entries - bias), base = <q, centre> / coarse_step
//   collision: sum of tier weights
struct ScanArgs {
  ConstCodePlanes planes;
  const CodeLayout* layout = nullptr;
  ScanQuery queries[kMostFused];
  int count = 1;
  int begin = 0, end = 0;
  const ConstCodePlanes* next = nullptr;  // what is scanned after this from its key next_begin on, to be fetched ahead
  int next_begin = 0, next_keys = 0;
  int pass = 0, passes = 1;  // which of the scans of these same keys, by other queries, one right after another
};
// The same for keys [begin, end) of one window: 16, 32 or 64 of them from a multiple of 16 on. bases[query].
void ScanRow(const ScanArgs& args, float* const* scores, float* bases);
// Every score: scores[query][end - begin], bases[query][(end - begin) / 64].
void ScanScores(const ScanArgs& args, float* const* scores, float* const* bases);
// Scores at or above a query's threshold only: appended to out[query] with index first_index + key. Room for
// end - begin + 16 more must be there.
void ScanAbove(const ScanArgs& args, const float* thresholds, uint32_t first_index, Candidates* const* out);

// counts[b][byte] += sign for keys [begin, end) of a coarse plane.
void CountCodes(const ConstCodePlanes& planes, const CodeLayout& layout, int begin, int end, int sign,
                uint32_t* counts);

// The plain twins, which every target equals bit for bit.
namespace scalar {

void ScanRow(const ScanArgs& args, float* const* scores, float* bases);
void ScanScores(const ScanArgs& args, float* const* scores, float* const* bases);
void ScanAbove(const ScanArgs& args, const float* thresholds, uint32_t first_index, Candidates* const* out);

// Raw sums of one window's 64 keys: nibble tables less the bias (sign_ip) or tier weights (collision).
void SumNibbles(const uint8_t* coarse, int coarse_bytes, const uint8_t* tables, int32_t* sums);
void SumTiers(const uint8_t* coarse, int coarse_bytes, const uint8_t* tiers, int32_t* sums);

}  // namespace scalar

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_SCAN_SCAN_H_
