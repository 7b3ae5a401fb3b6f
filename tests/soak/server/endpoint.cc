#include "tests/soak/server/endpoint.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace seine::soak {
namespace {

constexpr char kTlsScheme[] = "tls:";

}  // namespace

const char* NameOf(Transport transport) {
  return transport == Transport::kUnix ? "unix" : transport == Transport::kTcp ? "tcp" : "tls";
}

Endpoint Endpoint::Make(Transport transport, const std::string& folder) {
  if (transport == Transport::kUnix) return {absl::StrCat("unix:", folder, "/seine.sock"), ""};
  Endpoint made{absl::StrCat("127.0.0.1:", FreePort()), ""};
  if (transport == Transport::kTls) made.folder = folder;
  if (transport == Transport::kTls) MakeCertificate(folder);  // without one seined says what is missing
  return made;
}

std::string Endpoint::ToString() const {
  return folder.empty() ? address : absl::StrCat(kTlsScheme, folder, "@", address);
}

Endpoint Endpoint::Parse(const std::string& text) {
  if (text.rfind(kTlsScheme, 0) != 0) return {text, ""};
  const size_t begin = sizeof(kTlsScheme) - 1, at = text.rfind('@');
  return {text.substr(at + 1), text.substr(begin, at - begin)};
}

int Endpoint::port() const { return std::atoi(address.c_str() + address.rfind(':') + 1); }

std::vector<std::string> Endpoint::Flags() const {
  std::vector<std::string> flags = {"--listen", address};
  if (!folder.empty()) {
    flags.insert(flags.end(), {"--tls-cert", folder + "/server.pem", "--tls-key", folder + "/server.key"});
  }
  return flags;
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  close(fd);
  return ntohs(address.sin_port);
}

bool MakeCertificate(const std::string& folder) {
  const std::string command =
      absl::StrCat("cd ", folder,
                   " && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes "
                   "-keyout server.key -out server.pem -days 2 -subj /CN=seine "
                   "-addext subjectAltName=IP:127.0.0.1 >openssl.log 2>&1");
  return std::system(command.c_str()) == 0;
}

}  // namespace seine::soak
