// The emulated device (tests/kernels/cuda/host_device.h) under Python: cuda:N is one of its own for each N. Its memory
// is reached by the functions below alone, as a GPU's is by a copy (emulated.py).
#include "engines/python/connections/open_backend.h"

#include <cstring>
#include <map>
#include <utility>

#include "service/backends/forwarding_backend.h"
#include "tests/kernels/cuda/host_device.h"

namespace seine::python {
namespace {

class Emulated;
std::map<int, Emulated*> opened;  // by ordinal; tests have one thread, and one backend of an ordinal at a time

class Emulated final : public ForwardingBackend {
 public:
  Emulated(int ordinal, std::unique_ptr<Backend> device) : ForwardingBackend(std::move(device)), ordinal_(ordinal) {
    opened[ordinal_] = this;
  }
  ~Emulated() override { opened.erase(ordinal_); }
  using Backend::Search;

  void* Put(const void* data, size_t bytes) {
    Buffer there = inner_->Allocate(bytes, MemorySpace::kCodes), here = inner_->Allocate(bytes, MemorySpace::kStore);
    if (!there || !here) return nullptr;
    std::memcpy(here.data(), data, bytes);
    const CopyTask copy = {there.data(), here.data(), bytes};
    if (inner_->Copy(&copy, 1) != Outcome::kDone) return nullptr;
    void* const at = there.data();
    tensors_[at] = std::move(there);
    return at;
  }
  bool Get(const void* from, void* to, size_t bytes) {
    const Buffer here = inner_->Allocate(bytes, MemorySpace::kStore);
    const CopyTask copy = {here.data(), from, bytes};
    if (!here || inner_->Copy(&copy, 1) != Outcome::kDone) return false;
    std::memcpy(to, here.data(), bytes);
    return true;
  }
  void Drop(void* at) { tensors_.erase(at); }

 private:
  const int ordinal_;
  std::map<void*, Buffer> tensors_;
};

}  // namespace

std::unique_ptr<Backend> OpenBackend(const std::string& name, int threads, std::string* why) {
  if (name.rfind("cuda", 0) != 0) return MakeBackend(name, threads, why);
  auto device = cuda::BackendOn(std::make_shared<cuda::HostDeviceControl>());
  return std::make_unique<Emulated>(name.size() > 5 ? name[5] - '0' : 0, std::move(device));
}

}  // namespace seine::python

#define SEINE_EXPORTED extern "C" __attribute__((visibility("default")))

SEINE_EXPORTED void* seine_emulated_put(int ordinal, const void* data, size_t bytes) {
  return seine::python::opened.at(ordinal)->Put(data, bytes);
}
SEINE_EXPORTED bool seine_emulated_get(int ordinal, const void* from, void* to, size_t bytes) {
  return seine::python::opened.at(ordinal)->Get(from, to, bytes);
}
SEINE_EXPORTED void seine_emulated_drop(int ordinal, void* at) {
  const auto found = seine::python::opened.find(ordinal);
  if (found != seine::python::opened.end()) found->second->Drop(at);
}
