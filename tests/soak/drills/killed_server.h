// Starts a server with a folder of snapshots, which a drill kills and starts again.
#ifndef SEINE_TESTS_SOAK_DRILLS_KILLED_SERVER_H_
#define SEINE_TESTS_SOAK_DRILLS_KILLED_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/soak/result.h"
#include "tests/soak/server/made_requests.h"
#include "tests/soak/server/soaked_server.h"

namespace seine::soak {

// It has the index of killed_sequence.h, writes its sequences at an orderly end, and restores them when it starts. Not
// thread-safe.
class KilledServer {
 public:
  // `more`: flags of the drill; "FOLDER" in them stands for the folder of snapshots.
  explicit KilledServer(std::vector<std::string> more = {});

  // Starts the server, and another where one was. False, and noted as a crash: it does not serve.
  bool Start(Result* result);
  // Ends it in order, where there is one. Returns its exit code.
  int End(Result* result);

  const std::vector<std::string>& flags() const { return flags_; }
  const std::string& folder() const { return folder_.path; }
  std::string snapshots() const { return folder_.path + "/snapshots"; }
  SoakedServer& server() { return *server_; }  // these two once it was started
  Client& client() { return *client_; }

 private:
  TemporaryFolder folder_;
  std::vector<std::string> flags_;
  std::unique_ptr<SoakedServer> server_;
  std::unique_ptr<Client> client_;
};

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_DRILLS_KILLED_SERVER_H_
