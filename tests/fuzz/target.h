// What is fuzzed: one target a reader of foreign bytes, or a service. seine-fuzz drives them with libFuzzer (preset
// fuzz), and seine_fuzz_test with a few inputs of its own (every preset). `./dev soak fuzz` runs all for long.
//
// A new reader is a file in targets/, with a line in targets.h and list.cc. A new RPC is fuzzed as soon as it has a
// right request. An input that broke something goes to corpus/TARGET, small and with a name that says what it is.
#ifndef SEINE_TESTS_FUZZ_TARGET_H_
#define SEINE_TESTS_FUZZ_TARGET_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/fuzz/mutate/bytes.h"

namespace seine::fuzz {

class Target {
 public:
  virtual ~Target() = default;
  // Inputs that get far, to begin with.
  virtual std::vector<std::string> Seeds() = 0;
  // Ends the process where the code under test breaks a promise. Leaves no state behind that the next input could see.
  virtual void Run(absl::string_view input) = 0;
  // A changed input. Targets that know their inputs' structure keep it whole, mostly.
  virtual std::string Mutate(std::string input, Random& random, const ByteMutator& bytes) { return bytes(input); }
};

struct TargetEntry {
  std::string name;
  std::string what;
  int mutants;  // inputs of a short run (seine_fuzz_test)
  std::function<std::unique_ptr<Target>()> make;
};

// By name, each once.
const std::vector<TargetEntry>& Targets();

// Prints what is wrong and ends the process, as a sanitizer does.
[[noreturn]] void Fail(const std::string& what);

// A file in memory that holds the bytes; one at a time, and overwritten by the next. Returns its path.
const std::string& WriteInput(absl::string_view bytes, const std::string& name);

}  // namespace seine::fuzz

#endif  // SEINE_TESTS_FUZZ_TARGET_H_
