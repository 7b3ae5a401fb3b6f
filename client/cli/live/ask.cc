#include "client/cli/live/ask.h"

#include <cstdlib>

#include "client/fleet/ask.h"

namespace seine::cli {

int64_t Int(const Json& value) {
  return value.is_string() ? std::strtoll(value.get<std::string>().c_str(), nullptr, 10) : value.get<int64_t>();
}

absl::StatusOr<Json> Ask(client::Client* client, const std::string& method, const Json& request) {
  const absl::StatusOr<nlohmann::json> answer = client::Ask(client, method, request);
  if (!answer.ok()) return answer.status();
  return Json(*answer);
}

}  // namespace seine::cli
