// The error of a flag that is refused, as every command words it.
#ifndef SEINE_BENCH_COMMANDS_INVALID_FLAG_H_
#define SEINE_BENCH_COMMANDS_INVALID_FLAG_H_

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace seine::bench {

// INVALID_ARGUMENT "--FLAG: WHAT".
inline absl::Status InvalidFlag(absl::string_view flag, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", what));
}

// Names and values of flags that count something. INVALID_ARGUMENT: the first that is below 1.
inline absl::Status CheckCounts(std::initializer_list<std::pair<absl::string_view, int64_t>> counts) {
  for (const auto& [flag, count] : counts) {
    if (count < 1) return InvalidFlag(flag, "must be at least 1");
  }
  return absl::OkStatus();
}
inline absl::Status CheckCounts(absl::string_view flag, const std::vector<int64_t>& counts) {
  for (const int64_t count : counts) {
    if (count < 1) return InvalidFlag(flag, "must be at least 1");
  }
  return absl::OkStatus();
}

}  // namespace seine::bench

#endif  // SEINE_BENCH_COMMANDS_INVALID_FLAG_H_
