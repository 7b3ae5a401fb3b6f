// How commands that call several servers connect to them.
#ifndef SEINE_CLIENT_CLI_FLEET_CONNECTIONS_H_
#define SEINE_CLIENT_CLI_FLEET_CONNECTIONS_H_

#include <algorithm>

#include "client/cli/commands.h"

namespace seine::cli {

// Returns the options of a further server's Client: the command line's timeout, and its credentials.
inline client::Options OptionsOf(const Session& session) {
  client::Options options;
  options.timeout = absl::Seconds(session.timeout_seconds);
  options.connect_timeout = std::min(options.connect_timeout, options.timeout);
  options.security = client::WithEnvironment(session.security);
  return options;
}

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_FLEET_CONNECTIONS_H_
