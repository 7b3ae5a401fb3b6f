#include "service/config/idle_settings.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "service/config/optional_text.h"
#include "service/fields/bytes.h"

namespace seine {
namespace {

Setting IdleFolder() {
  return OptionalText(
      "idle.dir", "DIR",
      "Folder, made where there is none, that sequences are written to while nobody uses them; it may be "
      "snapshots.dir. Where memory is short, the least recently used ones go there. off: all stay in memory.",
      [](auto& c) -> auto& { return c.server.idle.folder; });
}

Setting SpillAfter() {
  auto set = [](const std::string& text, ServerConfig* config) {
    absl::Duration value;
    if (!absl::ParseDuration(text, &value) || value < absl::ZeroDuration() || value > absl::Hours(24 * 365)) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no time such as 90s, 10m or 2h"));
    }
    config->server.idle.spill_after = absl::ToChronoNanoseconds(value);
    return absl::OkStatus();
  };
  return {"idle.spill_after", "TIME", "Time since the last use of a sequence; 0: only where memory is short.", set,
          [](const ServerConfig& config) {
            return absl::FormatDuration(absl::FromChrono(config.server.idle.spill_after));
          }};
}

Setting IdleLimit() {
  auto set = [](const std::string& text, ServerConfig* config) {
    const absl::StatusOr<int64_t> bytes = ParseBytes(text);
    if (!bytes.ok()) return bytes.status();
    config->server.idle.limit_bytes = *bytes;
    return absl::OkStatus();
  };
  return {"idle.limit", "BYTES", "Most bytes in idle.dir; 0: no limit.", set,
          [](const ServerConfig& config) { return FormatBytes(config.server.idle.limit_bytes); }};
}

}  // namespace

std::vector<Setting> IdleSettings() { return {IdleFolder(), SpillAfter(), IdleLimit()}; }

}  // namespace seine
