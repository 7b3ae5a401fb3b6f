// Threads that attention runs on beside an engine's own work.
#ifndef SEINE_ENGINES_PYTHON_PAGED_TEAM_H_
#define SEINE_ENGINES_PYTHON_PAGED_TEAM_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "client/channel/fork.h"
#include "kernels/backend.h"

namespace seine::python {

// The threads that the engine's own operations run on, where it has loaded an OpenMP for the whole process as torch
// does: no thread is idle or two on a core while the engine's and ours take turns. Otherwise threads of our own.
class Team {
 public:
  // `threads`: 0 takes OpenMP's, or as many as there are cores. Throws ValueError where it is negative.
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;

  bool openmp() const { return parallel_ != nullptr && count_ != nullptr; }
  int threads() const { return openmp() ? count_() : backend_->num_threads(); }
  // FAILED_PRECONDITION in a child of fork, which has none of the threads.
  absl::Status Check() const { return made_.Check(); }

  // Calls task(0) to task(count - 1) and returns when all are done.
  void Run(int count, const std::function<void(int)>& task);

 private:
  using Parallel = void(void (*)(void*), void*, unsigned, unsigned);

  const client::MadeHere made_;
  Parallel* parallel_ = nullptr;
  int (*count_)() = nullptr;
  std::shared_ptr<Backend> backend_;
};

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_PAGED_TEAM_H_
