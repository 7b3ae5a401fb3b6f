// Bytes of memory that the process holds now, as the system counts them; 0 where it does not say.
#ifndef SEINE_SERVICE_PROCESS_RESIDENT_H_
#define SEINE_SERVICE_PROCESS_RESIDENT_H_

#include <cstdint>

namespace seine {

int64_t ResidentBytes();

}  // namespace seine

#endif  // SEINE_SERVICE_PROCESS_RESIDENT_H_
