#include "engines/python/paged/team.h"

#include <dlfcn.h>

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engines/python/values/errors.h"

namespace seine::python {
namespace {

struct Work {
  const std::function<void(int)>* task;
  int count;
  std::atomic<int> next;
};

void Take(void* data) {
  auto* work = static_cast<Work*>(data);
  for (int i; (i = work->next.fetch_add(1, std::memory_order_relaxed)) < work->count;) (*work->task)(i);
}

}  // namespace

Team::Team(int threads) {
  if (threads < 0) ThrowValueError(absl::StrCat("threads: must be 0 or more, not ", threads));
  if (threads == 0) {
    parallel_ = reinterpret_cast<Parallel*>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    count_ = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  }
  if (!openmp()) backend_ = MakeCpuBackend(threads);
}

Team::~Team() {
  if (!made_.here()) client::KeepForEver(std::move(backend_));
}

void Team::Run(int count, const std::function<void(int)>& task) {
  if (!openmp()) return backend_->Run(count, task);
  if (count == 1) return task(0);
  Work work{&task, count, {0}};
  parallel_(&Take, &work, 0, 0);
}

}  // namespace seine::python
