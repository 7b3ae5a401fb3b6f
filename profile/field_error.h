// Errors that name the wrong field: in their message, "field: what", and as a payload that callers read.
#ifndef SEINE_PROFILE_FIELD_ERROR_H_
#define SEINE_PROFILE_FIELD_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace seine {

// The payload's type URL. Its value is the field's path.
inline constexpr char kFieldPayload[] = "seine/field";

// An error with the message "field: what". `field` is a path in the wire's names, such as codec.centre_window.
absl::Status FieldError(absl::StatusCode code, absl::string_view field, absl::string_view what);

// INVALID_ARGUMENT of a field; the parts make up what is wrong.
template <typename... Parts>
absl::Status BadField(absl::string_view field, const Parts&... parts) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, absl::StrCat(parts...));
}

// The field that an error names; empty where it names none.
std::string FieldOf(const absl::Status& status);
// The message without the field in front.
std::string WhatOf(const absl::Status& status);

// The same error, of the field `field`. OK stays OK.
absl::Status WithField(const absl::Status& status, absl::string_view field);
// The same error, of a field inside `group`: "group.field", or `group` where the error names none. OK stays OK.
absl::Status InGroup(const absl::Status& status, absl::string_view group);

}  // namespace seine

#endif  // SEINE_PROFILE_FIELD_ERROR_H_
