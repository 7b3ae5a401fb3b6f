// What the soak is made of: attacks, which one client makes on a server beside a bystander (attacks/), and drills,
// which start and end servers or clients themselves (drills/).
#ifndef SEINE_TESTS_SOAK_MEMBER_H_
#define SEINE_TESTS_SOAK_MEMBER_H_

#include <functional>
#include <string>
#include <vector>

#include "tests/soak/result.h"
#include "tests/soak/server/endpoint.h"

namespace seine::soak {

struct RunOptions {
  std::string self;                        // this program, for children
  double seconds = 10;                     // of the attack itself; what a drill repeats scales with it
  uint32_t seed = 1;                       // of what is random
  Transport transport = Transport::kUnix;  // of attacks
};

struct Member {
  std::string name, what;
  Stated stated;  // for 10 s
  std::function<void(const RunOptions&, Result*)> run;
  bool any_transport = false;  // others listen where they have to
};

// The bystander alone comes first: what the others' latencies are compared with.
const std::vector<Member>& Members();
const Member* FindMember(const std::string& name);

// Runs it and fills in what every result has.
Result RunMember(const Member& member, const RunOptions& options, const std::string& commit);

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_MEMBER_H_
