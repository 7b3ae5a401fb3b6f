#include "client/security.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "profile/io/token_file.h"

namespace seine::client {
namespace {

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
  const absl::StatusOr<std::string> token = from_file ? ReadTokenFile(security.token_file) : security.token;
  absl::Status status = token.status();
  if (status.ok()) status = CheckToken(*token);
  if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat(field, ": ", status.message()));
  return token;
}

}  // namespace seine::client
