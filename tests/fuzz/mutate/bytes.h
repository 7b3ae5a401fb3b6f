// Random changes of bytes, for whoever has no libFuzzer, and the random numbers that every mutator takes.
#ifndef SEINE_TESTS_FUZZ_MUTATE_BYTES_H_
#define SEINE_TESTS_FUZZ_MUTATE_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace seine::fuzz {

// SplitMix64: the same seed, the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  size_t Below(size_t count) { return count == 0 ? 0 : Next() % count; }
  bool OneIn(size_t count) { return Below(count) == 0; }

 private:
  uint64_t state_;
};

// libFuzzer's, or MutateBytes.
using ByteMutator = std::function<std::string(std::string bytes)>;

// One change: a bit, a byte, an awkward number, a word that parsers know, a part taken out, doubled or moved.
std::string MutateBytes(std::string bytes, Random& random);

}  // namespace seine::fuzz

#endif  // SEINE_TESTS_FUZZ_MUTATE_BYTES_H_
