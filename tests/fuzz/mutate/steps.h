// Inputs of several parts: each is a byte that says what it is, a length in four bytes, and its bytes. Any input is
// one, so that libFuzzer may change it as it likes.
#ifndef SEINE_TESTS_FUZZ_MUTATE_STEPS_H_
#define SEINE_TESTS_FUZZ_MUTATE_STEPS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/fuzz/mutate/bytes.h"

namespace seine::fuzz {

struct Step {
  uint8_t kind = 0;
  std::string bytes;
};

// At most `most` of them; a length beyond the end is cut.
std::vector<Step> Unpack(absl::string_view input, size_t most);
std::string Pack(const std::vector<Step>& steps);

// One change: a step comes (out of `seeds`, if there are any), goes, moves, or is changed by `change`.
std::string MutateSteps(const std::string& input, size_t most, const std::vector<std::string>& seeds, Random& random,
                        const std::function<void(Step*)>& change);

}  // namespace seine::fuzz

#endif  // SEINE_TESTS_FUZZ_MUTATE_STEPS_H_
