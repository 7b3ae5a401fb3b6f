// Names and ids of a request, and of a setting that holds one.
#ifndef SEINE_SERVICE_FIELDS_NAMES_H_
#define SEINE_SERVICE_FIELDS_NAMES_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace seine {

// Names: letters, digits, '.', '_', '-', not empty. Ids: as index/types.h has them. The error is error.h's, of `field`.
absl::Status CheckName(absl::string_view name, absl::string_view field);
absl::Status CheckId(absl::string_view id, absl::string_view field);

}  // namespace seine

#endif  // SEINE_SERVICE_FIELDS_NAMES_H_
