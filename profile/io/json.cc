#include "profile/io/json.h"

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace seine {
namespace {

// Brackets outside strings, counted before a parser sees the text; in one that is not JSON the count means nothing.
bool NestsTooDeep(absl::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxNesting) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text) {
  if (NestsTooDeep(text)) {
    return absl::InvalidArgumentError(absl::StrCat("is nested more than ", kMaxNesting, " levels deep"));
  }
  nlohmann::json value = nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return absl::InvalidArgumentError("is not JSON");
  return value;
}

std::string ShownJson(const nlohmann::json& value) {
  constexpr size_t kMost = 200;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMost) text = absl::StrCat(text.substr(0, kMost), "...");
  return text;
}

bool IsUtf8(absl::string_view text) {
  try {
    nlohmann::json(std::string(text)).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

}  // namespace seine
