// TLS of a server: its certificate, its key, and the authority that clients' certificates must come from. Files are
// read again when they have changed, at the next connection. Connections that are open stay open.
//
// gRPC's own FileWatcherCertificateProvider is not used: in gRPC 1.51 a broken new file ends all new connections
// (docs/decisions/service/0070-certificates-are-checked-before-they-count.md).
#ifndef SEINE_SERVICE_ACCESS_TLS_FILES_H_
#define SEINE_SERVICE_ACCESS_TLS_FILES_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace seine {

// Paths of PEM files. All empty: no TLS.
struct TlsOptions {
  std::string cert;       // the server's certificate, then those between it and its authority
  std::string key;        // of the certificate, without a passphrase
  std::string client_ca;  // clients must show a certificate of one of these; empty: they need none
  bool enabled() const { return !cert.empty() || !key.empty() || !client_ca.empty(); }
};

// OK, or INVALID_ARGUMENT naming the setting that is missing beside the others ("tls.key: ...").
absl::Status CheckComplete(const TlsOptions& options);

// Thread-safe.
class TlsFiles {
 public:
  // What the files hold.
  struct Material {
    std::string cert, key, client_ca;
  };

  // INVALID_ARGUMENT naming the setting: it cannot be read, is no PEM, has expired, or the key is another's.
  // `failed` is told of new files that are not taken, on any thread; it must not wait.
  static absl::StatusOr<std::shared_ptr<TlsFiles>> Open(const TlsOptions& options,
                                                        std::function<void(const absl::Status&)> failed);
  TlsFiles(const TlsFiles&) = delete;
  TlsFiles& operator=(const TlsFiles&) = delete;

  // Reads the files now, changed or not. Not OK: what was read before stays.
  absl::Status Reload();
  // What counts now, after a look whether the files have changed. Three stat calls where they have not.
  std::shared_ptr<const Material> Current();

  bool asks_clients() const { return !options_.client_ca.empty(); }

 private:
  TlsFiles(TlsOptions options, std::function<void(const absl::Status&)> failed)
      : options_(std::move(options)), failed_(std::move(failed)) {}
  std::string Signature() const;  // of the files: changes with them
  absl::Status ReadLocked();      // needs mutex_

  const TlsOptions options_;
  const std::function<void(const absl::Status&)> failed_;
  std::mutex mutex_;
  std::string read_;                          // signature of what was read last; guarded by mutex_
  std::shared_ptr<const Material> material_;  // guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_ACCESS_TLS_FILES_H_
