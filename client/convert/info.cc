// Descriptions of heads, from wire messages: a part of convert.h.
#include "client/convert/convert.h"
#include "client/convert/subspace.h"

namespace seine::client {
namespace {

template <typename Proto, typename Value>
void CopyIf(bool present, Proto value, std::optional<Value>* out) {
  if (present) *out = static_cast<Value>(value);
}

}  // namespace

absl::StatusOr<HeadInfo> FromProto(const v1::DescribeHeadResponse& info) {
  HeadInfo head = {info.num_tokens(),
                   info.zone_begin(),
                   info.zone_end(),
                   info.num_segments(),
                   info.code_bytes(),
                   info.store_bytes(),
                   info.bytes_per_key(),
                   info.codec(),
                   info.coarse(),
                   info.centre(),
                   info.coarse_bytes(),
                   info.fine_bytes(),
                   info.profile(),
                   {},
                   {},
                   info.coarse_bits(),
                   info.total_bits(),
                   {},
                   info.query_moments(),
                   {}};
  CopyIf(info.has_predicted_loss(), info.predicted_loss(), &head.predicted_loss);
  head.num_retained = info.num_retained();
  if (info.has_subspace()) head.subspace = FromProto(info.subspace());
  CopyIf(info.has_position(), info.position(), &head.position);
  CopyIf(info.has_horizon(), info.horizon(), &head.horizon);
  if (!info.has_lambda()) return head;
  const int64_t dims = info.lambda().shape_size() == 1 ? info.lambda().shape(0) : -1;
  absl::Status status = ReadFloats("lambda", info.lambda(), dims, &head.lambda);
  if (!status.ok()) return status;
  return head;
}

}  // namespace seine::client
