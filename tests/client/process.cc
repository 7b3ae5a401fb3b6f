// fork, exec and wait.
#include "tests/client/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"

namespace seine {
namespace {

// In the child between fork and exec. Never returns.
[[noreturn]] void Exec(const std::vector<std::string>& arguments) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is killed leaves no server behind
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

}  // namespace

Outcome RunProgram(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  int out[2], err[2];
  EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(err, O_CLOEXEC), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    for (const std::string& setting : environment) putenv(const_cast<char*>(setting.c_str()));
    Exec(arguments);
  }
  close(out[1]);
  close(err[1]);
  Outcome outcome;
  pollfd fds[] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  std::string* const texts[] = {&outcome.out, &outcome.err};
  for (int open = 2; open > 0;) {
    poll(fds, 2, -1);
    for (int i = 0; i < 2; ++i) {
      char buffer[4096];
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      const ssize_t got = read(fds[i].fd, buffer, sizeof(buffer));
      if (got > 0) {
        texts[i]->append(buffer, got);
      } else {
        close(fds[i].fd);
        fds[i].fd = -1;
        --open;
      }
    }
  }
  int status = 0;
  waitpid(pid, &status, 0);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

Server::Server(const std::vector<std::string>& flags, const std::string& endpoint)
    : endpoint_(endpoint.empty() ? "unix://" + folder_.Path("seine.sock") : endpoint) {
  std::vector<std::string> arguments = {SEINED_PROGRAM, "--listen", endpoint_, "--threads", "1",
                                        "--log-level",  "error"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  pid_ = fork();
  if (pid_ == 0) Exec(arguments);
}

Server::~Server() {
  if (pid_ <= 0) return;
  kill(pid_, SIGTERM);
  int status = 0;
  waitpid(pid_, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "seined ended with wait status " << status;
}

std::unique_ptr<client::Client> Server::Connect(const client::Options& options) const {
  client::Options patient = options;
  patient.wait_for_server = true;
  patient.connect_timeout = absl::Seconds(20);
  auto client = client::Client::Connect(endpoint_, patient);
  EXPECT_TRUE(client.ok()) << client.status();
  return client.ok() ? *std::move(client) : nullptr;
}

Outcome Server::Run(const std::vector<std::string>& arguments) const {
  constexpr int kMostTries = 24;  // two minutes
  Outcome outcome;
  for (int i = 0; i < kMostTries; ++i) {
    outcome = RunProgram(arguments, {"SEINE_SERVER=" + endpoint_});
    if (!absl::StrContains(outcome.err, "(no connection within ")) break;
  }
  return outcome;
}

void Server::Pause() {
  if (pid_ <= 0) return;  // kill would take -1 for every process of the machine; so below
  kill(pid_, SIGSTOP);
  waitpid(pid_, nullptr, WUNTRACED);  // until all its threads stand
}

void Server::Resume() {
  if (pid_ > 0) kill(pid_, SIGCONT);
}

void Server::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace seine
