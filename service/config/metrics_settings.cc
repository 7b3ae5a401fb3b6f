#include "service/config/metrics_settings.h"

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "service/config/optional_text.h"
#include "service/metrics/http_address.h"

namespace seine {
namespace {

Setting MetricsListen() {
  auto set = [](const std::string& text, ServerConfig* config) -> absl::Status {
    absl::StatusOr<std::string> address = TextOrOff(text, /*path=*/false);
    if (address.ok() && !address->empty()) address = ParseHttpAddress(*address);
    if (!address.ok()) return address.status();
    config->server.metrics_listen = *std::move(address);
    return absl::OkStatus();
  };
  return {
      "metrics.listen", "HOST:PORT",
      "Serve /metrics (Prometheus), /livez, /readyz and /healthz over HTTP on loopback, port 0 for any free one; off: "
      "no HTTP.",
      set, [](const ServerConfig& config) { return OffIfEmpty(config.server.metrics_listen); }};
}

Setting MetricsPage() {
  auto set = [](const std::string& text, ServerConfig* config) {
    if (absl::SimpleAtob(text, &config->server.metrics_page)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is neither true nor false"));
  };
  return {"metrics.page", "",
          "Serve a page for browsers at /page/ of metrics.listen: indexes, sequences and what their heads find. Calls "
          "that need credentials need them there too; others show it to every user of the machine.",
          set, [](const ServerConfig& config) { return config.server.metrics_page ? "true" : "false"; }};
}

Setting MetricsCount() {
  auto set = [](const std::string& text, ServerConfig* config) {
    if (text != "on" && text != "off")
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' is none of on|off"));
    config->server.core.count = text == "on";
    return absl::OkStatus();
  };
  return {"metrics.count", "on|off",
          "Count calls, steps and stages for /metrics and seine top; a decode step pays some 100 ns for it.", set,
          [](const ServerConfig& config) { return config.server.core.count ? "on" : "off"; }};
}

}  // namespace

std::vector<Setting> MetricsSettings() { return {MetricsListen(), MetricsPage(), MetricsCount()}; }

}  // namespace seine
