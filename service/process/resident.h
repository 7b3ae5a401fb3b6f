// What the process takes now, as the system counts it; 0 where it does not say.
#ifndef SEINE_SERVICE_PROCESS_RESIDENT_H_
#define SEINE_SERVICE_PROCESS_RESIDENT_H_

#include <cstdint>

namespace seine {

int64_t ResidentBytes();  // of memory
int64_t AddressBytes();   // of its address space, which RLIMIT_AS bounds

}  // namespace seine

#endif  // SEINE_SERVICE_PROCESS_RESIDENT_H_
