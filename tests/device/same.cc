#include "tests/device/same.h"

#include <cstdio>

#include "kernels/math.h"

namespace seine::device {

std::string TextOf(float value) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.9g (0x%08x)", static_cast<double>(value), FloatBits(value));
  return text;
}

std::string TextOf(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

std::string NameOf(Outcome outcome) {
  switch (outcome) {
    case Outcome::kDone:
      return "done";
    case Outcome::kNoMemory:
      return "no memory";
    case Outcome::kLost:
      return "the device is lost";
    case Outcome::kStopped:
      return "stopped";
  }
  return "?";
}

std::optional<Difference> FirstDifference(const SearchOutput& cpu, const SearchOutput& gpu) {
  const auto rows = [](const char* what, const auto& a, const auto& b) -> std::optional<Difference> {
    if (a.size() != b.size()) return DifferAt(std::string("number of ") + what, TextOf(a.size()), TextOf(b.size()));
    for (size_t r = 0; r < a.size(); ++r) {
      if (auto d = FirstDifference(what + std::to_string(r) + " ", a[r], b[r])) return d;
    }
    return std::nullopt;
  };
  if (auto d = rows("candidates of query ", cpu.candidates, gpu.candidates)) return d;
  if (auto d = rows("positions of set ", cpu.positions, gpu.positions)) return d;
  if (auto d = rows("scores of set ", cpu.scores, gpu.scores)) return d;
  if (auto d = FirstDifference("masses", cpu.masses, gpu.masses)) return d;
  return FirstDifference("capped", cpu.capped, gpu.capped);
}

}  // namespace seine::device
