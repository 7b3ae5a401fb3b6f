#include "service/metrics/http_address.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "service/snapshots/files/exit_files.h"
#include "service/transport/sockets/address.h"

namespace seine {

absl::StatusOr<std::string> ParseHttpAddress(absl::string_view text) {
  const auto refused = [](absl::string_view why) { return absl::InvalidArgumentError(why); };
  absl::StatusOr<Address> address = ParseAddress(text);
  if (absl::StartsWith(text, "unix:") || (address.ok() && !address->unix_path.empty())) {
    return refused(
        absl::StrCat("'", text, "' is a Unix socket, and HTTP is served on TCP alone: write 127.0.0.1:PORT"));
  }
  if (!address.ok()) return refused(absl::StripPrefix(address.status().message(), "listen: "));
  if (address->beyond_loopback) {
    return refused(absl::StrCat("'", text,
                                "' is beyond this machine's loopback, and metrics are served without credentials: "
                                "listen on 127.0.0.1 and forward to it"));
  }
  if (address->host == "localhost") address->host = "127.0.0.1";
  return address->ToString();
}

}  // namespace seine
