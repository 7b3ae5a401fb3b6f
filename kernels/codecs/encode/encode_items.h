// What an encoding hands to a device: the tasks as plain views, and the units of work that blocks take.
#ifndef SEINE_KERNELS_CODECS_ENCODE_ENCODE_ITEMS_H_
#define SEINE_KERNELS_CODECS_ENCODE_ENCODE_ITEMS_H_

#include <algorithm>
#include <cstdint>

#include "kernels/codecs/code.h"
#include "kernels/codecs/kinds/registry.h"
#include "kernels/math.h"
#include "kernels/types.h"

namespace seine::cuda {

inline constexpr int kEncodeLanes = 256;

// backend.h, EncodeTask, with every pointer readable by the device and `out` in its memory.
struct EncodeItem {
  const CodecTables* codec = nullptr;
  const uint8_t* rows = nullptr;  // [num_keys, head_dim]
  uint64_t stride_bytes = 0;
  DType dtype = DType::kFloat32;
  const int8_t* shared_centre = nullptr;  // [head_dim] of Centre::kGlobal, else nullptr
  float shared_scale = 0;                 // of shared_centre
  CodePlanes out;
};

// Keys [first, first + UnitKeys) of an item: what is centred together.
struct EncodeUnit {
  int32_t item = 0, first = 0;
};
SEINE_HD inline int UnitKeys(const CodeLayout& layout) {
  return layout.centre_window > kWindowTokens ? layout.centre_window : kWindowTokens;
}

// What the kernel is given, by value. All items are of one kind of codec and one head_dim; one block a unit.
struct EncodeArgs {
  const EncodeItem* items = nullptr;
  const EncodeUnit* units = nullptr;
  int32_t num_units = 0;
  int32_t head_dim = 0;  // of the items
  CodecKind kind = CodecKind::kRsq;
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_CODECS_ENCODE_ENCODE_ITEMS_H_
