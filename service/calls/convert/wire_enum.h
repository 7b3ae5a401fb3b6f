// Every wire enum is the index's enum shifted by one, 0 meaning "not given".
#ifndef SEINE_SERVICE_CALLS_CONVERT_WIRE_ENUM_H_
#define SEINE_SERVICE_CALLS_CONVERT_WIRE_ENUM_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "service/fields/error.h"

namespace seine {

template <typename Wire, typename Plain>
constexpr bool Shifted(Wire wire, Plain plain) {
  return static_cast<int>(wire) == static_cast<int>(plain) + 1;
}

template <typename Wire, typename Plain>
Wire ToWire(Plain plain) {
  return static_cast<Wire>(static_cast<int>(plain) + 1);
}

// Sets *out unless the wire's value is 0. proto3 enums are open: a value from outside the enum arrives as a number.
template <typename Wire, typename Plain>
absl::Status FromWire(Wire wire, bool (*is_valid)(int), absl::string_view field, Plain* out) {
  if (static_cast<int>(wire) == 0) return absl::OkStatus();
  if (!is_valid(wire))
    return FieldError("UNKNOWN_ENUM", field, absl::StrCat("no such value: ", static_cast<int>(wire)));
  *out = static_cast<Plain>(static_cast<int>(wire) - 1);
  return absl::OkStatus();
}

}  // namespace seine

#endif  // SEINE_SERVICE_CALLS_CONVERT_WIRE_ENUM_H_
