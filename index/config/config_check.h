// Helpers of checks of settings: one clear line with the field's name, in the wire's words. Not public.
#ifndef SEINE_INDEX_CONFIG_CONFIG_CHECK_H_
#define SEINE_INDEX_CONFIG_CONFIG_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "index/config/config.h"
#include "profile/field_error.h"

namespace seine {

constexpr int64_t kMinHorizon = 512, kMaxHorizon = INT32_MAX;  // positions

// BadField() of a field inside `group`, which may be empty.
template <typename... Parts>
absl::Status WrongField(absl::string_view group, absl::string_view field, const Parts&... parts) {
  return BadField(absl::StrCat(group, group.empty() ? "" : ".", field), parts...);
}

inline absl::Status CheckFieldRange(absl::string_view group, absl::string_view field, int64_t value, int64_t low,
                                    int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return WrongField(group, field, value, " is not in [", low, ", ", high, "]");
}

template <typename Enum>
absl::Status CheckFieldEnum(absl::string_view group, absl::string_view field, Enum value, Enum last) {
  if (value <= last) return absl::OkStatus();
  return WrongField(group, field, "unknown value ", static_cast<int>(value));
}

// The first error of several checks; all are made, which costs nothing that matters here.
template <typename... Statuses>
absl::Status FirstError(const Statuses&... statuses) {
  absl::Status first;
  (first.Update(statuses), ...);
  return first;
}

// Eviction's part of Validate(config): that the scorer, what must stay and every budget go together.
absl::Status CheckEviction(const IndexConfig& config);
// Whether Q-Filters and expected attention have a profile to take from.
bool HasEvictionProfile(const IndexConfig& config);

}  // namespace seine

#endif  // SEINE_INDEX_CONFIG_CONFIG_CHECK_H_
