// What commands that move families share: how they connect to further servers, and what they say of a move.
#ifndef SEINE_CLIENT_CLI_FLEET_CONNECTIONS_H_
#define SEINE_CLIENT_CLI_FLEET_CONNECTIONS_H_

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
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

// Says that a move has frozen a family for all that it holds; `why` is empty where it has not.
inline std::string WholeText(const std::string& why) {
  return why.empty() ? "" : absl::StrCat(", for all of it: ", why);
}

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_FLEET_CONNECTIONS_H_
