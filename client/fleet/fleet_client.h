// Routes an engine's calls to the servers of a fleet, by the description that seine_kv.fleet writes. It needs no Ray.
//
//   auto fleet = FleetClient::Create(ReadFleet("fleet.json").value());
//   auto sequence = fleet->CreateSequence("llama", "chat-7").value();
//   Client* client = fleet->ClientOf("llama", "chat-7").value();     // the calls of client.h, of that node
//   auto stream = client->OpenDecodeStream(Transport::kAuto);        // one a node; a batch is split by NodeOf
//
// Families are found by asking all nodes. Where several hold one, the newest generation counts. A new one goes to the
// first by rendezvous hashing that serves and takes new families; loads are not known here. One that is made anew goes
// where it had moved, if that node serves: the node that it left takes it no more. Run follows a family that moves. One
// whose mover has died before the new node had it is brought up there by the first client that is sent on (claim.h).
// Thread-safe.
#ifndef SEINE_CLIENT_FLEET_FLEET_CLIENT_H_
#define SEINE_CLIENT_FLEET_FLEET_CLIENT_H_

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/fleet/trail.h"
#include "profile/io/fleet_file.h"

namespace seine::client {

class FleetClient {
 public:
  // `options`: of every node's Client. Nodes are connected to when they are first called. `patience`: a family that
  // moves is followed for so long.
  static std::unique_ptr<FleetClient> Create(FleetDescription fleet, const Options& options = {},
                                             absl::Duration patience = absl::Seconds(10));

  // The name of the node that has the sequence's family. NOT_FOUND: none has the sequence, or, reason SEQUENCE_LOST,
  // the node that its family moved to has lost it. UNAVAILABLE: none that answers has it, and one does not answer.
  // FAILED_PRECONDITION, reason NOT_IN_FLEET: the family has moved to a node that the description lacks.
  absl::StatusOr<std::string> NodeOf(const std::string& index, const std::string& id);

  // The Client of that node; lives as long as this.
  absl::StatusOr<Client*> ClientOf(const std::string& index, const std::string& id);

  // The Client of a node by its name. NOT_FOUND: there is no such node.
  absl::StatusOr<Client*> At(const std::string& node);

  // On the family's node, or on the one for a new family; follows a family that moves, as Run does. Nodes that have
  // given the family up, or drain, are passed over. The index must be there. INVALID_ARGUMENT: no id; UNAVAILABLE: no
  // other node that takes new families serves.
  absl::StatusOr<Sequence> CreateSequence(const std::string& index, const std::string& id);

  // The name of the node that CreateSequence would choose.
  absl::StatusOr<std::string> PlaceFor(const std::string& index, const std::string& id);

  // Returns what call(Client*) does with the family's node: an absl::Status or StatusOr. Where the node answers MOVED,
  // the family is looked for among the nodes and called again. MOVING is waited for, as long as the node asks: nothing
  // was changed then. After `patience` the error is UNAVAILABLE, reason MOVING, and never MOVED. `call` should name
  // sequences by generation 0, since a family that has moved has other generations.
  //
  //   fleet->Run("llama", "chat-7", [&](Client* client) { return client->Append(item); });
  template <typename Call>
  std::invoke_result_t<Call, Client*> Run(const std::string& index, const std::string& id, Call call) {
    for (Following following = Begin();;) {
      const absl::StatusOr<Client*> client = ClientOf(index, id);
      if (!client.ok()) return client.status();
      std::invoke_result_t<Call, Client*> result = call(*client);
      if (Follow(id, StatusOf(result), "", &following)) continue;
      if (ReasonOf(StatusOf(result)) == "MOVED") return SentAround(id);
      return result;
    }
  }

  // Forgets where a family is: the next call asks again. For what a node answers with NOT_FOUND or UNAVAILABLE.
  void Forget(const std::string& id);

  const FleetDescription& description() const { return fleet_; }

 private:
  FleetClient(FleetDescription fleet, const Options& options, absl::Duration patience)
      : fleet_(std::move(fleet)), options_(options), patience_(patience) {}
  // How one call has followed its family so far.
  struct Following {
    absl::Time end;
    absl::Duration wait;            // before the next attempt, where a server does not say
    std::set<std::string> refused;  // nodes that have sent it on, or drain
  };
  Following Begin() const;
  static const absl::Status& StatusOf(const absl::Status& status) { return status; }
  template <typename T>
  static const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
    return result.status();
  }
  // Whether a call that ended so at `node` is to be made again; waits or forgets the family's node where it is. A node
  // that refuses for the first time is left at once.
  bool Follow(const std::string& id, const absl::Status& status, const std::string& node, Following* following);
  // Returns what a caller gets in place of MOVED who has followed the family for long enough.
  static absl::Status SentAround(const std::string& id);
  absl::StatusOr<Sequence> CreateAt(const std::string& node, const std::string& index, const std::string& id);
  absl::StatusOr<std::string> Place(const std::string& index, const std::string& id,
                                    const std::set<std::string>& refused);
  absl::StatusOr<std::string> Ask(const std::string& index, const std::string& id);
  absl::StatusOr<FamilyState> StateAt(const FleetNode& node, const std::string& index, const std::string& family);
  // Returns where a family has gone that a node has given up; nullopt: none says so any more. Errors of FollowFamily.
  absl::StatusOr<std::optional<FamilyTrail>> Trail(const std::string& index, const std::string& family, bool making);
  // Returns the node that the family has reached. NOT_FOUND, UNAVAILABLE: as NodeOf.
  absl::StatusOr<std::string> Reached(const std::string& index, const std::string& id);
  // Returns the node, of those that hold copies of a family, that has it in the newest generation and takes changes.
  // Where none takes any, the family moves, and its old node will tell where to.
  std::string Newest(std::vector<std::string> holders, const std::string& index, const std::string& family);

  const FleetDescription fleet_;
  const Options options_;
  const absl::Duration patience_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Client>> clients_;            // by node; guarded by mutex_
  std::map<std::pair<std::string, std::string>, std::string> nodes_;  // by index and family; guarded by mutex_
};

}  // namespace seine::client

#endif  // SEINE_CLIENT_FLEET_FLEET_CLIENT_H_
