#include "service/config/optional_text.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace seine {

absl::StatusOr<std::string> TextOrOff(const std::string& text, bool path) {
  static constexpr const char* kOthers[] = {"on", "true", "false", "yes", "no", "none", "null", "~"};
  if (absl::EqualsIgnoreCase(text, "off")) return "";
  if (text.empty()) return absl::InvalidArgumentError("is empty; where there is to be none, write off");
  double number = 0;
  const bool other = std::any_of(std::begin(kOthers), std::end(kOthers),
                                 [&](const char* word) { return absl::EqualsIgnoreCase(text, word); });
  if (!other && !(path && absl::SimpleAtod(text, &number))) return text;
  const std::string as_a_file = path ? absl::StrCat("; a file of that name is ./", text) : "";
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is no name; where there is to be none, write off", as_a_file));
}

}  // namespace seine
