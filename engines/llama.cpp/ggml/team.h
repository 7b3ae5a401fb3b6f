// ggml's own threads: what runs on them, and whole nodes that are left to its CPU backend.
#ifndef SEINE_ENGINES_LLAMA_CPP_GGML_TEAM_H_
#define SEINE_ENGINES_LLAMA_CPP_GGML_TEAM_H_

#include <atomic>
#include <functional>

#include "ggml-backend.h"
#include "ggml.h"

namespace seine::llama {

// One thread at a time calls it.
class Team {
 public:
  Team();
  ~Team();
  Team(const Team&) = delete;

  void SetThreads(int count);
  int threads() const { return threads_; }
  // fn(i) for i in [0, count), each once, in order of their beginning.
  void Run(int count, const std::function<void(int)>& fn);
  // As llama.cpp would have computed it. `alone`: on the calling thread, which small nodes do not wait for others on.
  ggml_status Compute(ggml_tensor* node, bool alone = false);

 private:
  static void Work(ggml_tensor* dst, int thread, int threads, void* team);

  void SetCpuThreads(int count);

  ggml_backend_t cpu_;
  ggml_context* context_;
  ggml_cgraph* work_;  // one node that runs tasks
  ggml_cgraph* node_;  // the one that Compute is given
  ggml_backend_set_n_threads_t set_threads_;
  int threads_ = 1;
  const std::function<void(int)>* fn_ = nullptr;
  int count_ = 0;
  std::atomic<int> next_{0};
};

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_GGML_TEAM_H_
