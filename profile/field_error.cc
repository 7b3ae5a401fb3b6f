#include "profile/field_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/strip.h"

namespace seine {

absl::Status FieldError(absl::StatusCode code, absl::string_view field, absl::string_view what) {
  absl::Status status(code, absl::StrCat(field, ": ", what));
  status.SetPayload(kFieldPayload, absl::Cord(field));
  return status;
}

std::string FieldOf(const absl::Status& status) {
  const auto field = status.GetPayload(kFieldPayload);
  return field ? std::string(*field) : std::string();
}

std::string WhatOf(const absl::Status& status) {
  const std::string field = FieldOf(status);
  if (field.empty()) return std::string(status.message());
  return std::string(absl::StripPrefix(status.message(), absl::StrCat(field, ": ")));
}

absl::Status WithField(const absl::Status& status, absl::string_view field) {
  return status.ok() ? status : FieldError(status.code(), field, WhatOf(status));
}

absl::Status InGroup(const absl::Status& status, absl::string_view group) {
  const std::string field = FieldOf(status);
  return WithField(status, field.empty() ? std::string(group) : absl::StrCat(group, ".", field));
}

}  // namespace seine
