// The error of a setting, or of what stands in the file that it names.
#ifndef SEINE_SERVICE_ACCESS_WRONG_SETTING_H_
#define SEINE_SERVICE_ACCESS_WRONG_SETTING_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "service/fields/error.h"

namespace seine {

// INVALID_ARGUMENT "where: what", on one line whatever they repeat.
inline absl::Status WrongSetting(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(OneLine(absl::StrCat(where, ": ", what)));
}

}  // namespace seine

#endif  // SEINE_SERVICE_ACCESS_WRONG_SETTING_H_
