// Which keys survive the rerank with any query of a group, and with which.
#ifndef SEINE_KERNELS_OPS_SEARCH_SURVIVORS_H_
#define SEINE_KERNELS_OPS_SEARCH_SURVIVORS_H_

#include <cstdint>
#include <vector>

#include "kernels/ops/scan/coarse_stage.h"

namespace seine::cpu {

// Reused storage of the join.
class SurvivorJoin {
 public:
  // Keys of the survivors of queries [begin, end), ascending and each once; members: bit g of a key's is query g.
  void Join(const QueryWork* queries, int begin, int end, std::vector<uint32_t>* keys, std::vector<uint32_t>* members);

 private:
  static constexpr int kLevels = 5;  // log2 of kMaxGroup
  std::vector<uint64_t> joined_, halves_[2 * kLevels];
};

// own: those of logits[members] that are query g's.
void TakeOwn(int g, const std::vector<uint32_t>& members, const float* logits, std::vector<float>* own);

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_SEARCH_SURVIVORS_H_
