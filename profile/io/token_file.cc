#include "profile/io/token_file.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "profile/io/file.h"

namespace seine {

absl::Status CheckToken(absl::string_view token) {
  if (token.size() <= kMostTokenFileBytes && std::all_of(token.begin(), token.end(), absl::ascii_isgraph)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected at most ", kMostTokenFileBytes, " printable ASCII characters without spaces"));
}

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  const absl::StatusOr<File> file = File::Open(path);
  const absl::StatusOr<std::string> text = file.ok() ? file->ReadAll(kMostTokenFileBytes) : file.status();
  if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
  if (absl::StartsWith(*text, "\xff\xfe") || absl::StartsWith(*text, "\xfe\xff")) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is UTF-16 by its byte order mark; save it as UTF-8"));
  }
  std::string token(absl::StripAsciiWhitespace(absl::StripPrefix(*text, "\xef\xbb\xbf")));
  if (token.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": is empty"));
  return token;
}

}  // namespace seine
