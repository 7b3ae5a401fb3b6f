// One part run within its limit, and what its JSON says.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>

#include "tests/device/suite.h"

namespace seine::device {
namespace {

// Looks at the device's memory every few milliseconds, from a thread of its own, while it lives.
class PeakMemory {
 public:
  PeakMemory() : peak_(BytesInUse()), watcher_([this] { Watch(); }) {}
  PeakMemory(const PeakMemory&) = delete;
  ~PeakMemory() { End(); }
  // Bytes of the device that were in use at most.
  int64_t End() {
    over_ = true;
    if (watcher_.joinable()) watcher_.join();
    return peak_;
  }

 private:
  void Watch() {
    while (!over_) {
      peak_ = std::max<int64_t>(peak_, BytesInUse());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    peak_ = std::max<int64_t>(peak_, BytesInUse());
  }
  std::atomic<bool> over_{false};
  std::atomic<int64_t> peak_;
  std::thread watcher_;
};

int64_t PeakHostBytes() {
  rusage usage;
  return getrusage(RUSAGE_SELF, &usage) == 0 ? int64_t{usage.ru_maxrss} * 1024 : 0;
}

void Say(const Part& part, const PartResult& r) {
  std::fprintf(stderr, "%s: %s: %s (%lld of %lld", part.name.c_str(), part.what.c_str(),
               r.passed() ? "passed" : "FAILED", static_cast<long long>(r.count), static_cast<long long>(r.planned));
  std::fprintf(stderr, "%s, %lld wrong)\n", r.count < r.planned ? ", then time was up" : "",
               static_cast<long long>(r.wrong));
  if (!r.error.empty()) std::fprintf(stderr, "  %s\n", r.error.c_str());
  if (r.count == 0 && r.error.empty()) std::fprintf(stderr, "  nothing was compared, which shows nothing\n");
  if (!r.first) return;
  std::fprintf(stderr, "  first difference: item %lld: %s\n  %s: CPU %s, device %s\n",
               static_cast<long long>(r.first->item), r.first->shape.c_str(), r.first->position.c_str(),
               r.first->cpu.c_str(), r.first->gpu.c_str());
}

}  // namespace

Json RunPart(const Part& part, const SuiteOptions& options, double limit_s, Backend* cpu, Backend* gpu) {
  const auto begin = std::chrono::steady_clock::now();
  const auto limit =
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(limit_s));
  PeakMemory memory;
  PartResult r = part.run({options, cpu, gpu, begin + limit});
  if (r.error.empty() && !gpu->loss().empty()) r.error = "the device is lost: " + gpu->loss();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  Say(part, r);
  Json json = {{"part", part.name},
               {"what", part.what},
               {"passed", r.passed()},
               {"count", r.count},
               {"planned", r.planned},
               {"wrong", r.wrong},
               {"seconds", seconds},
               {"limit_s", limit_s},
               {"seed", options.seed},
               {"small", options.small},
               {"peak_device_bytes", memory.End()},
               {"peak_host_bytes", PeakHostBytes()}};
  if (!r.error.empty()) json["error"] = r.error;
  if (r.first) {
    json["first_difference"] = {{"item", r.first->item},
                                {"shape", r.first->shape},
                                {"position", r.first->position},
                                {"cpu", r.first->cpu},
                                {"device", r.first->gpu}};
  }
  if (!r.figures.is_null()) json["figures"] = r.figures;
  return json;
}

}  // namespace seine::device
