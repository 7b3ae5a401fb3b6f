#include "tests/fuzz/mutate/steps.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace seine::fuzz {
namespace {

constexpr size_t kHead = 5;

}  // namespace

std::vector<Step> Unpack(absl::string_view input, size_t most) {
  std::vector<Step> steps;
  while (input.size() >= kHead && steps.size() < most) {
    uint32_t length = 0;
    memcpy(&length, input.data() + 1, sizeof(length));
    const size_t count = std::min<size_t>(length, input.size() - kHead);
    steps.push_back({static_cast<uint8_t>(input[0]), std::string(input.substr(kHead, count))});
    input.remove_prefix(kHead + count);
  }
  return steps;
}

std::string Pack(const std::vector<Step>& steps) {
  std::string input;
  for (const Step& step : steps) {
    const auto length = static_cast<uint32_t>(step.bytes.size());
    input.push_back(static_cast<char>(step.kind));
    input.append(reinterpret_cast<const char*>(&length), sizeof(length));
    input.append(step.bytes);
  }
  return input;
}

std::string MutateSteps(const std::string& input, size_t most, const std::vector<std::string>& seeds, Random& random,
                        const std::function<void(Step*)>& change) {
  std::vector<Step> steps = Unpack(input, most);
  const size_t at = random.Below(steps.size());
  if (steps.empty() || random.OneIn(8)) {
    if (!seeds.empty() && steps.size() < most) {
      std::vector<Step> others = Unpack(seeds[random.Below(seeds.size())], most);
      if (!others.empty()) steps.push_back(std::move(others[random.Below(others.size())]));
    }
  } else if (steps.size() > 1 && random.OneIn(12)) {
    steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(at));
  } else if (steps.size() > 1 && random.OneIn(12)) {
    std::swap(steps[at], steps[random.Below(steps.size())]);
  } else {
    change(&steps[at]);
  }
  return Pack(steps);
}

}  // namespace seine::fuzz
