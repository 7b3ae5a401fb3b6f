// The end of what a program prints: a disk that is full, or a closed descriptor, shows only here.
#ifndef SEINE_PROFILE_IO_STANDARD_OUTPUT_H_
#define SEINE_PROFILE_IO_STANDARD_OUTPUT_H_

#include "absl/status/status.h"

namespace seine {

// Flushes stdout and std::cout. INTERNAL, in one line, where anything that was printed did not arrive.
absl::Status FinishStandardOutput();

}  // namespace seine

#endif  // SEINE_PROFILE_IO_STANDARD_OUTPUT_H_
