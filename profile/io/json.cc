#include "profile/io/json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

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

// Sees the parser's events: the first name that stands twice in one object. The parser itself keeps the last.
class Names {
 public:
  bool See(nlohmann::json::parse_event_t event, const nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) open_.emplace_back();
    if (event == Event::object_end && !open_.empty()) open_.pop_back();
    if (event == Event::key && !open_.empty() && !open_.back().insert(value.get<std::string>()).second) twice_ = value;
    return true;
  }
  const nlohmann::json& twice() const { return twice_; }

 private:
  std::vector<std::set<std::string>> open_;
  nlohmann::json twice_;
};

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text) {
  if (NestsTooDeep(text)) {
    return absl::InvalidArgumentError(absl::StrCat("is nested more than ", kMaxNesting, " levels deep"));
  }
  Names names;
  const auto see = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    return names.See(event, value);
  };
  nlohmann::json value = nlohmann::json::parse(text.begin(), text.end(), see, /*allow_exceptions=*/false);
  if (value.is_discarded()) return absl::InvalidArgumentError("is not JSON");
  if (!names.twice().is_null()) {
    return absl::InvalidArgumentError(absl::StrCat("has the name ", ShownJson(names.twice()), " twice in one object"));
  }
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
