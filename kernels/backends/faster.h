// A trial of two backends on this machine: a device is worth its memory only where it searches faster than the CPU
// beside it.
#ifndef SEINE_KERNELS_BACKENDS_FASTER_H_
#define SEINE_KERNELS_BACKENDS_FASTER_H_

#include <memory>
#include <optional>
#include <string>

#include "kernels/backend.h"

namespace seine {

// One layer's search of a decode step, by default settings, with 4 query heads a KV head.
struct Trial {
  int kv_heads = 8, keys = 16384, runs = 7;
};
// Median microseconds of its runs. nullopt where a call fails or memory is short.
std::optional<double> TrialUs(const Trial& trial, Backend* backend);

// `device` where it took less time than `cpu`, else `cpu` and, in *why, both times or what failed. Whichever is not
// taken is gone when this returns.
std::unique_ptr<Backend> FasterBackend(const Trial& trial, std::unique_ptr<Backend> device,
                                       std::unique_ptr<Backend> cpu, std::string* why);

}  // namespace seine

#endif  // SEINE_KERNELS_BACKENDS_FASTER_H_
