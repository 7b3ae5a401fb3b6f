#include "service/config/snapshot_settings.h"

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "service/config/optional_text.h"
#include "service/snapshots/files/snapshot_folder.h"

namespace seine {
namespace {

Setting Folder() {
  return OptionalText(
      "snapshots.dir", "DIR",
      "Folder, made where there is none, that Snapshot writes to and Restore reads from, by tenant; off: neither is "
      "served.",
      [](auto& c) -> auto& { return c.server.snapshots.folder; });
}

Setting Node() {
  return OptionalText(
      "snapshots.node", "NAME",
      "The server's name among those that share snapshots.dir: what it writes for itself, at exit and of families "
      "that have moved, stands in a folder of that name. off: it shares with none.",
      [](auto& c) -> auto& { return c.server.snapshots.node; });
}

Setting Flag(const std::string& key, const std::string& help, bool SnapshotOptions::*field) {
  auto set = [field](const std::string& text, ServerConfig* config) {
    if (absl::SimpleAtob(text, &(config->server.snapshots.*field))) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is neither true nor false"));
  };
  return {key, "", help, set,
          [field](const ServerConfig& config) { return config.server.snapshots.*field ? "true" : "false"; }};
}

Setting ExitSeconds() {
  constexpr int kMost = 24 * 3600;
  auto set = [](const std::string& text, ServerConfig* config) {
    int value = 0;
    if (!absl::SimpleAtoi(text, &value) || value < 1 || value > kMost) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no number in [1, ", kMost, "]"));
    }
    config->server.snapshots.exit_seconds = value;
    return absl::OkStatus();
  };
  return {"snapshots.exit_seconds", "N",
          "Seconds that snapshots.at_exit may take, after server.grace; what is not written by then is lost.", set,
          [](const ServerConfig& config) { return absl::StrCat(config.server.snapshots.exit_seconds); }};
}

}  // namespace

std::vector<Setting> SnapshotSettings() {
  return {Folder(), Node(),
          Flag("snapshots.at_exit", "Write all sequences to snapshots.dir when the server ends.",
               &SnapshotOptions::at_exit),
          ExitSeconds(),
          Flag("snapshots.restore_on_start",
               "Restore what snapshots.at_exit has written before the first call is taken. What is damaged is passed "
               "over, and the log says so.",
               &SnapshotOptions::restore_on_start)};
}

}  // namespace seine
