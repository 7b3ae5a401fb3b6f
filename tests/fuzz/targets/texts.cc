// Short texts: RoPE as models state it, sizes, addresses, single settings, names of methods, words that are misspelt.
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/methods.h"
#include "client/security.h"
#include "nlohmann/json.hpp"
#include "profile/io/json.h"
#include "profile/rope.h"
#include "profile/spelling.h"
#include "service/access/credentials.h"
#include "service/config/config.h"
#include "service/fields/error.h"
#include "service/snapshots/files/exit_files.h"
#include "service/transport/sockets/address.h"
#include "tests/fuzz/targets/targets.h"

namespace seine::fuzz {
namespace {

void ReadRope(absl::string_view text) {
  for (const int dim : {2, 64, 128}) {
    const auto rope = ParseRope(text, dim, Rope::Style::kHalfSplit, 8192);
    if (!rope.ok()) continue;
    for (const double frequency : rope->inv_freq) {
      if (!std::isfinite(frequency)) Fail("a frequency is not finite");
    }
    const std::string json = RopeJson(*rope);
    const auto again = ParseRope(json, dim, rope->style, 1);
    if (!again.ok() || again->inv_freq != rope->inv_freq) Fail(absl::StrCat("written, but read as another: ", json));
  }
}

void ReadJson(absl::string_view text) {
  const auto json = ParseJson(text);
  if (!json.ok()) return;
  for (const char c : ShownJson(*json)) {
    if (c < ' ' || c == '\x7f') Fail("what is shown is not printable");
  }
}

void ReadBytes(absl::string_view text) {
  const auto bytes = ParseBytes(std::string(text));
  if (!bytes.ok()) return;
  if (*bytes < 0) Fail("a size is negative");
  const auto again = ParseBytes(FormatBytes(*bytes));
  if (!again.ok() || *again != *bytes) Fail(absl::StrCat(*bytes, " is written as ", FormatBytes(*bytes)));
}

// KEY=VALUE.
void ReadSetting(absl::string_view text) {
  const std::pair<std::string, std::string> setting = absl::StrSplit(absl::string_view(text), absl::MaxSplits('=', 1));
  ServerConfig config;
  const absl::Status status = ApplySetting(setting.first, setting.second, "here", &config,
                                           [](absl::string_view key) { return std::string(key); });
  if (!status.ok() && status.message().find('\n') != std::string::npos)
    Fail(absl::StrCat("an error of several lines: ", status.ToString()));
}

void ReadEnvironment(absl::string_view text) {
  const std::string variable(text.substr(0, text.find('\0')));
  const char* const environment[] = {variable.c_str(), nullptr};
  ServerConfig config;
  ApplyEnvironment(environment, &config).IgnoreError();
}

void ReadAddress(absl::string_view text) {
  const auto address = ParseAddress(text);
  if (address.ok() && !ParseAddress(address->ToString()).ok()) Fail(absl::StrCat("not taken: ", address->ToString()));
}

void ReadWords(absl::string_view text) {
  client::FindMethod(text).IgnoreError();
  for (const ValueSpellings& spellings : AllValueSpellings()) FindValue(spellings.type, text);
  CheckTenantName(text).IgnoreError();
  Sha256(text);
  for (const char c : Quoted(text)) {
    if (c >= 0 && (c < ' ' || c == '\x7f')) Fail("what is quoted is not printable");
  }
  if (!IsUtf8(Quoted(text))) Fail("what is quoted is no UTF-8");
}

constexpr void (*kTextReaders[])(absl::string_view) = {&ReadRope,        &ReadJson,    &ReadBytes, &ReadSetting,
                                                       &ReadEnvironment, &ReadAddress, &ReadWords};

// A byte that chooses the reader, then the text.
class TextsTarget : public Target {
 public:
  std::vector<std::string> Seeds() override {
    std::vector<std::string> seeds;
    const auto add = [&](int reader, absl::string_view text) {
      seeds.push_back(absl::StrCat(std::string(1, static_cast<char>(reader)), std::string(text)));
    };
    for (const char* json :
         {R"({"rope_theta": 10000.0})", R"({"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4})",
          R"({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, "original_max_position_embeddings": 4096})",
          R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192, "rope_theta": 5e5})",
          R"({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4, "max_position_embeddings": 2048})",
          R"({"rope_type": "table", "inv_freq": [1.0]})",
          R"({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2}})"}) {
      add(0, json);
      add(1, json);
    }
    for (const char* size : {"8GiB", "512MiB", "4GB", "1048576"}) add(2, size);
    for (const Setting& setting : Settings()) {
      add(3, absl::StrCat(setting.key, "=", setting.get(ServerConfig())));
      add(4, absl::StrCat("SEINE__", setting.key, "=", setting.get(ServerConfig())));
    }
    for (const char* address : {"unix:/tmp/s", "unix:///tmp/s", "localhost:1", "[::1]:65535", "0.0.0.0:0"})
      add(5, address);
    for (const char* word : {"Retrieve", "seine.v1.AdminService/GetMetrics", "float16", "acme"}) add(6, word);
    return seeds;
  }
  void Run(absl::string_view input) override {
    if (!input.empty()) kTextReaders[static_cast<uint8_t>(input[0]) % std::size(kTextReaders)](input.substr(1));
  }
};

}  // namespace

void AddTextsTarget(std::vector<TargetEntry>* out) {
  out->push_back({"texts", "RoPE, sizes, addresses, single settings, names", 20000,
                  [] { return std::make_unique<TextsTarget>(); }});
}

}  // namespace seine::fuzz
