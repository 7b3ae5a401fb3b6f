#include "service/access/zeroing_backend.h"

#include <cstring>
#include <utility>

#include "service/backends/forwarding_backend.h"

namespace seine {
namespace {

class ZeroingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Buffer Allocate(size_t bytes, MemorySpace space) override {
    Buffer buffer = inner_->Allocate(bytes, space);
    if (!buffer) return buffer;
    if (space == MemorySpace::kStore) {
      memset(buffer.data(), 0, buffer.size());
    } else if (inner_->Zero(buffer.data(), buffer.size()) != Outcome::kDone) {
      return Buffer();  // the device is lost, and says so
    }
    return buffer;
  }
};

}  // namespace

std::unique_ptr<Backend> WithZeroedMemory(std::unique_ptr<Backend> backend) {
  return std::make_unique<ZeroingBackend>(std::move(backend));
}

}  // namespace seine
