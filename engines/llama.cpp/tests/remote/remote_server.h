// A seined of a test's own, which SEINE_ENDPOINT names from then on.
#ifndef SEINE_ENGINES_LLAMA_CPP_TESTS_REMOTE_REMOTE_SERVER_H_
#define SEINE_ENGINES_LLAMA_CPP_TESTS_REMOTE_REMOTE_SERVER_H_

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "tests/temp_folder.h"

namespace seine::llama {

// Ours and its client are programs: a process that loads the plug-in cannot link the client, whose protos it has too.
class Server {
 public:
  // `memory`: limit, as a flag has it.
  explicit Server(std::string memory) : memory_(std::move(memory)), endpoint_("unix://" + folder_.Path("seine.sock")) {
    Start();
    setenv("SEINE_ENDPOINT", endpoint_.c_str(), 1);
  }
  ~Server() { Kill(); }

  void Start() {
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is killed leaves no server behind
      execl(SEINED_PROGRAM, SEINED_PROGRAM, "--listen", endpoint_.c_str(), "--threads", "1", "--log-level", "error",
            "--memory-limit", memory_.c_str(), "--snapshots-dir", folder_.Path("snapshots").c_str(),
            "--snapshots-at-exit", "--snapshots-restore-on-start", static_cast<char*>(nullptr));
      _exit(127);
    }
    EXPECT_EQ(Run("health --wait 20"), 0);
  }
  // By another signal than SIGKILL it writes its sequences.
  void Kill(int signal = SIGKILL) {
    if (pid_ > 0) kill(pid_, signal), waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  // A command of seine's; what it prints ends up in `out`.
  int Run(const std::string& command, std::string* out = nullptr) const {
    const std::string path = folder_.Path("out");
    const int result = std::system((SEINE_PROGRAM " --server " + endpoint_ + " " + command + " > " + path).c_str());
    std::ifstream file(path);
    if (out != nullptr) *out = {std::istreambuf_iterator<char>(file), {}};
    return result;
  }
  int64_t NumIndexes() const { return Count("index list -o json", "llama.cpp-"); }
  // How often `what` is in what a command prints.
  int64_t Count(const std::string& command, const std::string& what) const {
    std::string list;
    EXPECT_EQ(Run(command, &list), 0);
    int64_t count = 0;
    for (size_t at = 0; (at = list.find(what, at)) != std::string::npos; ++at) ++count;
    return count;
  }

 private:
  const TempFolder folder_;
  const std::string memory_, endpoint_;
  pid_t pid_ = 0;
};

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_TESTS_REMOTE_REMOTE_SERVER_H_
