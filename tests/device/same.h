// Answers of two backends compared: where they first differ, and by what values.
#ifndef SEINE_TESTS_DEVICE_SAME_H_
#define SEINE_TESTS_DEVICE_SAME_H_

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops/query/search.h"
#include "tests/device/suite.h"

namespace seine::device {

std::string TextOf(float value);  // with its bits
std::string TextOf(double value);
template <typename T>
std::string TextOf(T value) {
  return std::to_string(value);
}

// A value and its place; no item or shape yet.
inline Difference DifferAt(std::string position, std::string cpu, std::string gpu) {
  Difference d;
  d.position = std::move(position), d.cpu = std::move(cpu), d.gpu = std::move(gpu);
  return d;
}

// By bits, so that 0 and -0 differ.
template <typename T>
std::optional<Difference> FirstDifference(const std::string& what, const std::vector<T>& cpu,
                                          const std::vector<T>& gpu) {
  for (size_t i = 0; i < cpu.size() && i < gpu.size(); ++i) {
    if (memcmp(&cpu[i], &gpu[i], sizeof(T)) == 0) continue;
    return DifferAt(what + "[" + std::to_string(i) + "]", TextOf(cpu[i]), TextOf(gpu[i]));
  }
  if (cpu.size() == gpu.size()) return std::nullopt;
  return DifferAt("number of " + what, TextOf(cpu.size()), TextOf(gpu.size()));
}

// Sets, scores, masses and candidates.
std::optional<Difference> FirstDifference(const SearchOutput& cpu, const SearchOutput& gpu);

// Counts an item of a part, and keeps the part's first difference.
inline void Count(PartResult* result, std::optional<Difference> difference, const std::string& shape) {
  const int64_t item = result->count++;
  if (!difference) return;
  ++result->wrong;
  if (result->first) return;
  result->first = std::move(difference);
  result->first->item = item;
  result->first->shape = shape;
}

// The part ends with a call that failed; false, so that callers may return.
inline bool Fail(PartResult* result, const std::string& call) {
  if (result->error.empty()) result->error = call;
  return false;
}
std::string NameOf(Outcome outcome);

}  // namespace seine::device

#endif  // SEINE_TESTS_DEVICE_SAME_H_
