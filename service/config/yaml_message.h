// YAML to a protobuf message and back by reflection: keys are field names, enums may be written short and lower case
// (`window` for CENTRE_WINDOW, `float16` for D_TYPE_FLOAT16). Older names of fields are read as well. A repeated field
// is a list of doubles.
#ifndef SEINE_SERVICE_CONFIG_YAML_MESSAGE_H_
#define SEINE_SERVICE_CONFIG_YAML_MESSAGE_H_

#include <google/protobuf/message.h>
#include <yaml-cpp/yaml.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace seine {

// INVALID_ARGUMENT "<path>.key: what", also for a key that the message does not have.
absl::Status FromYaml(const YAML::Node& node, absl::string_view path, google::protobuf::Message* message);

// Every field that is set, into a map.
void ToYaml(const google::protobuf::Message& message, YAML::Emitter* out);

}  // namespace seine

#endif  // SEINE_SERVICE_CONFIG_YAML_MESSAGE_H_
