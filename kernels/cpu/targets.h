// Choice of the instruction set that the vector operations run on: the best that the machine has (Highway), or what
// SEINE_SIMD or ForceTarget says: SCALAR (plain C++ twins), SSE4, AVX2, AVX3, AVX3_DL (AVX-512 with VBMI and VNNI),
// NEON. Every operation gives the same bits on every target: sums run in a fixed order of 16 lanes and no multiply-add
// is fused.
#ifndef SEINE_KERNELS_CPU_TARGETS_H_
#define SEINE_KERNELS_CPU_TARGETS_H_

#include <string>
#include <vector>

namespace seine::cpu {

// Name of the target in use, and those that this machine can run (best first, "SCALAR" last).
std::string TargetName();
std::vector<std::string> SupportedTargets();
// Forces a target for the whole process (tests, benches). Empty: back to automatic. False if not supported here.
// Not thread-safe against running operations.
bool ForceTarget(const std::string& name);

// True while the target is SCALAR: an operation then calls its twin in namespace scalar.
bool ScalarForced();

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_CPU_TARGETS_H_
