#include "service/access/credentials.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "index/counts/counts.h"
#include "index/types.h"
#include "service/access/wrong_setting.h"
#include "service/fields/names.h"
#include "service/fields/yaml_file.h"

namespace seine {
namespace {

std::optional<Role> RoleNamed(absl::string_view name) {
  for (const Role role : {Role::kReader, Role::kWriter, Role::kAdmin}) {
    if (name == NameOf(role)) return role;
  }
  return std::nullopt;
}

std::optional<Digest> DigestOf(const std::string& hex) {
  Digest digest;
  if (hex.size() != 2 * digest.size() || !std::all_of(hex.begin(), hex.end(), absl::ascii_isxdigit)) return {};
  const std::string bytes = absl::HexStringToBytes(hex);
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

// An entry of the file.
struct CredentialEntry {
  std::string sha256, san, tenant;
  Role role = Role::kNone;
};

absl::Status SetEntry(const std::string& key, const std::string& value, const std::string& where,
                      CredentialEntry* entry) {
  if (key == "sha256") {
    entry->sha256 = absl::AsciiStrToLower(value);
    if (!DigestOf(value)) return WrongSetting(where, "expected the SHA-256 of a token, 64 hexadecimal digits");
  } else if (key == "san") {
    entry->san = value;
    if (value.empty()) return WrongSetting(where, "expected a subject alternative name");
  } else if (key == "tenant") {
    entry->tenant = value;
    if (auto s = CheckTenantName(value); !s.ok()) return WrongSetting(where, s.message());
  } else if (key == "role") {
    const auto role = RoleNamed(value);
    if (!role) return WrongSetting(where, "expected reader, writer or admin");
    entry->role = *role;
  } else {
    return WrongSetting(where, "unknown key; there are sha256, san, tenant and role");
  }
  return absl::OkStatus();
}

absl::StatusOr<CredentialEntry> EntryFrom(const YAML::Node& node, const std::string& where) {
  if (!node.IsMap()) return WrongSetting(where, "expected {sha256, tenant, role} or {san, tenant, role}");
  CredentialEntry entry;
  for (const auto& pair : node) {
    // A key may be a token that stands in the wrong place: it is not repeated.
    const std::string key = pair.first.IsScalar() ? pair.first.Scalar() : "";
    const bool known = key == "sha256" || key == "san" || key == "tenant" || key == "role";
    const std::string field = absl::StrCat(where, known ? "." : "", known ? key : "");
    if (known && !pair.second.IsScalar()) return WrongSetting(field, "expected text");
    if (auto s = SetEntry(key, known ? pair.second.Scalar() : "", field, &entry); !s.ok()) return s;
  }
  if (entry.sha256.empty() == entry.san.empty()) return WrongSetting(where, "expected one of sha256 and san");
  if (entry.role == Role::kNone) return WrongSetting(where + ".role", "is missing: reader, writer or admin");
  return entry;
}

bool SameGrant(const Grant& a, const Grant& b) { return a.tenant == b.tenant && a.role == b.role; }

}  // namespace

Digest Sha256(absl::string_view bytes) {
  Digest digest;
  SHA256(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), digest.data());
  return digest;
}

absl::Status CheckTenantName(absl::string_view name) {
  if (CheckName(name, "tenant").ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected 1 to ", kMaxNameLength, " letters, digits, '.', '_' or '-'"));
}

absl::StatusOr<std::shared_ptr<const Credentials>> Credentials::Load(const std::string& path,
                                                                     const Credentials* before) {
  const absl::StatusOr<YAML::Node> root = LoadYaml(path);
  if (!root.ok()) return root.status();
  if (!root->IsSequence()) return WrongSetting(path, "expected a list of credentials");
  if (root->size() > kMaxCredentials)
    return WrongSetting(path, absl::StrCat("more than ", kMaxCredentials, " credentials"));
  auto credentials = std::make_shared<Credentials>();
  std::map<Digest, std::shared_ptr<Grant>> old_tokens;
  std::map<std::string, std::shared_ptr<Grant>> old_certificates;
  if (before != nullptr) {
    for (const Token& token : before->tokens_) old_tokens.emplace(token.digest, token.grant);
    old_certificates = before->certificates_;
  }
  std::set<std::string> seen;
  for (size_t i = 0; i < root->size(); ++i) {
    const std::string where = absl::StrCat(path, ": [", i, "]");
    auto entry = EntryFrom((*root)[i], where);
    if (!entry.ok()) return entry.status();
    const bool is_token = !entry->sha256.empty();
    if (!seen.insert(is_token ? entry->sha256 : " " + entry->san).second) {
      return WrongSetting(where, "a second entry for the same credential");
    }
    auto grant = std::make_shared<Grant>();
    grant->name = is_token ? "token " + entry->sha256.substr(0, 8) : "certificate " + entry->san;
    grant->tenant = entry->tenant;
    grant->role = entry->role;
    if (is_token) {
      const Digest digest = *DigestOf(entry->sha256);
      const auto old = old_tokens.find(digest);
      if (old != old_tokens.end() && SameGrant(*old->second, *grant)) grant = old->second;
      credentials->tokens_.push_back({digest, std::move(grant)});
    } else {
      const auto old = old_certificates.find(entry->san);
      if (old != old_certificates.end() && SameGrant(*old->second, *grant)) grant = old->second;
      credentials->certificates_.emplace(entry->san, std::move(grant));
    }
  }
  return credentials;
}

std::shared_ptr<const Grant> Credentials::OfToken(absl::string_view token) const {
  if (token.empty() || token.size() > kMaxTokenBytes) return nullptr;
  const Digest digest = Sha256(token);
  const Token* found = nullptr;
  for (const Token& one : tokens_) {  // all of them, whichever it is
    if (CRYPTO_memcmp(one.digest.data(), digest.data(), digest.size()) == 0) found = &one;
  }
  return found == nullptr ? nullptr : found->grant;
}

std::shared_ptr<const Grant> Credentials::OfCertificate(const std::string& san) const {
  const auto found = certificates_.find(san);
  return found == certificates_.end() ? nullptr : found->second;
}

void Credentials::RevokeWhatIsNotIn(const Credentials& next) const {
  std::set<const Grant*> kept;
  for (const Token& token : next.tokens_) kept.insert(token.grant.get());
  for (const auto& [san, grant] : next.certificates_) kept.insert(grant.get());
  const auto revoke = [&](Grant& grant) {
    if (!kept.contains(&grant)) grant.revoked.store(true, std::memory_order_relaxed);
  };
  for (const Token& token : tokens_) revoke(*token.grant);
  for (const auto& [san, grant] : certificates_) revoke(*grant);
}

}  // namespace seine
