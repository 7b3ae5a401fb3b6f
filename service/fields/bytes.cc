#include "service/fields/bytes.h"

#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace seine {

absl::StatusOr<int64_t> ParseBytes(const std::string& text) {
  static const auto* const kUnits = new std::map<std::string, int64_t>{{"", 1},
                                                                       {"B", 1},
                                                                       {"KB", 1'000},
                                                                       {"MB", 1'000'000},
                                                                       {"GB", 1'000'000'000},
                                                                       {"TB", 1'000'000'000'000},
                                                                       {"KiB", 1 << 10},
                                                                       {"MiB", 1 << 20},
                                                                       {"GiB", 1 << 30},
                                                                       {"TiB", int64_t{1} << 40}};
  const size_t digits = text.find_first_not_of("0123456789");
  const auto unit = kUnits->find(digits == std::string::npos ? "" : text.substr(digits));
  int64_t count = 0, bytes = 0;
  if (unit == kUnits->end() || !absl::SimpleAtoi(text.substr(0, digits), &count) ||
      __builtin_mul_overflow(count, unit->second, &bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no size in bytes; write 8GiB, 512MiB or 1048576"));
  }
  return bytes;
}

std::string FormatBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (unit + 1 < std::size(kUnits) && bytes > 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return absl::StrCat(bytes, kUnits[unit]);
}

}  // namespace seine
