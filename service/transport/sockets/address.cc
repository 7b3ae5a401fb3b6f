#include "service/transport/sockets/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace seine {
namespace {

bool IsLoopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

// Of a name or an address: no path, and nothing that a log or a YAML file could not say.
bool IsHost(absl::string_view host) {
  return std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_' || c == ':' || c == '%';
  });
}

// client/channel/channel.cc and client/python/seine_kv/address.py have the same.
bool IsOwnFolder(const struct stat& info) {
  return S_ISDIR(info.st_mode) && info.st_uid == getuid() && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

std::string FolderInTmp() { return absl::StrCat("/tmp/seine-", getuid()); }

}  // namespace

std::string Address::ToString() const {
  // Two slashes behind "unix:" are not the path's: one that begins with two has four.
  if (!unix_path.empty()) return absl::StrCat(absl::StartsWith(unix_path, "//") ? "unix://" : "unix:", unix_path);
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  Address address;
  absl::string_view rest = text;
  const bool bare_path = absl::StartsWith(text, "/") || (absl::StrContains(text, '/') && !absl::StrContains(text, ':'));
  if (bare_path || absl::ConsumePrefix(&rest, "unix:")) {
    if (!bare_path) absl::ConsumePrefix(&rest, "//");
    address.unix_path = std::string(rest);
    if (rest.empty()) return absl::InvalidArgumentError("listen: unix: without a path");
    if (rest.find('\0') != absl::string_view::npos)
      return absl::InvalidArgumentError("listen: a zero byte in the path");
    if (rest.size() >= sizeof(sockaddr_un{}.sun_path)) {
      return absl::InvalidArgumentError(
          absl::StrCat("listen: path longer than ", sizeof(sockaddr_un{}.sun_path) - 1, " bytes"));
    }
    return address;
  }
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(colon + 1), &address.port) ||
      address.port < 0 || address.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("listen: '", text, "' is neither unix:PATH nor HOST:PORT"));
  }
  absl::string_view host = rest.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  address.host = std::string(host);
  if (host.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen: '", text, "' names no host; 0.0.0.0 and [::] are all of this machine's"));
  }
  if (!IsHost(host)) return absl::InvalidArgumentError("listen: names no host: letters, digits and .-_:% alone");
  address.beyond_loopback = !IsLoopback(address.host);
  return address;
}

std::string DefaultAddress() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  struct stat info;
  if (runtime != nullptr && *runtime == '/' && stat(runtime, &info) == 0 && IsOwnFolder(info)) {
    return absl::StrCat("unix:", runtime, "/seine.sock");
  }
  return absl::StrCat("unix:", FolderInTmp(), "/seine.sock");
}

absl::Status MakeDefaultFolder(const Address& address) {
  const std::string folder = FolderInTmp();
  if (address.unix_path != folder + "/seine.sock") return absl::OkStatus();
  struct stat info;
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::FailedPreconditionError(absl::StrCat("listen: ", folder, ": ", strerror(errno)));
  }
  if (lstat(folder.c_str(), &info) == 0 && IsOwnFolder(info)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "listen: ", folder, " is no folder of this user alone; remove it, or --listen takes another address"));
}

}  // namespace seine
