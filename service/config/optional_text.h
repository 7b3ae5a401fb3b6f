// Settings that name a file, a folder or the like, or are off. A part of config.h's table.
#ifndef SEINE_SERVICE_CONFIG_OPTIONAL_TEXT_H_
#define SEINE_SERVICE_CONFIG_OPTIONAL_TEXT_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "service/config/config.h"

namespace seine {

// Empty where `text` is "off". The error: it is empty, for an empty variable must not open a door; it is another word
// for off or on; or, with `path`, it is a number.
absl::StatusOr<std::string> TextOrOff(const std::string& text, bool path);
inline std::string OffIfEmpty(const std::string& text) { return text.empty() ? "off" : text; }

// `field` is a lambda from a config, const or not, to a string, which is empty where the setting is off.
template <typename Field>
Setting OptionalText(std::string key, std::string hint, std::string help, Field field) {
  const bool path = hint != "NAME";
  auto set = [=](const std::string& text, ServerConfig* config) -> absl::Status {
    absl::StatusOr<std::string> value = TextOrOff(text, path);
    if (!value.ok()) return value.status();
    field(*config) = *std::move(value);
    return absl::OkStatus();
  };
  return {std::move(key), std::move(hint), std::move(help), std::move(set),
          [=](const ServerConfig& config) { return OffIfEmpty(field(config)); }};
}

}  // namespace seine

#endif  // SEINE_SERVICE_CONFIG_OPTIONAL_TEXT_H_
