// Routes an engine's calls to the servers of a fleet, by the description that seine_kv.fleet writes. It needs no Ray.
//
//   auto fleet = FleetClient::Create(ReadFleet("fleet.json").value());
//   auto sequence = fleet->CreateSequence("llama", "chat-7").value();
//   Client* client = fleet->ClientOf("llama", "chat-7").value();     // the calls of client.h, of that node
//   auto stream = client->OpenDecodeStream(Transport::kAuto);        // one a node; a batch is split by NodeOf
//
// Families are found by asking the nodes. A new one goes to the first by rendezvous hashing that serves and takes new
// families; loads are not known here. Thread-safe.
#ifndef SEINE_CLIENT_FLEET_FLEET_CLIENT_H_
#define SEINE_CLIENT_FLEET_FLEET_CLIENT_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/fleet/description.h"

namespace seine::client {

class FleetClient {
 public:
  // `options`: of every node's Client. Nodes are connected to when they are first called.
  static std::unique_ptr<FleetClient> Create(FleetDescription fleet, const Options& options = {});

  // The name of the node that has the sequence's family. NOT_FOUND: none has the sequence; UNAVAILABLE: none that
  // answers has it, and one does not answer.
  absl::StatusOr<std::string> NodeOf(const std::string& index, const std::string& id);

  // The Client of that node; lives as long as this.
  absl::StatusOr<Client*> ClientOf(const std::string& index, const std::string& id);

  // The Client of a node by its name. NOT_FOUND: there is no such node.
  absl::StatusOr<Client*> At(const std::string& node);

  // On the family's node, or on the one for a new family. The index must be there. INVALID_ARGUMENT: no id;
  // UNAVAILABLE: no node that takes new families serves.
  absl::StatusOr<Sequence> CreateSequence(const std::string& index, const std::string& id);

  // The name of the node that CreateSequence would choose.
  absl::StatusOr<std::string> PlaceFor(const std::string& index, const std::string& id);

  // Forgets where a family is: the next call asks again. For what a node answers with NOT_FOUND or UNAVAILABLE.
  void Forget(const std::string& id);

  const FleetDescription& description() const { return fleet_; }

 private:
  FleetClient(FleetDescription fleet, const Options& options) : fleet_(std::move(fleet)), options_(options) {}
  absl::StatusOr<std::string> Ask(const std::string& index, const std::string& id);

  const FleetDescription fleet_;
  const Options options_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Client>> clients_;  // by node; guarded by mutex_
  std::map<std::string, std::string> nodes_;                // by family; guarded by mutex_
};

}  // namespace seine::client

#endif  // SEINE_CLIENT_FLEET_FLEET_CLIENT_H_
