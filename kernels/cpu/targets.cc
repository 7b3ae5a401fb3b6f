// Choice of the instruction set: the best that the machine has, or what SEINE_SIMD or ForceTarget says.
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "hwy/highway.h"
#include "hwy/targets.h"
#include "kernels/cpu/targets.h"

namespace seine::cpu {
namespace {

std::atomic<bool> scalar_forced{false};

// Highway's name of the plain 128-bit emulation that x86-64 without SSE4 falls back to is kept as it is: EMU128.
int64_t TargetByName(const std::string& name) {
  for (int64_t bits = HWY_TARGETS; bits != 0; bits &= bits - 1) {
    const int64_t target = bits & -bits;
    if (name == hwy::TargetName(target)) return target;
  }
  return 0;
}

// SEINE_SIMD is read once, before the first operation. A target that this machine lacks is said, not silently replaced.
bool ReadEnvironment() {
  const char* name = std::getenv("SEINE_SIMD");
  if (name != nullptr && *name != 0 && !ForceTarget(name)) {
    std::fprintf(stderr, "SEINE_SIMD=%s is not supported here; using %s\n", name, TargetName().c_str());
  }
  return true;
}
const bool kEnvironmentRead = ReadEnvironment();

}  // namespace

bool ScalarForced() { return scalar_forced.load(std::memory_order_relaxed); }

std::string TargetName() {
  if (ScalarForced()) return "SCALAR";
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(targets & -targets);  // lower bits are better targets
}

std::vector<std::string> SupportedTargets() {
  hwy::SetSupportedTargetsForTest(0);
  std::vector<std::string> names;
  for (int64_t bits = hwy::SupportedTargets() & HWY_TARGETS; bits != 0; bits &= bits - 1) {
    names.push_back(hwy::TargetName(bits & -bits));
  }
  names.push_back("SCALAR");
  return names;
}

bool ForceTarget(const std::string& name) {
  hwy::SetSupportedTargetsForTest(0);
  const int64_t available = hwy::SupportedTargets() & HWY_TARGETS;
  const int64_t target = name.empty() || name == "SCALAR" ? available : TargetByName(name) & available;
  if (target == 0) return false;
  scalar_forced = name == "SCALAR";
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(target);
  return true;
}

}  // namespace seine::cpu
