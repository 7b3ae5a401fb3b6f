#include "client/security.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "profile/io/file.h"

namespace seine::client {
namespace {

constexpr uint64_t kMostTokenBytes = 4096;  // what a server takes

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

Security WithEnvironment(Security given) {
  const auto fill = [](std::string* field, const char* name) {
    if (field->empty()) *field = Variable(name);
  };
  fill(&given.tls_ca, "SEINE_TLS_CA");
  fill(&given.tls_cert, "SEINE_TLS_CERT");
  fill(&given.tls_key, "SEINE_TLS_KEY");
  if (given.token.empty() && given.token_file.empty()) {
    fill(&given.token, "SEINE_TOKEN");
    fill(&given.token_file, "SEINE_TOKEN_FILE");
  }
  return given;
}

absl::StatusOr<std::string> ReadToken(const Security& security) {
  if (!security.token.empty() && !security.token_file.empty()) {
    return absl::InvalidArgumentError("token: given beside token_file; one of them is enough");
  }
  const bool from_file = !security.token_file.empty();
  const char* const field = from_file ? "token_file" : "token";
  std::string token = security.token;
  if (from_file) {
    const absl::StatusOr<File> file = File::Open(security.token_file);
    const absl::StatusOr<std::string> text = file.ok() ? file->ReadAll(kMostTokenBytes) : file.status();
    if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat(field, ": ", text.status().message()));
    // Editors of Windows begin a file with a byte order mark.
    if (absl::StartsWith(*text, "\xff\xfe") || absl::StartsWith(*text, "\xfe\xff")) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": ", security.token_file, ": is UTF-16 by its byte order mark; save it as UTF-8"));
    }
    token = std::string(absl::StripAsciiWhitespace(absl::StripPrefix(*text, "\xef\xbb\xbf")));
    if (token.empty()) return absl::InvalidArgumentError(absl::StrCat(field, ": ", security.token_file, ": is empty"));
  }
  if (token.size() > kMostTokenBytes || !std::all_of(token.begin(), token.end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": expected at most ", kMostTokenBytes, " printable ASCII characters without spaces"));
  }
  return token;
}

}  // namespace seine::client
