// A seined of the attack's own: started, watched (memory, life), ended.
#ifndef SEINE_TESTS_SOAK_SERVER_PROCESS_H_
#define SEINE_TESTS_SOAK_SERVER_PROCESS_H_

#include <sys/types.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace seine::soak {

// A child process whose output goes to files in a folder of its own.
class ChildProcess {
 public:
  // `descriptors`: its RLIMIT_NOFILE, 0: as ours. `niceness`: added to ours.
  ChildProcess(std::vector<std::string> command, const std::string& folder, const std::string& name, int descriptors,
               int niceness);
  ~ChildProcess();  // kills
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool Alive();
  void Signal(int signal) const;
  // Its exit code, or minus the signal that ended it; -1000: it has not ended within `seconds`.
  int Wait(double seconds);
  std::string Output() const;  // standard output and error so far
  int64_t ResidentBytes() const;
  int Descriptors() const;                                    // that it has open; -1: it is gone
  int64_t PeakResidentBytes() const { return peak_.load(); }  // of samples, every 10 ms

 private:
  void Sample();
  const std::string output_;
  pid_t pid_ = -1;
  bool reaped_ = false;
  int status_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> peak_{0};
  std::thread sampler_;
};

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::string path;
};

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_SERVER_PROCESS_H_
