// Kernels of subspaces: rows made codes, and codes made rows.
#ifndef SEINE_KERNELS_OPS_LOW_RANK_LOW_RANK_ITEMS_H_
#define SEINE_KERNELS_OPS_LOW_RANK_LOW_RANK_ITEMS_H_

#include <cstdint>

#include "kernels/ops/low_rank/low_rank.h"

namespace seine::cuda {

inline constexpr int kLowRankLanes = 256;
inline constexpr int kLowRankTile = 16;  // rows a block

// low_rank.h, ProjectTask, with every pointer readable by the device.
struct ProjectItem {
  const float* basis = nullptr;
  int32_t head_dim = 0, rank = 0;
  const float* rows = nullptr;
  int32_t count = 0;
  DType dtype = DType::kFloat32;
  uint8_t* codes = nullptr;
  float* residuals = nullptr;
};
struct ProjectArgs {  // blocks of kLowRankTile rows, items
  const ProjectItem* items = nullptr;
  int32_t num_items = 0;
  int32_t most_rows = 0, most_dim = 0;  // of an item
};

// low_rank.h, RebuildTask, likewise.
struct RebuildItem {
  LowRankRows rows;
  const int32_t* places = nullptr;
  const int32_t* positions = nullptr;
  int32_t count = 0;
  float* out = nullptr;
};
struct RebuildArgs {  // blocks of kLowRankTile rows, items
  const RebuildItem* items = nullptr;
  int32_t num_items = 0;
  int32_t most_rows = 0, most_dim = 0;  // of an item
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_LOW_RANK_LOW_RANK_ITEMS_H_
