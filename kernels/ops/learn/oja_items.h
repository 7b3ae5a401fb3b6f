// The kernel by which bases learn from rows.
#ifndef SEINE_KERNELS_OPS_LEARN_OJA_ITEMS_H_
#define SEINE_KERNELS_OPS_LEARN_OJA_ITEMS_H_

#include <cstdint>

#include "kernels/ops/learn/oja.h"

namespace seine::cuda {

inline constexpr int kOjaLanes = 512;

// oja.h, LearnTask, with every pointer the device's.
struct LearnItem {
  LearnTask task;
  float* scratch = nullptr;  // oja_rule.h, OjaScratch
};
struct LearnArgs {  // one block an item
  const LearnItem* items = nullptr;
  int32_t num_items = 0;
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_LEARN_OJA_ITEMS_H_
