#include "tests/service/metrics/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

namespace seine::test {

int HttpConnect(const std::string& address) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.substr(address.rfind(':') + 1).c_str())));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) return fd;
  close(fd);
  return -1;
}

HttpAnswer Http(const std::string& address, const std::string& method, const std::string& path,
                const std::string& headers) {
  const int fd = HttpConnect(address);
  if (fd < 0) return {};
  const std::string request = method + " " + path + " HTTP/1.1\r\n" + headers + "\r\n";
  std::string text;
  if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
    char bytes[4096];
    for (ssize_t got; (got = recv(fd, bytes, sizeof(bytes), 0)) > 0;) text.append(bytes, static_cast<size_t>(got));
  }
  close(fd);
  const size_t end = text.find("\r\n\r\n");
  if (text.rfind("HTTP/1.1 ", 0) != 0 || end == std::string::npos) return {};
  return {std::atoi(text.c_str() + 9), text.substr(0, end), text.substr(end + 4)};
}

}  // namespace seine::test
