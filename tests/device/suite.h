// What the device suite is made of: checks of the CUDA backend and timings of its kernels, on a machine that has
// nothing but a driver. No GoogleTest, no gRPC: the program is built elsewhere and carried there (`./dev device`).
#ifndef SEINE_TESTS_DEVICE_SUITE_H_
#define SEINE_TESTS_DEVICE_SUITE_H_

#include <nlohmann/json.hpp>
#include <string>

#include "kernels/backend.h"

namespace seine::device {

struct SuiteOptions {
  bool small = false;  // sizes for compute-sanitizer
  int items = 10000;   // random ones, compared with the CPU
};

// Runs every check against `gpu`; what fails is printed. One entry a check, with "passed".
nlohmann::ordered_json RunChecks(const SuiteOptions& options, Backend* cpu, Backend* gpu);

// Copy and link bandwidth, each kernel's time and share, whole steps, encoding, gathering.
nlohmann::ordered_json RunTimings(Backend* cpu, Backend* gpu);

// Name, driver, sizes of the device.
nlohmann::ordered_json DescribeMachine();

}  // namespace seine::device

#endif  // SEINE_TESTS_DEVICE_SUITE_H_
