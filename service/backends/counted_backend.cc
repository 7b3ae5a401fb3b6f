#include "service/backends/counted_backend.h"

#include <utility>

#include "service/backends/forwarding_backend.h"

namespace seine {
namespace {

int64_t Updates(const LearnTask* tasks, int count) {
  int64_t updates = 0;
  for (int i = 0; i < count; ++i) updates += tasks[i].stats->updates;
  return updates;
}

class CountedBackend final : public ForwardingBackend {
 public:
  CountedBackend(std::unique_ptr<Backend> inner, std::shared_ptr<Counts> counts)
      : ForwardingBackend(std::move(inner)), counts_(std::move(counts)) {}

  Outcome Encode(const EncodeTask* tasks, int count) override {
    const StageClock clock(counts_.get(), Stage::kEncode);
    return inner_->Encode(tasks, count);
  }
  Outcome Project(const ProjectTask* tasks, int count) override {
    const StageClock clock(counts_.get(), Stage::kProject);
    return inner_->Project(tasks, count);
  }
  Outcome Learn(const LearnTask* tasks, int count) override {
    const int64_t before = Updates(tasks, count);
    const Outcome outcome = inner_->Learn(tasks, count);
    counts_->SubspacesUpdated(Updates(tasks, count) - before);
    return outcome;
  }

 private:
  const std::shared_ptr<Counts> counts_;
};

}  // namespace

std::unique_ptr<Backend> WithCounts(std::unique_ptr<Backend> backend, std::shared_ptr<Counts> counts) {
  if (counts == nullptr) return backend;
  return std::make_unique<CountedBackend>(std::move(backend), std::move(counts));
}

}  // namespace seine
