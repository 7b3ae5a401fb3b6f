// The calls of SharedMemoryService.
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/channel/memory.h"
#include "service/access/caller.h"
#include "service/calls/calls.h"
#include "service/channel_offers.h"
#include "service/fields/error.h"
#include "service/under_way/in_flight.h"

namespace seine {

absl::Status OpenChannel(Core& core, const v1::OpenChannelRequest& request, v1::OpenChannelResponse* response) {
  // A channel's memory counts as bytes under way: it must fit at all.
  const int64_t limit = core.in_flight.limit_bytes(), room = limit - limit / 4;
  const auto fits = [room](int64_t bytes) { return static_cast<int64_t>(channel::MemoryBytes(bytes)) <= room; };
  int64_t ring_bytes = request.ring_bytes();
  if (ring_bytes == 0) {
    ring_bytes = channel::kUsualRing;
    while (!fits(ring_bytes) && ring_bytes > channel::kLeastRing) ring_bytes /= 2;
  }
  if (!channel::IsRingSize(ring_bytes)) {
    return FieldError(
        "OUT_OF_LIMITS", "ring_bytes",
        absl::StrCat(ring_bytes, " is no power of two in [", channel::kLeastRing, ", ", channel::kMostRing, "]"));
  }
  if (!fits(ring_bytes)) {
    return FieldError("OUT_OF_LIMITS", "ring_bytes",
                      absl::StrCat("two rings of ", ring_bytes, " bytes are more than may be under way, ", room));
  }
  const Caller* const caller = CallerScope::current();
  auto token = core.channels.Promise(ring_bytes, caller == nullptr ? nullptr : caller->shared_from_this());
  if (!token.ok()) return token.status();
  response->set_path(core.channels.path());
  response->set_token(*std::move(token));
  response->set_ring_bytes(ring_bytes);
  response->set_max_message_bytes(core.options.max_message_bytes);
  return absl::OkStatus();
}

}  // namespace seine
