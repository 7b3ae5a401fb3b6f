// The error of a flag that is refused, as every command words it.
#ifndef SEINE_BENCH_COMMANDS_INVALID_FLAG_H_
#define SEINE_BENCH_COMMANDS_INVALID_FLAG_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace seine::bench {

// INVALID_ARGUMENT "--FLAG: WHAT".
inline absl::Status InvalidFlag(absl::string_view flag, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", what));
}

}  // namespace seine::bench

#endif  // SEINE_BENCH_COMMANDS_INVALID_FLAG_H_
