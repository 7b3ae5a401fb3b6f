#include "tests/fuzz/mutate/bytes.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

namespace seine::fuzz {
namespace {

constexpr const char* kWords[] = {"{",
                                  "}",
                                  "[",
                                  "]",
                                  ":",
                                  ",",
                                  "\"",
                                  "null",
                                  "true",
                                  "-1",
                                  "0",
                                  "1e999",
                                  "nan",
                                  ".inf",
                                  "\\u0000",
                                  "\xff",
                                  "\n",
                                  "---\n",
                                  "- ",
                                  "&a ",
                                  "*a",
                                  "!!",
                                  "|",
                                  "\"F16\"",
                                  "F32",
                                  "[]",
                                  "{}",
                                  "shape",
                                  "dtype",
                                  "(3,)",
                                  "'<f4'",
                                  "\t",
                                  "../",
                                  "~",
                                  "#",
                                  "1GiB",
                                  "99999999999999999999",
                                  "9223372036854775807",
                                  "4294967296",
                                  "-9223372036854775808"};

void SetNumber(std::string* bytes, Random& random) {
  const uint64_t numbers[] = {0,
                              1,
                              0x7f,
                              0x80,
                              0xff,
                              0x7fff,
                              0x8000,
                              0xffff,
                              0x7fffffff,
                              0x80000000,
                              0xffffffff,
                              0x7fffffffffffffff,
                              0x8000000000000000,
                              std::numeric_limits<uint64_t>::max()};
  const uint64_t number = numbers[random.Below(std::size(numbers))];
  const size_t width = size_t{1} << random.Below(4);
  if (bytes->size() < width) return;
  memcpy(bytes->data() + random.Below(bytes->size() - width + 1), &number, width);
}

// A part of the bytes, of which short ones are likelier.
std::pair<size_t, size_t> Part(const std::string& bytes, Random& random) {
  const size_t most = size_t{1} << random.Below(10);
  const size_t begin = random.Below(bytes.size());
  return {begin, std::min(bytes.size() - begin, 1 + random.Below(most))};
}

}  // namespace

uint64_t Random::Next() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::string MutateBytes(std::string bytes, Random& random) {
  if (bytes.empty()) return std::string(1, static_cast<char>(random.Next()));
  const auto [begin, count] = Part(bytes, random);
  switch (random.Below(8)) {
    case 0:
      bytes[begin] = static_cast<char>(bytes[begin] ^ (1 << random.Below(8)));
      break;
    case 1:
      bytes[begin] = static_cast<char>(random.Next());
      break;
    case 2:
      SetNumber(&bytes, random);
      break;
    case 3:
      bytes.erase(begin, count);
      break;
    case 4:
      bytes.insert(begin, bytes.substr(begin, count));
      break;
    case 5:
      bytes.insert(begin, kWords[random.Below(std::size(kWords))]);
      break;
    case 6:
      bytes.replace(begin, count, kWords[random.Below(std::size(kWords))]);
      break;
    default:
      bytes.insert(random.Below(bytes.size()), bytes.substr(begin, count));
  }
  return bytes;
}

}  // namespace seine::fuzz
