// Parts of the device suite: checks of a device's backend against the CPU's, and timings of its kernels. Each is
// a part with a name and a time limit. No GoogleTest, no gRPC: the program is built elsewhere and carried to a machine
// that has nothing but a driver (`./dev device`). The same checks run on the emulated device in ctest.
#ifndef SEINE_TESTS_DEVICE_SUITE_H_
#define SEINE_TESTS_DEVICE_SUITE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace seine::device {

using Json = nlohmann::ordered_json;

// Codes of an item: balanced of half a bit or one bit scanned a coordinate, or rsq.
enum class Bits : uint8_t { kHalf, kOne, kRsq };

struct SuiteOptions {
  bool small = false;    // sizes for compute-sanitizer, and for the emulated device
  int items = 10000;     // random ones, compared with the CPU
  uint64_t seed = 2026;  // of the first batch; the next has one more
  // Fixed for every item or timed shape; 0 or nothing: drawn, or each of a list. Timings have head_dim 128.
  int dim = 0, keys = 0, group = 0, batch = 0;
  std::optional<Bits> bits;
  std::optional<GqaReduce> reduce;
};

// The first value that differs from the CPU's.
struct Difference {
  int64_t item = 0;      // counted within the part
  std::string shape;     // of the item, with the seed that draws its batch again
  std::string position;  // within the answer
  std::string cpu, gpu;  // the two values
};

struct PartResult {
  int64_t planned = 0, count = 0, wrong = 0;  // items; fewer than planned where time ran out
  std::optional<Difference> first;
  std::string error;  // a call that failed, which ends the part
  Json figures;       // a timing's
  // A part of zero items has shown nothing.
  bool passed() const { return error.empty() && wrong == 0 && count > 0; }
};

// Backends that a part runs on, and its end.
struct Rig {
  const SuiteOptions& options;
  Backend* cpu;
  Backend* gpu;
  std::chrono::steady_clock::time_point deadline;
  bool Late() const { return std::chrono::steady_clock::now() >= deadline; }
};

struct Part {
  std::string name, what;
  double limit_s = 60;
  bool timing = false;
  std::function<PartResult(const Rig&)> run;
};

// Checks that run on any device: of searches, of a layer's other work, of attention; and the timings of this build's.
std::vector<Part> SearchChecks(const SuiteOptions& options);
std::vector<Part> LayerChecks(const SuiteOptions& options);
std::vector<Part> AttendChecks(const SuiteOptions& options);
std::vector<Part> Timings(const SuiteOptions& options);
Part LaunchFigures();  // a timing that needs no device

// This build's device: a GPU's (device_cuda.cu), or the emulated one (device_emulated.cc).
std::unique_ptr<Backend> OpenBackend(std::string* why);
int64_t BytesInUse();    // of the device's memory, now
Json DescribeMachine();  // name, driver, sizes

// Runs a part within `limit_s` and says how it ended, as JSON: name, passed, count, planned, wrong, first difference,
// seconds, peak memory of device and host, figures.
Json RunPart(const Part& part, const SuiteOptions& options, double limit_s, Backend* cpu, Backend* gpu);

}  // namespace seine::device

#endif  // SEINE_TESTS_DEVICE_SUITE_H_
