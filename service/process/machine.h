// What seined makes of the limits of its machine (kernels/machine/limits.h), and what it says of them at its start.
#ifndef SEINE_SERVICE_PROCESS_MACHINE_H_
#define SEINE_SERVICE_PROCESS_MACHINE_H_

#include <cstdint>
#include <string>

#include "kernels/machine/limits.h"
#include "service/core.h"

namespace seine {

// `machine` with no more memory than a limit of address space leaves (ulimit -v, RLIMIT_AS), where there is one:
// `address_bytes` are taken now, of which the process holds `resident_bytes`, and threads and the allocator will
// reserve more than they hold. 0: there is none.
MachineLimits WithinAddressSpace(MachineLimits machine, int64_t limit_bytes, int64_t address_bytes,
                                 int64_t resident_bytes);
inline constexpr char kAddressSpace[] = "what the limit of its address space leaves (ulimit -v)";  // memory_why

// The memory limit, in bytes, where nobody sets one: what the machine's limit leaves beside a process of
// `base_bytes` and what it holds besides (Core::ConstantBytes), but an eighth of it at least. 0: they set none.
int64_t MemoryLimitWithin(const MachineLimits& machine, int64_t base_bytes, const CoreOptions& options);

// One line: processors and memory, and what says so.
std::string DescribeMachine(const MachineLimits& machine);

// One line where the server may hold more than the machine allows, besides `constant_bytes` (Core::ConstantBytes);
// empty: it may not.
std::string MoreThanAllowed(const MachineLimits& machine, int64_t limit_bytes, int64_t constant_bytes);

// Core::ConstantBytes of a server that is to start with a memory limit.
int64_t ConstantBytes(int64_t base_bytes, const CoreOptions& options);

// Arenas of the heap that a server has at most.
int HeapArenas(int processors);

// Stacks of the threads to come: not the 8 MiB of address space that the system gives each.
void BoundStacks();

}  // namespace seine

#endif  // SEINE_SERVICE_PROCESS_MACHINE_H_
