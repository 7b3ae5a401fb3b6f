// Runs our programs as a person would: seined as a server in the background, the others to their end.
#ifndef SEINE_TESTS_CLIENT_PROCESS_H_
#define SEINE_TESTS_CLIENT_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "tests/temp_folder.h"

namespace seine {

struct Outcome {
  int exit_code = -1;  // -1: ended by a signal
  std::string out, err;
};
// `environment`: "NAME=value" settings over this process's own.
Outcome RunProgram(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});

// seined on a socket of its own, ready to serve. Ends with SIGTERM, and must then exit with 0.
class Server {
 public:
  // `endpoint`: where it listens; empty: a Unix socket of its own.
  explicit Server(const std::vector<std::string>& flags = {}, const std::string& endpoint = "");
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  const std::string& endpoint() const { return endpoint_; }
  std::unique_ptr<client::Client> Connect(const client::Options& options = {}) const;
  // A program that finds the server in SEINE_SERVER; once more where it met no connection in the seconds that it waits
  // for one, so that nothing was asked: on a machine that is loaded, but not on one that hangs for minutes.
  Outcome Run(const std::vector<std::string>& arguments) const;
  void Kill();   // SIGKILL: as a crash would; nothing, where it has been killed
  void Pause();  // SIGSTOP: as a machine that hangs would
  void Resume();

 private:
  TempFolder folder_;
  std::string endpoint_;
  pid_t pid_;
};

}  // namespace seine

#endif  // SEINE_TESTS_CLIENT_PROCESS_H_
