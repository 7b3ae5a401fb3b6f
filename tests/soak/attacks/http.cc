// Clients of the HTTP listener that hold its connections.
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/service/metrics/http_client.h"
#include "tests/soak/attacks/helpers.h"
#include "tests/soak/attacks/made_attacks.h"

namespace seine::soak {

// A third says nothing, a third sends its request by the byte, a third asks for all metrics and reads none. Those that
// the server ends come again.
void SlowHttp(const Target& target, Tally& tally) {
  static constexpr size_t kClients = 2000;
  static const std::string request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(4000, 'x');
  struct SlowClient {
    int fd = -1;
    size_t sent = 0;
  };
  RaiseDescriptors();
  std::vector<SlowClient> clients(kClients);
  for (size_t next = 0;; next = (next + 1) % kClients) {
    SlowClient& client = clients[next];
    if (client.fd < 0) {
      client = {test::HttpConnect(target.metrics), 0};
      tally.CaseAndFault();
      constexpr char kAll[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
      if (next % 3 == 0) send(client.fd, kAll, sizeof(kAll) - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    char none = 0;
    const bool one =
        next % 3 == 1 && send(client.fd, &request[client.sent++ % request.size()], 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0;
    if (one || (next % 3 != 0 && recv(client.fd, &none, 1, MSG_DONTWAIT | MSG_PEEK) == 0)) {
      close(std::exchange(client.fd, -1));
    }
    if (next % 100 == 0) Pause(1);
  }
}

}  // namespace seine::soak
