// A backend whose every operation is another's: the base of those that change a few of them.
#ifndef SEINE_SERVICE_BACKENDS_FORWARDING_BACKEND_H_
#define SEINE_SERVICE_BACKENDS_FORWARDING_BACKEND_H_

#include <memory>
#include <string>
#include <utility>

#include "kernels/backend.h"

namespace seine {

// Thread-safe, as backends are. Buffers are the inner backend's own, so they are freed there.
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

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
  Outcome Encode(const EncodeTask* tasks, int count) override { return inner_->Encode(tasks, count); }
  using Backend::Search;
  Outcome Search(const SearchTask* tasks, int count, const SearchParams& params, SearchOutput* outputs,
                 const ProgressCallback& progress) override {
    return inner_->Search(tasks, count, params, outputs, progress);
  }
  DeviceAttention* attention() override { return inner_->attention(); }
  Outcome Sum(const SumTask* tasks, int count) override { return inner_->Sum(tasks, count); }
  Outcome Score(const ScoreTask* tasks, int count) override { return inner_->Score(tasks, count); }
  Outcome Select(const SelectTask* tasks, int count) override { return inner_->Select(tasks, count); }
  Outcome Project(const ProjectTask* tasks, int count) override { return inner_->Project(tasks, count); }
  Outcome Rebuild(const RebuildTask* tasks, int count) override { return inner_->Rebuild(tasks, count); }
  Outcome Learn(const LearnTask* tasks, int count) override { return inner_->Learn(tasks, count); }
  void Run(int count, const std::function<void(int)>& fn) override { inner_->Run(count, fn); }

 protected:
  const std::unique_ptr<Backend> inner_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_BACKENDS_FORWARDING_BACKEND_H_
