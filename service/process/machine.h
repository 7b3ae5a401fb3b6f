// What seined makes of the limits of its machine (kernels/machine/limits.h), and what it says of them at its start.
#ifndef SEINE_SERVICE_PROCESS_MACHINE_H_
#define SEINE_SERVICE_PROCESS_MACHINE_H_

#include <cstdint>
#include <string>

#include "kernels/machine/limits.h"
#include "service/core.h"

namespace seine {

// The memory limit, in bytes, where nobody sets one: what the control groups' limit leaves beside a process of
// `base_bytes` and what it holds besides (Core::ConstantBytes), but an eighth of it at least. 0: they set none.
int64_t MemoryLimitWithin(const MachineLimits& machine, int64_t base_bytes, const CoreOptions& options);

// One line: processors and memory, and what says so.
std::string DescribeMachine(const MachineLimits& machine);

// One line where the server may hold more than its control groups allow; empty: it may not.
std::string MoreThanAllowed(const MachineLimits& machine, const Core& core);

}  // namespace seine

#endif  // SEINE_SERVICE_PROCESS_MACHINE_H_
