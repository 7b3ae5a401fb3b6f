// Asks a running server by JSON: for commands that show what it says and need no types of their own.
#ifndef SEINE_CLIENT_CLI_LIVE_ASK_H_
#define SEINE_CLIENT_CLI_LIVE_ASK_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/base/output.h"
#include "client/client.h"

namespace seine::cli {

// The answer of a method that is no stream, e.g. "GetMetrics". Errors of the call; INTERNAL where there is no answer.
absl::StatusOr<Json> Ask(client::Client* client, const std::string& method, const Json& request);

// protobuf's JSON writes 64-bit numbers as strings.
int64_t Int(const Json& value);

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_LIVE_ASK_H_
