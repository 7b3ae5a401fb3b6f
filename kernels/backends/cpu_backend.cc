// The CPU backend: memory in huge pages where it is large, tasks spread over a thread pool.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "kernels/backend.h"
#include "kernels/cpu/targets.h"
#include "kernels/huge_pages.h"
#include "kernels/machine/limits.h"
#include "kernels/ops/learn/oja_cpu.h"
#include "kernels/ops/low_rank/low_rank_cpu.h"
#include "kernels/ops/scan/scan.h"
#include "kernels/ops/score_keys/score_keys_cpu.h"
#include "kernels/ops/search/search_cpu.h"
#include "kernels/ops/select/select.h"
#include "kernels/stop.h"
#include "kernels/thread_pool.h"

namespace seine {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
// Below this much work a wake-up of other threads (20-50 us) costs more than it saves.
constexpr double kWorthSharingNs = 60e3;

size_t WholeHugePages(size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

// Fresh pages of the kernel's: what the heap gives again lies in the small pages that it was first touched in.
uint8_t* MapHugePages(size_t bytes) {
  const size_t length = WholeHugePages(bytes);
  void* mapped = mmap(nullptr, length + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  uint8_t* begin = static_cast<uint8_t*>(mapped);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) munmap(begin, before);
  uint8_t* data = begin + before;
  if (before < kHugePage) munmap(data + length, kHugePage - before);
  // The last page is a huge one where nearly all of it is used, for it is taken whole.
  AskForHugePages(data, (bytes + kHugePage / 16) / kHugePage * kHugePage);
  return data;
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int threads) : pool_(threads) {}
  std::string name() const override { return "cpu"; }
  std::string simd_target() const override { return cpu::TargetName(); }
  int num_threads() const override { return pool_.size(); }

  Buffer Allocate(size_t bytes, MemorySpace space) override {
    if (bytes == 0) return Buffer();
    uint8_t* data = bytes >= kHugePage ? MapHugePages(bytes)
                                       : static_cast<uint8_t*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    return data != nullptr ? Buffer(this, space, data, bytes) : Buffer();
  }
  void Free(uint8_t* data, size_t bytes, MemorySpace) override {
    if (bytes >= kHugePage) {
      munmap(data, WholeHugePages(bytes));
    } else {
      std::free(data);
    }
  }

  Outcome Copy(const CopyTask* tasks, int count) override {
    for (int i = 0; i < count; ++i) std::memcpy(tasks[i].to, tasks[i].from, tasks[i].bytes);
    return Outcome::kDone;
  }
  Outcome Zero(uint8_t* data, size_t bytes) override {
    std::memset(data, 0, bytes);
    return Outcome::kDone;
  }
  Outcome CountCodes(const CountTask* tasks, int count) override {
    for (int i = 0; i < count; ++i) {
      const CountTask& t = tasks[i];
      cpu::CountCodes(t.planes, *t.layout, t.begin, t.end, t.sign, t.counts);
    }
    return Outcome::kDone;
  }

  Outcome Encode(const EncodeTask* tasks, int count) override {
    const auto run = [&](int i) {
      tasks[i].codec->Encode(tasks[i].keys, tasks[i].num_keys, tasks[i].shared_centre, tasks[i].out);
    };
    double work = 0;
    for (int i = 0; i < count; ++i) work += 150.0 * tasks[i].num_keys;
    return Spread(count, work, run);
  }

  Outcome Search(const SearchTask* tasks, int count, const SearchParams& params, SearchOutput* outputs,
                 const ProgressCallback& progress) override {
    const std::thread::id caller = std::this_thread::get_id();
    const auto run = [&](int i) {
      if (progress && std::this_thread::get_id() == caller) progress(count - i);
      const bool other_codec = i + 1 < count && tasks[i + 1].codec != tasks[i].codec;
      cpu::SearchOne(tasks[i], params, &outputs[i], other_codec ? tasks[i + 1].codec : nullptr);
    };
    double work = 0;
    for (int i = 0; i < count; ++i) {
      const double keys = static_cast<double>(tasks[i].num_keys);
      const double share = ShareKept(params, kDefaultCandidateFraction);
      work += tasks[i].group * (5e3 + keys * (params.method == Method::kExact ? 15.0 : 0.8 + 15.0 * share));
    }
    return Spread(count, work, run);
  }

  Outcome Sum(const SumTask* tasks, int count) override {
    double work = 0;
    for (int i = 0; i < count; ++i) work += 10.0 * static_cast<double>(tasks[i].count);
    return Spread(count, work, [&](int i) { cpu::SumKeys(tasks[i]); });
  }
  Outcome Score(const ScoreTask* tasks, int count) override {
    double work = 0;
    for (int i = 0; i < count; ++i) work += 10.0 * static_cast<double>(tasks[i].count);
    return Spread(count, work, [&](int i) { cpu::ScoreKeys(tasks[i]); });
  }
  Outcome Select(const SelectTask* tasks, int count) override {
    double work = 0;
    for (int i = 0; i < count; ++i) work += static_cast<double>(tasks[i].count);
    return Spread(count, work, [&](int i) {
      std::vector<float> scratch;
      const SelectTask& t = tasks[i];
      SelectLargest(t.scores, static_cast<size_t>(t.count), static_cast<size_t>(t.kept), &scratch, t.places);
    });
  }

  Outcome Project(const ProjectTask* tasks, int count) override {
    double work = 0;
    for (int i = 0; i < count; ++i) work += 600.0 * static_cast<double>(tasks[i].count);
    return Spread(count, work, [&](int i) { cpu::Project(tasks[i]); });
  }
  Outcome Rebuild(const RebuildTask* tasks, int count) override {
    double work = 0;
    for (int i = 0; i < count; ++i) work += 300.0 * static_cast<double>(tasks[i].count);
    return Spread(count, work, [&](int i) { cpu::Rebuild(tasks[i]); });
  }
  Outcome Learn(const LearnTask* tasks, int count) override {
    double work = 0;
    for (int i = 0; i < count; ++i) work += 2000.0 * static_cast<double>(tasks[i].count);
    return Spread(count, work, [&](int i) { cpu::Learn(tasks[i]); });
  }

  void Run(int count, const std::function<void(int)>& fn) override { pool_.Run(count, fn); }

 private:
  Outcome Spread(int count, double work_ns, const std::function<void(int)>& run) {
    if (count > 1 && work_ns > kWorthSharingNs) {
      pool_.Run(count, run);
    } else {
      for (int i = 0; i < count && !StopRequested(); ++i) run(i);
    }
    return StopRequested() ? Outcome::kStopped : Outcome::kDone;
  }
  ThreadPool pool_;
};

}  // namespace

Buffer& Buffer::operator=(Buffer&& o) noexcept {
  if (this == &o) return *this;
  if (data_ != nullptr) backend_->Free(data_, size_, space_);
  backend_ = o.backend_;
  space_ = o.space_;
  data_ = o.data_;
  size_ = o.size_;
  o.data_ = nullptr;
  o.size_ = 0;
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) backend_->Free(data_, size_, space_);
}

std::unique_ptr<Backend> MakeCpuBackend(int threads) {
  if (threads <= 0) threads = DefaultThreads();
  return std::make_unique<CpuBackend>(threads);
}

}  // namespace seine
