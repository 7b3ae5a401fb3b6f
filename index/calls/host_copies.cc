#include "index/calls/host_copies.h"

#include "profile/field_error.h"

namespace seine {

absl::StatusOr<TensorView> HostCopies::Of(const char* field, const TensorView& tensor) {
  if (!tensor.on_device) return tensor;
  DeviceAttention* const device = context_.backend->attention();
  if (device == nullptr) {
    return BadField(field, "on a device, and the backend ", context_.backend->name(), " has none that attends");
  }
  if (tensor.bytes > 0 && tensor.data == nullptr) return BadField(field, "no data");
  if (!device->CanAwait(tensor.stream)) {
    return BadField(field, "on a stream that is another device's, or captured into a graph, which cannot hold a call");
  }
  if (tensor.bytes > 0 && !device->Holds(tensor.data, tensor.bytes)) {
    return BadField(field, "not in the memory of the device that searches, but the host's or another device's");
  }
  TensorView here = tensor;
  here.on_device = false;
  here.stream = nullptr;
  if (tensor.bytes == 0) return here;
  const auto bytes = static_cast<int64_t>(tensor.bytes);
  Reservation reservation(&context_.ledger);
  if (absl::Status s = reservation.Reserve(MemoryKind::kStore, bytes); !s.ok()) return s;
  Memory& memory = held_.emplace_back();
  SlabPool* const pool = context_.ledger.pool(MemoryKind::kStore);
  if (absl::Status s = reservation.Allocate(MemoryKind::kStore, bytes, pool, &memory); !s.ok()) return s;
  const CopyTask copy = {memory.data(), tensor.data, tensor.bytes};
  if (absl::Status s = StatusOf(*context_.backend, device->CopyAfter(tensor.stream, &copy, 1)); !s.ok()) return s;
  here.data = memory.data();
  return here;
}

}  // namespace seine
