// Makers of settings whose messages have many fields.
#ifndef SEINE_CLIENT_SETTINGS_H_
#define SEINE_CLIENT_SETTINGS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "client/types.h"
#include "seine/v1/eviction.pb.h"
#include "seine/v1/index_service.pb.h"

namespace seine::client {

// `dtype`: of keys and values as appended and stored.
inline v1::Geometry MakeGeometry(int num_layers, int num_q_heads, int num_kv_heads, int head_dim, DType dtype) {
  v1::Geometry out;
  out.set_num_layers(num_layers);
  out.set_num_q_heads(num_q_heads);
  out.set_num_kv_heads(num_kv_heads);
  out.set_head_dim(head_dim);
  out.set_dtype(static_cast<v1::DType>(dtype));
  return out;
}

// Positions that stay whatever their score, ascending; only with a call.
inline void SetPositions(absl::Span<const int32_t> positions, v1::Keep* keep) {
  v1::Tensor* const out = keep->mutable_positions();
  out->Clear();
  if (positions.empty()) return keep->clear_positions();
  out->set_dtype(v1::D_TYPE_INT32);
  out->add_shape(static_cast<int64_t>(positions.size()));
  out->set_raw(positions.data(), positions.size() * sizeof(int32_t));
}

}  // namespace seine::client

#endif  // SEINE_CLIENT_SETTINGS_H_
