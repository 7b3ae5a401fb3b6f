// The client's end of a same-host channel: the socket that keeps it open, and the mapped memory. Internal to client/.
#ifndef SEINE_CLIENT_SHARED_MEMORY_SHARED_MEMORY_LINK_H_
#define SEINE_CLIENT_SHARED_MEMORY_SHARED_MEMORY_LINK_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/channel/memory.h"

namespace seine::client {

// Closed and unmapped at its end: nothing of it is left in the process, and the server's end goes as well.
class SharedMemoryLink {
 public:
  // Connects to the server's second socket, shows the token and maps what comes. UNAVAILABLE: nobody answers there in
  // time. PERMISSION_DENIED: the server turns this process away. INTERNAL: what comes is no channel of `ring_bytes`.
  static absl::StatusOr<std::unique_ptr<SharedMemoryLink>> Open(const std::string& path, const std::string& token,
                                                                int64_t ring_bytes, absl::Duration timeout);
  ~SharedMemoryLink();
  SharedMemoryLink(const SharedMemoryLink&) = delete;
  SharedMemoryLink& operator=(const SharedMemoryLink&) = delete;

  // Whether the server has closed its end, or is dead. One system call.
  bool HungUp() const;

  channel::Header& header() const { return *reinterpret_cast<channel::Header*>(start_); }
  uint8_t* requests() const { return start_ + channel::kHeaderBytes; }
  const uint8_t* answers() const { return requests() + ring_bytes_; }
  uint32_t ring_bytes() const { return ring_bytes_; }

 private:
  SharedMemoryLink(int socket, uint32_t ring_bytes) : socket_(socket), ring_bytes_(ring_bytes) {}
  absl::Status Connect(const std::string& path, absl::Duration timeout);
  absl::Status Map(int memory);

  const int socket_;
  const uint32_t ring_bytes_;
  uint8_t* start_ = nullptr;
};

}  // namespace seine::client

#endif  // SEINE_CLIENT_SHARED_MEMORY_SHARED_MEMORY_LINK_H_
