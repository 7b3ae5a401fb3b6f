// A YAML file as settings want it: a regular file of one document in UTF-8, every key of a map once, nested no deeper
// than kMaxNesting (profile/io/json.h). yaml-cpp itself takes the first document and the last of equal keys, and says
// of deep nesting that the file is bad.
#ifndef SEINE_SERVICE_FIELDS_YAML_FILE_H_
#define SEINE_SERVICE_FIELDS_YAML_FILE_H_

#include <yaml-cpp/yaml.h>

#include <string>

#include "absl/status/statusor.h"

namespace seine {

// INVALID_ARGUMENT "PATH: what" or "PATH:LINE: what", on one line.
absl::StatusOr<YAML::Node> LoadYaml(const std::string& path);

}  // namespace seine

#endif  // SEINE_SERVICE_FIELDS_YAML_FILE_H_
