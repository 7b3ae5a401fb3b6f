// seine-device-suite [--small] [--items N] [--no-timings] [--json FILE] [--commit ID]: exit code 0 if every check
// passed, 1 if one failed, 2 for wrong flags, 3 where there is no device.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "kernels/cpu/targets.h"
#include "tests/device/suite.h"

int main(int argc, char** argv) {
  seine::device::SuiteOptions options;
  bool timings = true;
  std::string json_path, commit;
  for (int i = 1; i < argc; ++i) {
    const bool more = i + 1 < argc;
    if (!strcmp(argv[i], "--small")) {
      options.small = true;
      options.items = 40;
    } else if (!strcmp(argv[i], "--no-timings")) {
      timings = false;
    } else if (!strcmp(argv[i], "--items") && more) {
      options.items = std::atoi(argv[++i]);
    } else if (!strcmp(argv[i], "--json") && more) {
      json_path = argv[++i];
    } else if (!strcmp(argv[i], "--commit") && more) {
      commit = argv[++i];
    } else {
      std::fprintf(stderr, "seine-device-suite: %s: [--small] [--items N] [--no-timings] [--json FILE] [--commit ID]\n",
                   argv[i]);
      return 2;
    }
  }
  std::string why;
  const auto cpu = seine::MakeCpuBackend(0), gpu = seine::MakeBackend("cuda", 0, &why);
  if (gpu == nullptr) {
    std::fprintf(stderr, "seine-device-suite: %s\n", why.c_str());
    return 3;
  }
  nlohmann::ordered_json report;
  report["commit"] = commit;
  report["machine"] = seine::device::DescribeMachine();
  report["machine"]["simd_target"] = seine::cpu::TargetName();
  report["checks"] = seine::device::RunChecks(options, cpu.get(), gpu.get());
  bool passed = true;
  for (const auto& check : report["checks"]) passed = passed && check["passed"].get<bool>();
  if (passed && timings) report["timings"] = seine::device::RunTimings(gpu.get());
  if (!gpu->loss().empty()) {
    std::fprintf(stderr, "seine-device-suite: the device is lost: %s\n", gpu->loss().c_str());
    passed = false;
  }
  report["passed"] = passed;
  const std::string text = report.dump(1) + "\n";
  std::fputs(text.c_str(), stdout);
  if (!json_path.empty()) std::ofstream(json_path) << text;
  return passed ? 0 : 1;
}
