#include "service/config/quality_settings.h"

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace seine {
namespace {

// A share in [0, 1], or in (0, 1] where `zero` is not one. `field` is a lambda from a config, const or not, to it.
template <typename Field>
Setting Share(std::string key, std::string help, bool zero, Field field) {
  auto set = [=](const std::string& text, ServerConfig* config) {
    double value = 0;
    if (!absl::SimpleAtod(text, &value) || !(value >= 0 && value <= 1) || (value == 0 && !zero)) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no number in ", zero ? "[" : "(", "0, 1]"));
    }
    field(*config) = value;
    return absl::OkStatus();
  };
  return {std::move(key), "SHARE", std::move(help), std::move(set),
          [=](const ServerConfig& config) { return absl::StrCat(field(config)); }};
}

}  // namespace

std::vector<Setting> QualitySettings() {
  return {Share(
              "quality.sample",
              "Share of the retrieved items that are answered a second time exactly, in the background, and compared: "
              "recall and attention mass in /metrics and seine top. 0: none; 1e-3 is a good start.",
              /*zero=*/true, [](auto& c) -> auto& { return c.server.core.quality.sample; }),
          Share(
              "quality.share", "Share of one core that these comparisons may take; what it leaves undone is counted.",
              /*zero=*/false, [](auto& c) -> auto& { return c.server.core.quality.share; }),
          Share(
              "quality.expected",
              "Mean recall that you expect, for an alert where an index has no profile that predicts it; 0: none.",
              /*zero=*/true, [](auto& c) -> auto& { return c.server.core.expected_recall; })};
}

}  // namespace seine
