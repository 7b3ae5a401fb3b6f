#include "service/config/fleet_settings.h"

#include "service/config/optional_text.h"

namespace seine {

std::vector<Setting> FleetSettings() {
  return {
      OptionalText(
          "fleet.file", "FILE",
          "Description of the fleet that this server is of, as seine fleet status takes it; read again when it "
          "changes. "
          "ListServers, and the page, then show how its servers are: they are asked while somebody looks.",
          [](auto& c) -> auto& { return c.server.fleet.file; }),
      OptionalText(
          "fleet.token_file", "FILE",
          "A bearer token that the fleet's servers take, such as a reader's of their own tenant; without it servers "
          "that want credentials tell their health alone.",
          [](auto& c) -> auto& { return c.server.fleet.token_file; }),
      OptionalText(
          "fleet.tls_ca", "FILE",
          "Authorities in PEM of the fleet's certificates; servers on TCP are then asked by TLS, and shown tls.cert "
          "where they want a certificate.",
          [](auto& c) -> auto& { return c.server.fleet.tls_ca; }),
  };
}

}  // namespace seine
