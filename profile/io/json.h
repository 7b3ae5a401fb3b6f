// The one way in which the tree reads JSON that others wrote. A text nested without end would end the process: printing
// and copying a value recurse once a level, and a stack holds some ten thousand of them.
#ifndef SEINE_PROFILE_IO_JSON_H_
#define SEINE_PROFILE_IO_JSON_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace seine {

// Levels of lists and objects that a text may nest, whatever it is: JSON here, YAML in service/fields/yaml_file.h. What
// we read needs six.
inline constexpr int kMaxNesting = 64;

// INVALID_ARGUMENT "is not JSON", "is nested more than 64 levels deep", or "has the name "a" twice in one object".
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text);

// A value as an error names it: in ASCII, and its beginning alone where it is long.
std::string ShownJson(const nlohmann::json& value);

// Whether JSON, YAML and messages can hold it.
bool IsUtf8(absl::string_view text);

}  // namespace seine

#endif  // SEINE_PROFILE_IO_JSON_H_
