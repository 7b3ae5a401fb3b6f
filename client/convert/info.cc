// Descriptions of servers and heads, from wire messages: a part of convert.h.
#include <utility>

#include "client/convert/convert.h"
#include "client/convert/subspace.h"

namespace seine::client {
namespace {

template <typename Proto, typename Value>
void CopyIf(bool present, Proto value, std::optional<Value>* out) {
  if (present) *out = static_cast<Value>(value);
}

}  // namespace

ServerInfo FromProto(const v1::GetServerInfoResponse& info) {
  std::vector<PassedOverFile> passed_over;
  for (const auto& file : info.passed_over()) {
    passed_over.push_back({file.index(), file.file(), file.bytes(), file.reason()});
  }
  return {info.version(),
          info.backend(),
          info.simd_target(),
          info.num_threads(),
          info.memory_limit_bytes(),
          info.memory_bytes(),
          info.num_indexes(),
          info.num_sequences(),
          info.uptime_seconds(),
          info.queue_capacity(),
          info.max_message_bytes(),
          {info.profiles().begin(), info.profiles().end()},
          info.device_memory_limit_bytes(),
          info.device_memory_bytes(),
          info.instance(),
          info.draining(),
          std::move(passed_over)};
}

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
