// What a server starts with. Plain values; config/ reads them from a file and flags.
#ifndef SEINE_SERVICE_SERVER_OPTIONS_H_
#define SEINE_SERVICE_SERVER_OPTIONS_H_

#include <chrono>
#include <string>
#include <vector>

#include "index/idle/idle_tier.h"
#include "service/access/access.h"
#include "service/access/tls_files.h"
#include "service/core.h"
#include "service/fleet/fleet_watch.h"
#include "service/snapshots/files/snapshot_folder.h"

namespace seine {

struct ServerOptions {
  std::string listen;          // an address (address.h)
  std::string metrics_listen;  // as ParseHttpAddress returns it (http_address.h); empty: no HTTP
  bool metrics_page = false;   // HTTP serves the page besides (page/page.h)
  bool polling = false;        // services.h
  bool draining = false;       // it takes no new families, as after SetDraining
  CoreOptions core;
  TlsOptions tls;  // of TCP; beyond loopback there must be some, and a credential
  AccessOptions access;
  std::string audit_file;            // empty: there is none
  std::vector<IndexConfig> indexes;  // made at start
  SnapshotOptions snapshots;
  FleetOptions fleet;
  IdleOptions idle{.folder = "", .spill_after = std::chrono::minutes(10)};
};

}  // namespace seine

#endif  // SEINE_SERVICE_SERVER_OPTIONS_H_
