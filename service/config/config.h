// seined's configuration: defaults < YAML file < environment SEINE__SECTION__KEY < flags. One table (Settings) says
// what there is; the file, the environment, the command line, --help and --check-config all follow from it.
#ifndef SEINE_SERVICE_CONFIG_CONFIG_H_
#define SEINE_SERVICE_CONFIG_CONFIG_H_

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "seine/v1/index_service.pb.h"
#include "service/fields/bytes.h"
#include "service/server_options.h"

namespace seine {

// An index of a file, as it is written there.
struct IndexEntry {
  std::string file, path;  // "seined.yaml", "indexes[0]"
  v1::IndexSpec spec;
};

struct ServerConfig {
  ServerOptions server;
  std::string profiles;             // folder; empty: none
  std::vector<IndexEntry> entries;  // what server.indexes is made of
  std::set<std::string> named;      // sections and keys that the file has: "auth", "auth.unix"
  int grace_seconds = 10;
  int drain_delay_seconds = 0;
  int watchdog_seconds = 0;  // 0: what a service manager asks for, if any does
  int slow_call_ms = 1000;
  std::string log_level = "info";
  std::string log_format = "text";
  std::vector<std::string> warnings;  // of variables that were passed over but look like settings; for the log
};

struct Setting {
  std::string key;   // "server.memory_limit"; the flag is --memory-limit
  std::string hint;  // of the value, for --help; empty: a flag without one
  std::string help;
  std::function<absl::Status(const std::string&, ServerConfig*)> set;  // an error is what is wrong with the value
  std::function<std::string(const ServerConfig&)> get;
};
const std::vector<Setting>& Settings();
std::string FlagOf(const std::string& key);

// One setting, `where` it stands in front of an error. `name` writes a key as it would be written there, for "did you
// mean".
absl::Status ApplySetting(const std::string& key, const std::string& value, const std::string& where,
                          ServerConfig* config, std::string (*name)(absl::string_view key));

// Each of the three layers over `config`. INVALID_ARGUMENT in one line that names where, the key and what is wrong.
absl::Status ApplyYaml(const std::string& path, ServerConfig* config);
absl::Status ApplyEnvironment(const char* const* environment, ServerConfig* config);  // as ::environ
absl::Status ApplyFlags(const std::vector<std::pair<std::string, std::string>>& keys_and_values, ServerConfig* config);

// After all layers, once: opens the folder of profiles and makes server.indexes of the entries. Errors as above.
absl::Status Resolve(ServerConfig* config);

// What a start would refuse beyond Resolve, as it would say it: makes the backend and the indexes and throws them away.
// Whether the address is free is not asked, for a server may well run as its next configuration is checked.
absl::Status CheckStart(const ServerConfig& config);

// The whole as YAML that ApplyYaml reads back.
std::string ToYaml(const ServerConfig& config);

}  // namespace seine

#endif  // SEINE_SERVICE_CONFIG_CONFIG_H_
