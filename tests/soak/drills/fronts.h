// The proxies that docs/server.md puts in front of seined, started with the configuration of deploy/.
#ifndef SEINE_TESTS_SOAK_DRILLS_FRONTS_H_
#define SEINE_TESTS_SOAK_DRILLS_FRONTS_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/soak/server/server_process.h"

namespace seine::soak {

struct FrontProgram {
  const char* name;                    // of the member: front-NAME
  const char* program;                 // looked for in PATH
  const char* package;                 // that has it
  const char* config;                  // under the tree's deploy/
  std::vector<std::string> arguments;  // the configuration's path follows
};

const std::vector<FrontProgram>& FrontPrograms();
std::string PathOfProgram(const std::string& program);  // empty: it is not installed

// A front with the tree's configuration: its ports and the folder of its certificate are others, and nothing else.
class Front {
 public:
  Front(const FrontProgram& program, const std::string& folder, int port, int backend_port);
  ChildProcess& process() { return *process_; }

 private:
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_DRILLS_FRONTS_H_
