#include "service/process/machine.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "service/config/bytes.h"

namespace seine {

int64_t MemoryLimitWithin(const MachineLimits& machine, int64_t base_bytes, const CoreOptions& options) {
  if (machine.memory_bytes == 0) return 0;
  constexpr int64_t kMiB = 1 << 20;
  const int64_t constant = base_bytes + MemoryBudget::kLeastPassing + 4 * options.max_message_bytes;
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

std::string MoreThanAllowed(const MachineLimits& machine, const Core& core) {
  if (machine.memory_bytes == 0) return "";
  const int64_t limit = core.options.memory_limit_bytes, most = limit + limit / 10 + core.ConstantBytes();
  if (most <= machine.memory_bytes) return "";
  return absl::StrCat("server.memory_limit: with ", FormatBytes(limit), " the process may hold ", FormatBytes(most),
                      ", more than the ", FormatBytes(machine.memory_bytes), " of ", machine.memory_why,
                      ": the system may kill it");
}

}  // namespace seine
