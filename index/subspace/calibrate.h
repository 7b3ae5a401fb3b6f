// First bases of a layer, from a model profile (OjaKV, A.3; docs/profile.md), and the file that keeps bases.
#ifndef SEINE_INDEX_SUBSPACE_CALIBRATE_H_
#define SEINE_INDEX_SUBSPACE_CALIBRATE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "index/config/subspace_config.h"
#include "index/subspace/basis.h"
#include "profile/profile.h"
#include "profile/rope.h"

namespace seine {

struct CalibrationOptions {
  KeyFrame frame = KeyFrame::kPostRope;
  double begin = 0, end = 0;  // kPostRope: positions that the moments are carried to
  // A.3: keys and queries share the basis, that of their rows stacked, all query heads of the group; else it is the
  // keys' own.
  bool stack_queries = false;
  int key_rank = 0, value_rank = 0;
  double energy = 0;  // in (0, 1], for ranks of 0: the smallest with that share, the largest of the layer's heads
};

// The bases of one layer: [num_kv_heads] each, with equal ranks.
struct LayerBases {
  std::vector<Basis> keys, values;
};

// `rope` as the keys will be appended. INVALID_ARGUMENT naming the field: ranks outside [1, D], no RoPE for kPreRope, a
// layer that the profile does not have.
absl::StatusOr<LayerBases> CalibrateLayer(const Profile& profile, const Rope& rope, int layer,
                                          const CalibrationOptions& options);

struct SubspaceRanks {
  int keys = 0, values = 0;
};
// The smallest ranks that hold options.energy in every head of each layer, as CalibrateLayer finds them: [num_layers].
// INVALID_ARGUMENT as there.
absl::StatusOr<std::vector<SubspaceRanks>> RanksForEnergy(const Profile& profile, const Rope& rope,
                                                          const LayerRopes& layer_ropes,
                                                          const CalibrationOptions& options);

// Turns rows [count, D] at positions first_position, first_position + 1, ... back to position 0, or forth.
void UndoRopeOfRows(const Rope& rope, int64_t first_position, int64_t count, float* rows);
void ApplyRopeToRows(const Rope& rope, int64_t first_position, int64_t count, float* rows);
// The same for rows at `positions` [count].
void UndoRopeOfRows(const Rope& rope, const int32_t* positions, int64_t count, float* rows);
void ApplyRopeToRows(const Rope& rope, const int32_t* positions, int64_t count, float* rows);

// Bases of layers 0, 1, ... in a safetensors file: layers.{l}.key_basis and .value_basis, fp32 [num_kv_heads, D, r];
// metadata format = "seine-bases-1", frame, model.
struct BasesFile {
  KeyFrame frame = KeyFrame::kPostRope;
  std::string model;
  std::vector<LayerBases> layers;
};
absl::Status WriteBases(const BasesFile& bases, const std::string& path);
// Errors open with the path: NOT_FOUND, PERMISSION_DENIED, DATA_LOSS, INVALID_ARGUMENT (no file of bases, another
// version, a shape that contradicts another, a NaN, columns that are not orthonormal to 1e-3).
absl::StatusOr<BasesFile> ReadBases(const std::string& path);

}  // namespace seine

#endif  // SEINE_INDEX_SUBSPACE_CALIBRATE_H_
