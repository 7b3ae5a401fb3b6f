#include "service/metrics/counted_backend.h"

#include <utility>

namespace seine {
namespace {

int64_t Updates(const LearnTask* tasks, int count) {
  int64_t updates = 0;
  for (int i = 0; i < count; ++i) updates += tasks[i].stats->updates;
  return updates;
}

// Buffers are the inner backend's own, so they are freed there.
class CountedBackend final : public Backend {
 public:
  CountedBackend(std::unique_ptr<Backend> inner, std::shared_ptr<Counts> counts)
      : inner_(std::move(inner)), counts_(std::move(counts)) {}

  std::string name() const override { return inner_->name(); }
  std::string simd_target() const override { return inner_->simd_target(); }
  int num_threads() const override { return inner_->num_threads(); }
  bool codes_on_device() const override { return inner_->codes_on_device(); }
  std::string loss() const override { return inner_->loss(); }
  Buffer Allocate(size_t bytes, MemorySpace space) override { return inner_->Allocate(bytes, space); }
  void Free(uint8_t* data, size_t bytes, MemorySpace space) override { inner_->Free(data, bytes, space); }
  Outcome Copy(const CopyTask* tasks, int count) override { return inner_->Copy(tasks, count); }
  Outcome Zero(uint8_t* data, size_t bytes) override { return inner_->Zero(data, bytes); }
  Outcome CountCodes(const CountTask* tasks, int count) override { return inner_->CountCodes(tasks, count); }
  Outcome Encode(const EncodeTask* tasks, int count) override {
    const StageClock clock(counts_.get(), Stage::kEncode);
    return inner_->Encode(tasks, count);
  }
  using Backend::Search;
  Outcome Search(const SearchTask* tasks, int count, const SearchParams& params, SearchOutput* outputs,
                 const ProgressCallback& progress) override {
    return inner_->Search(tasks, count, params, outputs, progress);
  }
  Outcome Sum(const SumTask* tasks, int count) override { return inner_->Sum(tasks, count); }
  Outcome Score(const ScoreTask* tasks, int count) override { return inner_->Score(tasks, count); }
  Outcome Select(const SelectTask* tasks, int count) override { return inner_->Select(tasks, count); }
  Outcome Project(const ProjectTask* tasks, int count) override {
    const StageClock clock(counts_.get(), Stage::kProject);
    return inner_->Project(tasks, count);
  }
  Outcome Rebuild(const RebuildTask* tasks, int count) override { return inner_->Rebuild(tasks, count); }
  Outcome Learn(const LearnTask* tasks, int count) override {
    const int64_t before = Updates(tasks, count);
    const Outcome outcome = inner_->Learn(tasks, count);
    counts_->SubspacesUpdated(Updates(tasks, count) - before);
    return outcome;
  }
  void Run(int count, const std::function<void(int)>& fn) override { inner_->Run(count, fn); }

 private:
  const std::unique_ptr<Backend> inner_;
  const std::shared_ptr<Counts> counts_;
};

}  // namespace

std::unique_ptr<Backend> WithCounts(std::unique_ptr<Backend> backend, std::shared_ptr<Counts> counts) {
  if (counts == nullptr) return backend;
  return std::make_unique<CountedBackend>(std::move(backend), std::move(counts));
}

}  // namespace seine
