// The words of the wire's enums: "per_q_head" is SCOPE_PER_Q_HEAD.
#ifndef SEINE_ENGINES_PYTHON_VALUES_ENUM_WORDS_H_
#define SEINE_ENGINES_PYTHON_VALUES_ENUM_WORDS_H_

#include <google/protobuf/descriptor.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace seine::python {

std::vector<std::string> WordsOf(const google::protobuf::EnumDescriptor& type);

// The number of a word, or of another name that it has ("fp16", "q_head"); absent: it is none of the enum's.
std::optional<int> NumberOf(const google::protobuf::EnumDescriptor& type, absl::string_view word);

// Empty for a value that is not stated; "unknown 7" for one that a newer server has.
std::string WordOf(const google::protobuf::EnumDescriptor& type, int number);

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_VALUES_ENUM_WORDS_H_
