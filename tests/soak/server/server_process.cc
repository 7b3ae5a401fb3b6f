#include "tests/soak/server/server_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace seine::soak {

ChildProcess::ChildProcess(std::vector<std::string> command, const std::string& folder, const std::string& name,
                           int descriptors, int niceness)
    : output_(folder + "/" + name + ".log") {
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string output = output_;
  unlink(output.c_str());  // of a child before
  pid_ = fork();
  if (pid_ == 0) {
    const int fd = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    dup2(fd, 1);
    dup2(fd, 2);
    for (int other = 3; other < 1024; ++other) close(other);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (descriptors > 0) {
      const rlimit limit{static_cast<rlim_t>(descriptors), static_cast<rlim_t>(descriptors)};
      setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (niceness > 0) setpriority(PRIO_PROCESS, 0, niceness);
    execv(argv[0], argv.data());
    _exit(127);
  }
  sampler_ = std::thread([this] { Sample(); });
}

ChildProcess::~ChildProcess() {
  stop_ = true;
  sampler_.join();
  if (Alive()) Signal(SIGKILL);
  Wait(5);
}

bool ChildProcess::Alive() {
  if (!reaped_ && waitpid(pid_, &status_, WNOHANG) == pid_) reaped_ = true;
  return !reaped_;
}

void ChildProcess::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);  // pid -1 would be every process
}

int ChildProcess::Wait(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (Alive()) {
    if (std::chrono::steady_clock::now() > end) return -1000;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
}

std::string ChildProcess::Output() const {
  std::ifstream file(output_);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

int64_t ChildProcess::ResidentBytes() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int ChildProcess::Descriptors() const {
  std::error_code gone;
  const std::filesystem::directory_iterator open("/proc/" + std::to_string(pid_) + "/fd", gone);
  return gone ? -1 : static_cast<int>(std::distance(begin(open), end(open)));
}

void ChildProcess::Sample() {
  while (!stop_) {
    peak_ = std::max(peak_.load(), ResidentBytes());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

namespace {
std::string MakeFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "seine-soak-XXXXXX").string();
  return mkdtemp(pattern.data());
}
}  // namespace

TemporaryFolder::TemporaryFolder() : path(MakeFolder()) {}
TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

}  // namespace seine::soak
