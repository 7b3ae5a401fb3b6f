// What the system lets this process use: processors and memory. Everything that picks a number of threads by itself
// takes it from here, so that a container with a quota is not given a thread for each core of its host.
#ifndef SEINE_KERNELS_MACHINE_LIMITS_H_
#define SEINE_KERNELS_MACHINE_LIMITS_H_

#include <cstdint>
#include <string>

namespace seine {

struct MachineLimits {
  int processors = 1;          // at least 1
  std::string processors_why;  // what sets the number: "affinity", or the file of the quota
  int64_t memory_bytes = 0;    // that the process's control groups allow; 0: they set no limit
  std::string memory_why;      // the file that says so; empty: none
};

// Reads ROOT/proc/self/{cgroup,mountinfo} and the control groups that they name, versions 1 and 2: the tightest limit
// on the way from the process's group to the topmost one that can be seen. `affinity`: processors that the process may
// run on, which the kernel keeps within its cpuset. What cannot be read sets no limit. A quota of 1.5 processors counts
// as one thread: two would spend it early, and wait for the rest of each period (docs/decisions, 0117).
MachineLimits ReadMachineLimits(const std::string& root, int affinity);

// This process's, as they were when it first asked. Thread-safe.
const MachineLimits& LimitsOfThisProcess();

// Threads for work that keeps a processor busy, where nobody says how many: LimitsOfThisProcess().processors.
int DefaultThreads();

}  // namespace seine

#endif  // SEINE_KERNELS_MACHINE_LIMITS_H_
