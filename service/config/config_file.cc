// The file's part of config.h: sections of keys and single values, and the list of indexes.
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "service/config/config.h"
#include "service/config/yaml_message.h"
#include "service/fields/error.h"
#include "service/fields/yaml_file.h"

namespace seine {
namespace {

absl::Status WrongFile(absl::string_view what) { return absl::InvalidArgumentError(OneLine(what)); }

std::string InAFile(absl::string_view key) { return std::string(key); }

absl::Status ApplyIndexes(const YAML::Node& list, const std::string& file, ServerConfig* config) {
  if (!list.IsSequence()) return WrongFile("indexes: expected a list");
  std::set<std::string> names;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string path = absl::StrCat("indexes[", i, "]");
    v1::IndexSpec spec;
    if (auto s = FromYaml(list[i], path, &spec); !s.ok()) return s;
    if (!names.insert(spec.name()).second) return WrongFile(path + ".name: a second index of this name");
    config->entries.push_back({file, path, std::move(spec)});
  }
  return absl::OkStatus();
}

// Every setting is one value. What else stands there would have to be taken for nothing, and nothing means off.
absl::Status ApplyEntry(const std::string& key, const YAML::Node& value, ServerConfig* config) {
  config->named.insert(key);
  const auto& all = Settings();
  const bool known = std::any_of(all.begin(), all.end(), [&](const Setting& s) { return s.key == key; });
  if (known && !value.IsScalar()) {
    const char* const what = value.IsSequence() ? "a list" : value.IsMap() ? "keys and values" : "nothing";
    return WrongFile(absl::StrCat(key, ": expected one value, and there is ", what));
  }
  return ApplySetting(key, value.IsScalar() ? value.Scalar() : "", key, config, InAFile);
}

absl::Status ApplyRoot(const YAML::Node& root, const std::string& file, ServerConfig* config) {
  if (root.IsNull()) return absl::OkStatus();  // an empty file
  if (!root.IsMap()) return WrongFile("expected sections");
  for (const auto& section : root) {
    const std::string name = section.first.IsScalar() ? section.first.Scalar() : "?";
    if (name == "indexes") {
      if (auto s = ApplyIndexes(section.second, file, config); !s.ok()) return s;
      continue;
    }
    if (!section.second.IsMap()) {
      const auto& all = Settings();
      const bool known =
          std::any_of(all.begin(), all.end(), [&](const Setting& s) { return absl::StartsWith(s.key, name + "."); });
      return WrongFile(absl::StrCat(name, known ? ": expected keys and values" : ": unknown key"));
    }
    config->named.insert(name);
    for (const auto& entry : section.second) {
      const std::string key = absl::StrCat(name, ".", entry.first.IsScalar() ? entry.first.Scalar() : "?");
      if (auto s = ApplyEntry(key, entry.second, config); !s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ApplyYaml(const std::string& path, ServerConfig* config) {
  const absl::StatusOr<YAML::Node> root = LoadYaml(path);
  if (!root.ok()) return root.status();
  if (auto s = ApplyRoot(*root, path, config); !s.ok()) return WrongFile(absl::StrCat(path, ": ", s.message()));
  return absl::OkStatus();
}

}  // namespace seine
