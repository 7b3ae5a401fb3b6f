// The environment's part of config.h: SEINE__SECTION__KEY, and names that look as if they were meant to be one.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "profile/spelling.h"
#include "service/config/config.h"

namespace seine {
namespace {

constexpr absl::string_view kPrefix = "SEINE__";

std::string VariableOf(absl::string_view key) {
  return absl::StrCat(kPrefix, absl::AsciiStrToUpper(absl::StrReplaceAll(key, {{".", "__"}})));
}

// "SERVER_THREADS" of "seine_server__threads", "SEINED_SERVER_THREADS" and the like; empty: not one of ours.
std::string Words(absl::string_view name) {
  const std::string upper = absl::AsciiStrToUpper(name);
  absl::string_view rest = upper;
  if (!absl::ConsumePrefix(&rest, "SEINED_") && !absl::ConsumePrefix(&rest, "SEINE_")) return "";
  std::string words;
  for (const char c : rest) {
    if (c != '_' || (!words.empty() && words.back() != '_')) words += c;
  }
  return words;
}

// Warns of a name that is not read but looks as if it should be; empty for other names.
std::string NearMiss(const std::string& name) {
  const std::string words = Words(name);
  static constexpr const char* kOfClients[] = {"SEINE_SERVER",  "SEINE_TLS_CA", "SEINE_TLS_CERT",
                                               "SEINE_TLS_KEY", "SEINE_TOKEN",  "SEINE_TOKEN_FILE"};
  if (words.empty() || std::find(std::begin(kOfClients), std::end(kOfClients), name) != std::end(kOfClients)) return "";
  std::vector<std::string> all;
  for (const Setting& setting : Settings()) {
    const std::string whole = absl::AsciiStrToUpper(absl::StrReplaceAll(setting.key, {{".", "_"}}));
    const std::string last = absl::AsciiStrToUpper(setting.key.substr(setting.key.find('.') + 1));
    if (words == whole || words == last) {
      return absl::StrCat("environment: ", name, " is not read; did you mean ", VariableOf(setting.key), "?");
    }
    all.push_back(whole);
  }
  if (!absl::StrContains(name, "__")) return "";
  const std::string nearest = NearestWord(words, all);
  for (const Setting& setting : Settings()) {
    if (!nearest.empty() && nearest == absl::AsciiStrToUpper(absl::StrReplaceAll(setting.key, {{".", "_"}}))) {
      return absl::StrCat("environment: ", name, " is not read; did you mean ", VariableOf(setting.key), "?");
    }
  }
  return absl::StrCat("environment: ", name, " is not read: names of settings are ", kPrefix, "SECTION__KEY");
}

}  // namespace

absl::Status ApplyEnvironment(const char* const* environment, ServerConfig* config) {
  for (; *environment != nullptr; ++environment) {
    const absl::string_view entry = *environment;
    const size_t equals = entry.find('=');
    if (equals == absl::string_view::npos) continue;
    const std::string name(entry.substr(0, equals));
    absl::string_view rest = name;
    if (!absl::ConsumePrefix(&rest, kPrefix)) {
      if (std::string near = NearMiss(name); !near.empty()) config->warnings.push_back(std::move(near));
      continue;
    }
    const std::string key = absl::StrReplaceAll(absl::AsciiStrToLower(rest), {{"__", "."}});
    absl::Status status = ApplySetting(key, std::string(entry.substr(equals + 1)), absl::StrCat("environment: ", name),
                                       config, VariableOf);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace seine
