// A mover of a family as a child of the soak: it kills a process at a stated moment of one of its calls.
#ifndef SEINE_TESTS_SOAK_DRILLS_MOVER_H_
#define SEINE_TESTS_SOAK_DRILLS_MOVER_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace seine::soak {

struct MoverOrder {
  std::string source, target;  // addresses; the target is told to callers as "there"
  std::string family;          // of the index kKillIndex
  int call = -1;               // its calls are counted from 0; -1: nothing is killed
  int64_t after_us = 0;        // since that call began
  pid_t victim = 0;            // 0: the mover itself

  std::string ToString() const;
  static MoverOrder Parse(const std::string& text);
};

// A call that a mover has made.
struct MoverCall {
  std::string method;
  int64_t us = 0;
};

// Moves the family by client::MigrateFamily. Prints a line for each call, and one that says how it went. Returns the
// exit code: 0 where the family has moved.
int RunMover(const MoverOrder& order);
std::vector<MoverCall> CallsIn(const std::string& output);

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_DRILLS_MOVER_H_
