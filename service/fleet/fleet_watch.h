// Health of the other servers of a fleet. A file names them (profile/io/fleet_file.h), which is read again
// when it changes.
//
// Servers are asked by a thread of its own, and only while somebody looks: a call for the list never waits for another
// machine. Nobody but the file's author can make the server connect anywhere, or send its token there.
#ifndef SEINE_SERVICE_FLEET_FLEET_WATCH_H_
#define SEINE_SERVICE_FLEET_FLEET_WATCH_H_

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "profile/io/fleet_file.h"
#include "seine/v1/admin_service.pb.h"

namespace grpc {
class Channel;
}

namespace seine {

class TlsFiles;

// Paths. A server on TCP is called by TLS where `tls_ca` is given.
struct FleetOptions {
  std::string file;        // empty: no fleet is known
  std::string token_file;  // a bearer token that the fleet's servers know; empty: none is sent
  std::string tls_ca;      // authorities of their certificates, in PEM
};

// OK, or INVALID_ARGUMENT naming the setting: one that means nothing without fleet.file, or a file that is not as it
// must be. A file of a fleet that is not there yet is no error.
absl::Status Validate(const FleetOptions& options);

// Health and facts that a server of the file has told.
struct WatchedServer {
  using Clock = std::chrono::steady_clock;
  FleetNode node;
  v1::ServerHealth health = v1::SERVER_HEALTH_UNSPECIFIED;
  std::string error;  // one line; why it was not reached, or did not say what it holds
  std::shared_ptr<const v1::GetServerInfoResponse> info;  // nullptr: it did not say
  Clock::time_point asked{};                              // when its answer came; the clock's zero: never
};

// Thread-safe.
class FleetWatch {
 public:
  using Clock = WatchedServer::Clock;
  static constexpr std::chrono::seconds kEvery{2};     // between two questions to a server
  static constexpr std::chrono::seconds kLooked{12};   // somebody is looking for so long after a call
  static constexpr std::chrono::seconds kPatience{2};  // until a server that does not answer is not reached
  static constexpr int kAtOnce = 16;                   // servers that are asked

  // `tls`: this server's own certificate, which it shows where TLS is used; nullptr: none.
  FleetWatch(FleetOptions options, std::shared_ptr<TlsFiles> tls);
  ~FleetWatch();  // ends what is asked
  FleetWatch(const FleetWatch&) = delete;
  FleetWatch& operator=(const FleetWatch&) = delete;

  // The fleet as the file has it now. Errors open with the path; NOT_FOUND: it is not
  // there.
  absl::StatusOr<FleetDescription> Describe();
  // Returns the answers of those servers so far. They are asked from now on, and for kLooked.
  std::vector<WatchedServer> Look(const std::vector<FleetNode>& nodes);
  // The process that answered lately under a name (GetServerInfoResponse.instance); empty: none has.
  std::string InstanceOf(const std::string& name);

 private:
  struct Question;
  class Round;
  struct Watched {
    WatchedServer said;
    Clock::time_point looked;                // when somebody looked last
    std::shared_ptr<grpc::Channel> channel;  // nullptr: none yet, or it was not reached
  };
  struct Due {
    FleetNode node;
    std::shared_ptr<grpc::Channel> channel;
  };
  void Watch();
  bool Stops();
  void Publish(WatchedServer server, std::shared_ptr<grpc::Channel> channel);
  // Those that are to be asked now; forgets those that nobody looks at. Needs mutex_.
  std::vector<Due> TakeDue(Clock::time_point now);

  const FleetOptions options_;
  const std::shared_ptr<TlsFiles> tls_;
  std::mutex reading_;  // before mutex_
  std::string read_;    // signature of the file that was read last; guarded by reading_
  absl::StatusOr<FleetDescription> fleet_ = absl::NotFoundError("");  // guarded by reading_
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::string, Watched> watched_;  // by name; guarded by mutex_
  bool stops_ = false;                      // guarded by mutex_
  std::thread thread_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_FLEET_FLEET_WATCH_H_
