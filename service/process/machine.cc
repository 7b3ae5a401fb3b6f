#include "service/process/machine.h"

#include <pthread.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "index/memory/memory_budget.h"
#include "service/fields/bytes.h"

namespace seine {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kThreadStack = 2 * kMiB;
constexpr int64_t kArenaBytes = 64 * kMiB;  // glibc reserves so much for each

// That an idle server starts (36 on two processors), and some for its connections.
int64_t ThreadsOn(int processors) { return 32 + 8 * processors; }

}  // namespace

int HeapArenas(int processors) { return std::max(2, processors / 2); }

MachineLimits WithinAddressSpace(MachineLimits machine, int64_t limit_bytes, int64_t address_bytes,
                                 int64_t resident_bytes) {
  if (limit_bytes <= 0) return machine;
  const int64_t reserved = address_bytes - resident_bytes + ThreadsOn(machine.processors) * kThreadStack +
                           HeapArenas(machine.processors) * kArenaBytes;
  const int64_t left = std::max(limit_bytes - reserved, kMiB) / kMiB * kMiB;
  if (machine.memory_bytes > 0 && machine.memory_bytes <= left) return machine;
  machine.memory_bytes = left;
  machine.memory_why = kAddressSpace;
  return machine;
}

void BoundStacks() {
#ifndef __SANITIZE_ADDRESS__
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return;
  if (pthread_attr_setstacksize(&attributes, kThreadStack) == 0) pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
#endif
}

int64_t ConstantBytes(int64_t base_bytes, const CoreOptions& options) {
  return base_bytes + MemoryBudget::kLeastPassing + 4 * options.max_message_bytes;
}

int64_t MemoryLimitWithin(const MachineLimits& machine, int64_t base_bytes, const CoreOptions& options) {
  if (machine.memory_bytes == 0) return 0;
  const int64_t constant = ConstantBytes(base_bytes, options);
  const int64_t left = (machine.memory_bytes - constant) / 11 * 10;  // the limit and a tenth (Core::ConstantBytes)
  const int64_t limit = std::max(left, machine.memory_bytes / 8);
  return limit > kMiB ? limit / kMiB * kMiB : limit;
}

std::string DescribeMachine(const MachineLimits& machine) {
  const std::string memory = machine.memory_bytes == 0 ? "no limit of memory"
                                                       : absl::StrCat("at most ", FormatBytes(machine.memory_bytes),
                                                                      " of memory (", machine.memory_why, ")");
  return absl::StrCat("machine: ", machine.processors, machine.processors == 1 ? " processor (" : " processors (",
                      machine.processors_why, "), ", memory);
}

std::string MoreThanAllowed(const MachineLimits& machine, int64_t limit_bytes, int64_t constant_bytes) {
  if (machine.memory_bytes == 0) return "";
  const int64_t most = limit_bytes + limit_bytes / 10 + constant_bytes;
  if (most <= machine.memory_bytes) return "";
  const int64_t rounded = (most + kMiB - 1) / kMiB * kMiB;
  return absl::StrCat(
      "server.memory_limit: with ", FormatBytes(limit_bytes), " the process may hold ", FormatBytes(rounded),
      ", more than the ", FormatBytes(machine.memory_bytes), " of ", machine.memory_why,
      machine.memory_why == kAddressSpace ? ": raise that, or lower server.max_message, which counts four times"
                                          : ": the system may kill it");
}

}  // namespace seine
