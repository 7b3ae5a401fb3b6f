// A process of the program seined, and what its tests share.
#ifndef SEINE_TESTS_SERVICE_SEINED_SEINED_PROCESS_H_
#define SEINE_TESTS_SERVICE_SEINED_SEINED_PROCESS_H_
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "tests/service/fixture.h"

namespace seine::test {

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

inline int64_t Lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

// A seined of its own, its output in files.
class Process {
 public:
  // With `terminal`, the path of a pseudo-terminal, that is the process's own; else it has none. `err`: a descriptor
  // that stderr is instead of the file.
  Process(const std::string& folder, const std::vector<std::string>& flags,
          const std::vector<std::string>& environment = {}, const std::string& terminal = "", bool nohup = false,
          int err = -1)
      : out_(folder + "/out"), err_(folder + "/err") {
    std::vector<std::string> words = {SEINED_PATH};
    words.insert(words.end(), flags.begin(), flags.end());
    unlink(out_.c_str());  // of a process before
    unlink(err_.c_str());
    pid_ = fork();
    if (pid_ == 0) {
      setsid();
      if (!terminal.empty()) ioctl(open(terminal.c_str(), O_RDWR), TIOCSCTTY, 0);
      if (nohup) signal(SIGHUP, SIG_IGN);
      Become(words, environment, err);
    }
  }
  ~Process() {
    if (pid_ > 0) kill(pid_, SIGKILL), Wait();
  }

  void Signal(int signal) const {  // pid -1 would be every process
    if (pid_ > 0) kill(pid_, signal);
  }
  pid_t pid() const { return pid_; }
  // Exit code, or minus the signal that ended it.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string out() const { return ReadFile(out_); }
  std::string err() const { return ReadFile(err_); }
  bool WaitForLine(const std::string& text) const {
    for (int i = 0; i < 1000; ++i) {
      if (err().find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  [[noreturn]] void Become(std::vector<std::string>& words, const std::vector<std::string>& environment, int err) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    for (const std::string& entry : environment) putenv(const_cast<char*>(entry.c_str()));
    const int out = open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (err < 0) err = open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(out, 1);
    dup2(err, 2);
    execv(arguments[0], arguments.data());
    _exit(127);
  }

  const std::string out_, err_;
  pid_t pid_ = -1;
};

class SeinedTest : public ::testing::Test {
 protected:
  std::string socket() const { return "unix:" + dir_.path + "/seine.sock"; }
  TempDir dir_;
};

inline bool Creates(const Stubs& stubs, const v1::IndexSpec& spec) {
  v1::CreateIndexRequest create;
  v1::CreateIndexResponse created;
  *create.mutable_spec() = spec;
  return Call(*stubs.index, &v1::IndexService::Stub::CreateIndex, create, &created).ok();
}

inline bool Holds(const Stubs& stubs, const std::string& name) {
  v1::GetIndexRequest get;
  v1::GetIndexResponse got;
  get.set_name(name);
  return Call(*stubs.index, &v1::IndexService::Stub::GetIndex, get, &got).ok();
}

}  // namespace seine::test

#endif  // SEINE_TESTS_SERVICE_SEINED_SEINED_PROCESS_H_
