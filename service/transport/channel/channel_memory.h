// The memory of one same-host channel, as the server makes it: a memfd sealed against resizing, all of it there from
// the start, so that no access can fail later whatever the client does with its descriptor. It counts as bytes under
// way.
#ifndef SEINE_SERVICE_TRANSPORT_CHANNEL_CHANNEL_MEMORY_H_
#define SEINE_SERVICE_TRANSPORT_CHANNEL_CHANNEL_MEMORY_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/channel/memory.h"
#include "service/under_way/in_flight.h"

namespace seine {

// Move-only.
class ChannelMemory {
 public:
  // `under_way` outlives it. RESOURCE_EXHAUSTED: there is no room, or the system gives no memory or descriptor.
  static absl::StatusOr<ChannelMemory> Make(InFlight& under_way, int64_t ring_bytes);
  ChannelMemory(ChannelMemory&& other) noexcept
      : under_way_(std::exchange(other.under_way_, nullptr)),
        start_(std::exchange(other.start_, nullptr)),
        fd_(std::exchange(other.fd_, -1)),
        ring_bytes_(other.ring_bytes_) {}
  ChannelMemory& operator=(ChannelMemory&&) = delete;
  ~ChannelMemory();

  // Sends the descriptor and the welcome over a connected Unix socket, then closes the descriptor. False: the client
  // is gone.
  bool SendTo(int socket);

  channel::Header& header() { return *reinterpret_cast<channel::Header*>(start_); }
  uint8_t* requests() { return start_ + channel::kHeaderBytes; }
  uint8_t* answers() { return requests() + ring_bytes_; }
  uint32_t ring_bytes() const { return ring_bytes_; }

 private:
  ChannelMemory(InFlight& under_way, uint32_t ring_bytes) : under_way_(&under_way), ring_bytes_(ring_bytes) {}

  InFlight* under_way_;  // nullptr: moved from
  uint8_t* start_ = nullptr;
  int fd_ = -1;
  uint32_t ring_bytes_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_CHANNEL_CHANNEL_MEMORY_H_
