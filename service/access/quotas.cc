#include "service/access/quotas.h"

#include <yaml-cpp/yaml.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "profile/spelling.h"
#include "service/access/credentials.h"
#include "service/access/wrong_setting.h"
#include "service/fields/bytes.h"
#include "service/fields/error.h"
#include "service/fields/yaml_file.h"

namespace seine {
namespace {

struct QuotaField {
  const char* name;
  int64_t Quotas::*member;
  bool bytes;
};

constexpr QuotaField kQuotaFields[] = {
    {"memory", &Quotas::memory_bytes, true},
    {"device_memory", &Quotas::device_memory_bytes, true},
    {"indexes", &Quotas::indexes, false},
    {"sequences", &Quotas::sequences, false},
    {"steps_per_second", &Quotas::steps_per_second, false},
    {"calls", &Quotas::calls, false},
};

constexpr int64_t kMostCount = 1'000'000'000;

absl::Status SetQuota(const std::string& key, const YAML::Node& value, const std::string& where, Quotas* quotas) {
  std::vector<std::string> names;
  for (const QuotaField& field : kQuotaFields) {
    names.emplace_back(field.name);
    if (key != field.name) continue;
    if (!value.IsScalar()) return WrongSetting(where, "expected one value");
    const std::string& text = value.Scalar();
    if (field.bytes) {
      const auto bytes = ParseBytes(text);
      if (!bytes.ok()) return WrongSetting(where, bytes.status().message());
      quotas->*field.member = *bytes;
      return absl::OkStatus();
    }
    int64_t count = 0;
    if (!absl::SimpleAtoi(text, &count) || count < 0 || count > kMostCount) {
      return WrongSetting(where, absl::StrCat(Quoted(text), " is no number in [0, ", kMostCount, "]"));
    }
    quotas->*field.member = count;
    return absl::OkStatus();
  }
  const std::string meant = NearestWord(key, names);
  return WrongSetting(
      where, absl::StrCat("unknown key", meant.empty() ? "" : "; did you mean ", meant, meant.empty() ? "" : "?"));
}

}  // namespace

absl::StatusOr<QuotasByTenant> LoadQuotas(const std::string& path) {
  const absl::StatusOr<YAML::Node> root = LoadYaml(path);
  if (!root.ok()) return root.status();
  QuotasByTenant all;
  if (root->IsNull()) return all;
  if (!root->IsMap()) return WrongSetting(path, "expected tenants and their quotas");
  for (const auto& entry : *root) {
    const YAML::Node quotas = entry.second;
    const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
    const std::string where = absl::StrCat(path, ": ", Quoted(name));
    if (auto s = CheckTenantName(name); !s.ok()) return WrongSetting(where, s.message());
    if (!quotas.IsMap()) return WrongSetting(where, "expected keys and values");
    for (const auto& quota : quotas) {
      const std::string word = quota.first.IsScalar() ? quota.first.Scalar() : "?";
      if (auto s = SetQuota(word, quota.second, absl::StrCat(path, ": ", name, ".", word), &all[name]); !s.ok())
        return s;
    }
  }
  return all;
}

}  // namespace seine
