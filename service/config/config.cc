#include "service/config/config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/backend.h"
#include "profile/spelling.h"
#include "service/calls/convert/convert.h"
#include "service/catalog.h"
#include "service/channel_offers.h"
#include "service/config/access_settings.h"
#include "service/config/fleet_settings.h"
#include "service/config/idle_settings.h"
#include "service/config/metrics_settings.h"
#include "service/config/optional_text.h"
#include "service/config/quality_settings.h"
#include "service/config/snapshot_settings.h"
#include "service/config/yaml_message.h"
#include "service/fields/error.h"
#include "service/profiles.h"
#include "service/snapshots/files/exit_files.h"
#include "service/transport/sockets/address.h"

namespace seine {
namespace {

constexpr int kMostChannels = 32;  // each has a descriptor out of what connections leave (descriptors.h)
constexpr int64_t kMinMessageBytes = 64 << 10, kMaxMessageBytes = (int64_t{1} << 31) - 1;  // gRPC counts in int

absl::Status Wrong(absl::string_view what) { return absl::InvalidArgumentError(OneLine(what)); }

// Makers of settings. `field` is a lambda from a config, const or not, to the field.
template <typename Field>
Setting Number(std::string key, std::string help, int low, int high, Field field) {
  auto set = [=](const std::string& text, ServerConfig* config) {
    int value = 0;
    if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
      return Wrong(absl::StrCat("'", text, "' is no number in [", low, ", ", high, "]"));
    }
    field(*config) = value;
    return absl::OkStatus();
  };
  return {std::move(key), "N", std::move(help), std::move(set),
          [=](const ServerConfig& config) { return absl::StrCat(field(config)); }};
}

template <typename Field>
Setting Word(std::string key, std::string help, const std::vector<std::string>& words, Field field) {
  const std::string choice = absl::StrJoin(words, "|");
  auto set = [=](const std::string& text, ServerConfig* config) {
    if (std::find(words.begin(), words.end(), text) == words.end()) {
      return Wrong(absl::StrCat("'", text, "' is none of ", choice));
    }
    field(*config) = text;
    return absl::OkStatus();
  };
  return {std::move(key), choice, std::move(help), std::move(set),
          [=](const ServerConfig& config) { return field(config); }};
}

template <typename Field>
Setting Bytes(std::string key, std::string help, int64_t low, int64_t high, Field field) {
  auto set = [=](const std::string& text, ServerConfig* config) {
    auto bytes = ParseBytes(text);
    if (!bytes.ok()) return bytes.status();
    if (*bytes < low || *bytes > high) {
      return Wrong(absl::StrCat("'", text, "' is not between ", FormatBytes(low), " and ", FormatBytes(high)));
    }
    field(*config) = *bytes;
    return absl::OkStatus();
  };
  return {std::move(key), "BYTES", std::move(help), std::move(set),
          [=](const ServerConfig& config) { return FormatBytes(field(config)); }};
}

Setting ListenSetting() {
  auto set = [](const std::string& text, ServerConfig* config) {
    auto address = ParseAddress(text);
    if (!address.ok()) {
      const absl::string_view what = address.status().message();
      return Wrong(absl::StripPrefix(what, "listen: "));
    }
    config->server.listen = address->ToString();
    return absl::OkStatus();
  };
  return {"server.listen", "ADDRESS",
          "unix:PATH or /PATH (mode 0600), or HOST:PORT, port 0 for any free one. Beyond loopback it takes TLS and a "
          "credential (tls.cert, tls.key, auth.tokens_file).",
          set, [](const ServerConfig& config) { return config.server.listen; }};
}

Setting Flag(std::string key, std::string help, bool ServerOptions::*field) {
  auto set = [=](const std::string& text, ServerConfig* config) {
    if (absl::SimpleAtob(text, &(config->server.*field))) return absl::OkStatus();
    return Wrong(absl::StrCat("'", text, "' is neither true nor false"));
  };
  return {std::move(key), "", std::move(help), std::move(set),
          [=](const ServerConfig& config) { return config.server.*field ? "true" : "false"; }};
}

Setting ProfilesSetting() {
  return OptionalText(
      "server.profiles", "DIR",
      "Folder of model profiles (seine calibrate), NAME.profile.safetensors or NAME.safetensors; an index names one "
      "by NAME. Each is read when an index first asks for it.",
      [](auto& c) -> auto& { return c.profiles; });
}

Setting SpinSetting() {
  constexpr int kMostSpin = 1'000'000;
  auto set = [](const std::string& text, ServerConfig* config) {
    int value = 0;
    if (!absl::SimpleAtoi(text, &value) || value < 0 || value > kMostSpin) {
      return Wrong(absl::StrCat("'", text, "' is no number in [0, ", kMostSpin, "]"));
    }
    config->server.core.channel_spin = std::chrono::microseconds(value);
    return absl::OkStatus();
  };
  return {"server.channel_spin", "N",
          "Microseconds that a same-host channel looks for the next step before it sleeps, where steps follow one "
          "another at once. With server.polling it never sleeps.",
          set, [](const ServerConfig& config) { return absl::StrCat(config.server.core.channel_spin.count()); }};
}

std::vector<Setting> MakeSettings() {
  constexpr int64_t kAnyBytes = int64_t{1} << 50;
  std::vector<Setting> settings = {
      ListenSetting(),
      Flag("server.polling",
           "Serve Decode from a thread that spins instead of sleeping: less latency, and a busy core while a Decode "
           "stream is open. Worth it where the client polls too.",
           &ServerOptions::polling),
      Word(
          "server.backend",
          "Where codes live and are searched; auto takes cuda where the build and the machine have it, and a trial "
          "finds it faster.",
          {"auto", "cpu", "cuda"}, [](auto& c) -> auto& { return c.server.core.backend; }),
      Number(
          "server.threads",
          "Threads that share the work of one batch; 0: one for each processor that the process may use, by its "
          "affinity and the quota "
          "of its control groups.",
          0, 1024, [](auto& c) -> auto& { return c.server.core.threads; }),
      Number(
          "server.workers", "Heavy calls (append, retrieve, gather, fork ...) at work at once.", 1, 1024,
          [](auto& c) -> auto& { return c.server.core.workers; }),
      Number(
          "server.queue_capacity", "Heavy calls that may wait for a worker; more are refused with RESOURCE_EXHAUSTED.",
          1, 1 << 20, [](auto& c) -> auto& { return c.server.core.queue_capacity; }),
      Bytes(
          "server.memory_limit",
          "Codes and stored keys and values of all indexes, and requests and answers while they are under way, e.g. "
          "8GiB; 0: what the memory limit of the process's control groups, or of its address space, leaves, and no "
          "limit where there is none. Where it is full, a 32nd of it, and 16 MiB at least, is left for what is under "
          "way.",
          0, kAnyBytes, [](auto& c) -> auto& { return c.server.core.memory_limit_bytes; }),
      Bytes(
          "server.device_memory_limit",
          "Codes of all indexes in a device's own memory, which then count here alone; 0: no limit.", 0, kAnyBytes,
          [](auto& c) -> auto& { return c.server.core.device_memory_limit_bytes; }),
      Bytes(
          "server.max_message", "Largest request or answer.", kMinMessageBytes, kMaxMessageBytes,
          [](auto& c) -> auto& { return c.server.core.max_message_bytes; }),
      Bytes(
          "server.in_flight_limit",
          "Requests and answers under way, in bytes; beyond it calls are refused with RESOURCE_EXHAUSTED. Large "
          "answers that wait for their readers take an eighth of it at most, or are alone. 0: four of the largest.",
          0, kAnyBytes, [](auto& c) -> auto& { return c.server.core.in_flight_limit_bytes; }),
      ProfilesSetting(),
      Number(
          "server.channels",
          "Same-host channels (shared memory) that may be open at once beside a Unix socket, each with a thread; 0: "
          "none are made.",
          0, kMostChannels, [](auto& c) -> auto& { return c.server.core.channels; }),
      SpinSetting(),
      Number(
          "server.grace", "Seconds that calls under way get to end after SIGTERM.", 0, 3600,
          [](auto& c) -> auto& { return c.grace_seconds; }),
      Number(
          "server.drain_delay",
          "Seconds after SIGTERM in which calls are still taken while health says NOT_SERVING, for a balancer to see "
          "it.",
          0, 3600, [](auto& c) -> auto& { return c.drain_delay_seconds; }),
      Flag("server.draining",
           "Take no new families from the start, as after `seine drain`, until `seine drain --undo`. Families that "
           "are restored are served.",
           &ServerOptions::draining),
      Number(
          "server.watchdog",
          "Seconds without an answer to its own calls after which it ends itself, exit code 4, to be started anew; 0: "
          "what systemd's WatchdogSec asks for, and never without it.",
          0, 3600, [](auto& c) -> auto& { return c.watchdog_seconds; }),
      Word(
          "log.level", "What is worth a line.", {"debug", "info", "warning", "error"},
          [](auto& c) -> auto& { return c.log_level; }),
      Word(
          "log.format", "Lines for people or for machines, on stderr.", {"text", "json"},
          [](auto& c) -> auto& { return c.log_format; }),
      Number(
          "log.slow_call", "Milliseconds from which on a call that succeeds is worth a warning; 0: none is.", 0,
          3600 * 1000, [](auto& c) -> auto& { return c.slow_call_ms; }),
  };
  for (Setting& setting : AccessSettings()) settings.push_back(std::move(setting));
  return settings;
}

std::string AsItIs(absl::string_view key) { return std::string(key); }

// What a section is nothing without.
constexpr const char* kSwitches[] = {"tls.cert",      "auth.tokens_file", "audit.file",
                                     "snapshots.dir", "idle.dir",         "fleet.file"};

// A section that the file names is not off, unless the file says so: a door that was to be shut would stand open.
absl::Status CheckSections(const ServerConfig& config) {
  for (const Setting& setting : Settings()) {
    const bool is_switch = std::find(std::begin(kSwitches), std::end(kSwitches), setting.key) != std::end(kSwitches);
    const std::pair<std::string, std::string> key = absl::StrSplit(setting.key, absl::MaxSplits('.', 1));
    if (!is_switch || !config.named.contains(key.first) || config.named.contains(setting.key)) continue;
    const std::string value = setting.get(config);
    if (value != "off" && value != "0") continue;
    return Wrong(absl::StrCat(key.first, ": the file names it, but nothing sets ", setting.key,
                              ", without which it is off; set it, or write ", key.second, ": ", value));
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<Setting>& Settings() {
  static const auto* const kSettings = [] {
    auto* const all = new std::vector<Setting>(MakeSettings());
    for (Setting& setting : MetricsSettings()) all->push_back(std::move(setting));
    for (Setting& setting : QualitySettings()) all->push_back(std::move(setting));
    for (Setting& setting : SnapshotSettings()) all->push_back(std::move(setting));
    for (Setting& setting : IdleSettings()) all->push_back(std::move(setting));
    for (Setting& setting : FleetSettings()) all->push_back(std::move(setting));
    return all;
  }();
  return *kSettings;
}

absl::Status ApplySetting(const std::string& key, const std::string& value, const std::string& where,
                          ServerConfig* config, std::string (*name)(absl::string_view)) {
  std::vector<std::string> keys;
  for (const Setting& setting : Settings()) {
    if (setting.key != key) {
      keys.push_back(setting.key);
      continue;
    }
    if (auto s = setting.set(value, config); !s.ok()) return Wrong(absl::StrCat(where, ": ", s.message()));
    return absl::OkStatus();
  }
  const std::string nearest = NearestWord(key, keys);
  const std::string hint = nearest.empty() ? "" : absl::StrCat("; did you mean ", name(nearest), "?");
  return Wrong(absl::StrCat(where, ": unknown key", hint));
}

absl::Status ApplyFlags(const std::vector<std::pair<std::string, std::string>>& keys_and_values, ServerConfig* config) {
  for (const auto& [key, value] : keys_and_values) {
    if (auto s = ApplySetting(key, value, FlagOf(key), config, AsItIs); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// The first error has been named by its path in the file ("indexes[0].zones.sink: ..."), as a call's would in its
// request.
absl::Status Resolve(ServerConfig* config) {
  if (auto s = CheckSections(*config); !s.ok()) return s;
  if (!config->profiles.empty()) {
    auto profiles = Profiles::Open(config->profiles);
    if (!profiles.ok()) return Wrong(absl::StrCat("server.profiles: ", profiles.status().message()));
    config->server.core.profiles = *std::move(profiles);
  }
  const CoreOptions& core = config->server.core;
  if (core.in_flight_limit_bytes > 0 && core.in_flight_limit_bytes < 3 * core.max_message_bytes) {
    return Wrong(
        "server.in_flight_limit: less than three messages of server.max_message");  // as it came, parsed, answer
  }
  if (!core.count && !config->server.metrics_listen.empty()) {
    return Wrong("metrics.listen: there is nothing to serve, for metrics.count is off");
  }
  if (config->server.metrics_page && config->server.metrics_listen.empty()) {
    return Wrong("metrics.page: there is nowhere to serve it; set metrics.listen");
  }
  if (!core.count && core.quality.sample > 0) {
    return Wrong("quality.sample: nothing would count what is found, for metrics.count is off");
  }
  for (const IndexEntry& entry : config->entries) {
    auto index = ConfigFrom(entry.spec, entry.path, config->server.core.profiles.get());
    absl::Status status = index.status();
    if (status.ok()) status = Explain(Validate(*index), entry.path);
    if (!status.ok()) return Wrong(absl::StrCat(entry.file, ": ", status.message()));
    config->server.indexes.push_back(*std::move(index));
  }
  return absl::OkStatus();
}

absl::Status CheckStart(const ServerConfig& config) {
  if (auto s = CheckAccess(config); !s.ok()) return s;
  if (auto s = Validate(config.server.snapshots); !s.ok()) return s;
  if (auto s = Validate(config.server.fleet); !s.ok()) return s;
  std::string why;
  const bool cuda = config.server.core.backend == "cuda";
  const std::unique_ptr<Backend> backend = MakeBackend(cuda ? "cuda" : "cpu", 1, &why);
  if (backend == nullptr) return Wrong(absl::StrCat("backend: ", why));
  Catalog catalog(backend.get(), nullptr);
  for (const IndexConfig& index : config.server.indexes) {
    if (auto s = catalog.Create(index).status(); !s.ok()) {
      return Wrong(absl::StrCat("index ", index.name, ": ", s.message()));
    }
  }
  return absl::OkStatus();
}

std::string FlagOf(const std::string& key) {
  return absl::StrCat("--", absl::StrReplaceAll(absl::StripPrefix(key, "server."), {{".", "-"}, {"_", "-"}}));
}

std::string ToYaml(const ServerConfig& config) {
  YAML::Emitter out;
  out.SetDoublePrecision(15);
  out.SetFloatPrecision(7);
  out << YAML::BeginMap;
  std::string section;
  for (const Setting& setting : Settings()) {
    const std::pair<std::string, std::string> key = absl::StrSplit(setting.key, absl::MaxSplits('.', 1));
    if (key.first != section) {
      if (!section.empty()) out << YAML::EndMap;
      section = key.first;
      out << YAML::Key << section << YAML::Value << YAML::BeginMap;
    }
    out << YAML::Key << key.second << YAML::Value << setting.get(config);
  }
  out << YAML::EndMap << YAML::Key << "indexes" << YAML::Value << YAML::BeginSeq;
  for (const IndexConfig& index : config.server.indexes) {
    v1::IndexSpec spec;
    ToProto(index, &spec);
    ToYaml(spec, &out);
  }
  out << YAML::EndSeq << YAML::EndMap;
  return absl::StrCat(out.c_str(), "\n");
}

}  // namespace seine
