// Who may call: from what a call shows to the Caller that it is, by files that are read again on SIGHUP. It knows no
// gRPC; presented.h reads what a call shows.
#ifndef SEINE_SERVICE_ACCESS_ACCESS_H_
#define SEINE_SERVICE_ACCESS_ACCESS_H_

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "index/memory/memory_budget.h"
#include "service/access/caller.h"
#include "service/access/credentials.h"
#include "service/access/quotas.h"

namespace seine {

struct AccessOptions {
  std::string tokens_file;           // empty: no call needs a credential
  std::string quotas_file;           // empty: none; needs tokens_file
  std::string unix_calls = "owner";  // "owner": a call over a Unix socket needs none; "token": it needs one as well
  bool enabled() const { return !tokens_file.empty(); }
};

// What a call shows of itself.
struct Presented {
  std::string peer;
  bool over_unix = false;
  std::vector<std::string> authorization;  // each value of that metadata
  std::vector<std::string> sans;           // of the certificate that TLS has verified
};

// One text each, whatever was wrong with what was shown.
absl::Status Unauthenticated();
absl::Status NotAllowed();

// Thread-safe.
class Access {
 public:
  // INVALID_ARGUMENT naming the setting and what is wrong in its file. `whole`: the server's memory budget.
  static absl::StatusOr<std::unique_ptr<Access>> Open(const AccessOptions& options,
                                                      const std::shared_ptr<MemoryBudget>& whole);
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

  // The caller: by its token if it shows one, else by its certificate, else, over a Unix socket, its owner.
  // UNAUTHENTICATED: none of them, or a token that is not known.
  absl::StatusOr<std::shared_ptr<const Caller>> Identify(Presented presented);
  // Reads both files again. Not OK: what was read before counts. Credentials that are gone are gone for calls under way
  // as well.
  absl::Status Reload();

  size_t num_credentials() const;
  bool has_certificates() const;
  std::shared_ptr<Tenant> tenant(absl::string_view name) { return tenants_.Get(name); }
  std::vector<std::shared_ptr<Tenant>> tenants() const { return tenants_.All(); }  // as they have come

 private:
  Access(const AccessOptions& options, const std::shared_ptr<MemoryBudget>& whole)
      : options_(options), tenants_(whole) {}
  std::shared_ptr<const Credentials> credentials() const;

  const AccessOptions options_;
  Tenants tenants_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Credentials> credentials_;  // guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_ACCESS_ACCESS_H_
