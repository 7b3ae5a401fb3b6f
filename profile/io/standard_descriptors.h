// stdin, stdout and stderr of a program: its first step and its last.
#ifndef SEINE_PROFILE_IO_STANDARD_DESCRIPTORS_H_
#define SEINE_PROFILE_IO_STANDARD_DESCRIPTORS_H_

#include "absl/status/status.h"

namespace seine {

// Opens /dev/null on those that are closed: else the first files that the process opens would be these, and what it
// prints or logs would go into them. To write on such a stdout is an error, as it was. Call it before anything is
// opened.
void OpenStandardDescriptors();

// Flushes stdout and std::cout. INTERNAL, in one line, where anything that was printed did not arrive: a disk that is
// full, or a closed descriptor, shows only here.
absl::Status FinishStandardOutput();

}  // namespace seine

#endif  // SEINE_PROFILE_IO_STANDARD_DESCRIPTORS_H_
