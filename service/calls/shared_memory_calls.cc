// The calls of SharedMemoryService.
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/channel/memory.h"
#include "service/calls/calls.h"
#include "service/calls/error.h"

namespace seine {

absl::Status OpenChannel(Core& core, const v1::OpenChannelRequest& request, v1::OpenChannelResponse* response) {
  const int64_t ring_bytes = request.ring_bytes() == 0 ? channel::kUsualRing : request.ring_bytes();
  if (!channel::IsRingSize(ring_bytes)) {
    return FieldError(
        "OUT_OF_LIMITS", "ring_bytes",
        absl::StrCat(ring_bytes, " is no power of two in [", channel::kLeastRing, ", ", channel::kMostRing, "]"));
  }
  auto token = core.channels.Promise(ring_bytes);
  if (!token.ok()) return token.status();
  response->set_path(core.channels.path());
  response->set_token(*std::move(token));
  response->set_ring_bytes(ring_bytes);
  response->set_max_message_bytes(core.options.max_message_bytes);
  return absl::OkStatus();
}

}  // namespace seine
