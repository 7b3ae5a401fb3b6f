// A bearer token as a file holds it.
#ifndef SEINE_PROFILE_IO_TOKEN_FILE_H_
#define SEINE_PROFILE_IO_TOKEN_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace seine {

inline constexpr size_t kMostTokenFileBytes = 4096;

// INVALID_ARGUMENT: it is no token, which is printable ASCII without spaces.
absl::Status CheckToken(absl::string_view token);

// The token alone: blanks at the ends of the file, and the mark that editors of Windows begin it with, do not count.
// INVALID_ARGUMENT "PATH: what": the file cannot be read, is empty or is UTF-16. The token is still to be checked.
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);

}  // namespace seine

#endif  // SEINE_PROFILE_IO_TOKEN_FILE_H_
