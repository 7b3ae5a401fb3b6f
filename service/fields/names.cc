#include "service/fields/names.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "index/types.h"
#include "service/fields/error.h"

namespace seine {

absl::Status CheckName(absl::string_view name, absl::string_view field) {
  const bool legal = std::all_of(name.begin(), name.end(),
                                 [](char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-'; });
  if (!name.empty() && name.size() <= kMaxNameLength && legal) return absl::OkStatus();
  return FieldError("BAD_NAME", field,
                    absl::StrCat("expected 1 to ", kMaxNameLength, " letters, digits, '.', '_' or '-'"));
}

absl::Status CheckId(absl::string_view id, absl::string_view field) {
  if (IsSequenceId(id)) return absl::OkStatus();
  return FieldError("BAD_ID", field,
                    absl::StrCat("expected 1 to ", kMaxIdLength, " printable characters without spaces"));
}

}  // namespace seine
