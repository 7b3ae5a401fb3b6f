// See bare_socket.h.
#include "bench/serving/bare_socket.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

namespace seine::bench {
namespace {

using Clock = std::chrono::steady_clock;

double Microseconds(Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); }

// All of `bytes`, or false when the other side has gone.
bool Receive(int socket, bool spin, std::vector<char>* bytes) {
  for (size_t done = 0; done < bytes->size();) {
    const ssize_t n = recv(socket, bytes->data() + done, bytes->size() - done, spin ? MSG_DONTWAIT : 0);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      return false;
    }
  }
  return true;
}

bool Send(int socket, const std::vector<char>& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = send(socket, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

void Serve(int socket, const BareSocketOptions& o) {
  std::vector<char> request(o.request_bytes), response(o.response_bytes, 1);
  while (Receive(socket, o.spin, &request)) {
    const Clock::time_point begin = Clock::now();
    while (Microseconds(Clock::now() - begin) < o.work_us) {
    }
    if (!Send(socket, response)) return;
  }
}

}  // namespace

absl::StatusOr<double> MeasureBareSocket(const BareSocketOptions& o) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return absl::ErrnoToStatus(errno, "socketpair");
  std::thread server([&] { Serve(sockets[1], o); });
  std::vector<char> request(o.request_bytes, 1), response(o.response_bytes);
  std::vector<double> us;
  bool open = true;
  for (int i = 0; i < o.steps && open; ++i) {
    const Clock::time_point begin = Clock::now();
    open = Send(sockets[0], request) && Receive(sockets[0], o.spin, &response);
    us.push_back(Microseconds(Clock::now() - begin) - o.work_us);
  }
  shutdown(sockets[0], SHUT_RDWR);
  server.join();
  close(sockets[0]);
  close(sockets[1]);
  if (!open || us.empty()) return absl::InternalError("the bare socket pair broke");
  std::nth_element(us.begin(), us.begin() + us.size() / 2, us.end());
  return us[us.size() / 2];
}

}  // namespace seine::bench
