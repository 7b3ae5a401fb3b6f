// Where a file goes that is written beside its place and then renamed. Whoever writes one asks here first.
#ifndef SEINE_PROFILE_IO_OUTPUT_PATH_H_
#define SEINE_PROFILE_IO_OUTPUT_PATH_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace seine {

// Returns the file that `path` means: where it is a link, what the link leads to, be it there or not. So a rename takes
// the place of the file, and the link stays. INVALID_ARGUMENT: the path holds a NUL, leads to what is no regular file
// (a device, a folder, a pipe), or its links turn in a circle. The text does not name the path.
absl::StatusOr<std::string> ResolveOutput(const std::string& path);

// Returns a name beside `path` that ends with `suffix`, drawn by chance: what a killed process has left is in nobody's
// way, whatever its number was.
std::string PartialPath(const std::string& path, absl::string_view suffix);

}  // namespace seine

#endif  // SEINE_PROFILE_IO_OUTPUT_PATH_H_
