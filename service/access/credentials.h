// The credentials that a server takes, as its tokens file lists them:
//
//   - {sha256: 5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8, tenant: acme, role: writer}
//   - {san: engine.acme.example, tenant: acme, role: reader}
//
// `sha256` is the digest of a bearer token's bytes, 64 hexadecimal digits; `san` a subject alternative name of a client
// certificate. `tenant` left out: the server's own tenant. Quotas have a file of their own (quotas.h).
#ifndef SEINE_SERVICE_ACCESS_CREDENTIALS_H_
#define SEINE_SERVICE_ACCESS_CREDENTIALS_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/access/caller.h"

namespace seine {

inline constexpr size_t kMaxTokenBytes = 4096;
inline constexpr size_t kMaxCredentials = 10'000;

using Digest = std::array<uint8_t, 32>;
Digest Sha256(absl::string_view bytes);

// OK, or INVALID_ARGUMENT: a tenant's name is as an index's.
absl::Status CheckTenantName(absl::string_view name);

// Immutable but for Grant::revoked, so thread-safe.
class Credentials {
 public:
  // INVALID_ARGUMENT "PATH: [3].sha256: what" on one line; it never holds a digest. Grants that `before` (may be
  // nullptr) has in the same words are taken over.
  static absl::StatusOr<std::shared_ptr<const Credentials>> Load(const std::string& path, const Credentials* before);

  // nullptr: nobody's. The time taken depends on how many tokens there are, never on which one is right.
  std::shared_ptr<const Grant> OfToken(absl::string_view token) const;
  std::shared_ptr<const Grant> OfCertificate(const std::string& san) const;

  size_t size() const { return tokens_.size() + certificates_.size(); }
  bool has_certificates() const { return !certificates_.empty(); }
  // Grants that `next` no longer has are revoked: whoever goes on by one is refused from now on.
  void RevokeWhatIsNotIn(const Credentials& next) const;

 private:
  struct Token {
    Digest digest;
    std::shared_ptr<Grant> grant;
  };
  std::vector<Token> tokens_;
  std::map<std::string, std::shared_ptr<Grant>> certificates_;  // by SAN
};

}  // namespace seine

#endif  // SEINE_SERVICE_ACCESS_CREDENTIALS_H_
