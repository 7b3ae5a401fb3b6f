#include "profile/io/endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace seine {

std::string SocketPath(const std::string& endpoint) {
  absl::string_view path = endpoint;
  const bool bare =
      absl::StartsWith(endpoint, "/") || (absl::StrContains(endpoint, "/") && !absl::StrContains(endpoint, ":"));
  if (bare) return endpoint;
  if (!absl::ConsumePrefix(&path, "unix:")) return "";
  absl::ConsumePrefix(&path, "//");
  return std::string(path);
}

absl::Status CheckEndpoint(const std::string& endpoint) {
  constexpr absl::string_view kForms = "expected unix:///path/to/socket, /path/to/socket or host:port";
  const std::string path = SocketPath(endpoint);
  if (!path.empty() || absl::StartsWith(endpoint, "unix:")) {
    if (path.empty()) return absl::InvalidArgumentError(absl::StrCat("endpoint ", endpoint, ": ", kForms));
    if (path.size() >= sizeof(sockaddr_un::sun_path)) {
      return absl::InvalidArgumentError(absl::StrCat("endpoint ", endpoint, ": a socket's path has at most ",
                                                     sizeof(sockaddr_un::sun_path) - 1, " bytes"));
    }
    return absl::OkStatus();
  }
  const size_t colon = endpoint.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 || absl::StrContains(endpoint, "/") ||
      !absl::SimpleAtoi(endpoint.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("endpoint ", endpoint, ": ", kForms));
  }
  return absl::OkStatus();
}

bool IsLoopback(const std::string& endpoint) {
  const std::string host = endpoint.substr(0, endpoint.rfind(':'));
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return host == "localhost" || host == "[::1]";
}

}  // namespace seine
