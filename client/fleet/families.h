// The families that a server holds: sequences of an index whose ids are the same up to the first '/'.
#ifndef SEINE_CLIENT_FLEET_FAMILIES_H_
#define SEINE_CLIENT_FLEET_FAMILIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace seine::client {

struct Family {
  std::string index, name;
  int64_t sequences = 0;
  int64_t tokens = 0;  // of all sequences, each as long as its longest layer
  int64_t bytes = 0;   // codes and stores in memory; what sequences share counts in each
};

// What a server knows of a family that is frozen, has moved, or has come by a move.
struct FamilyState {
  std::string family = {};
  bool frozen = false, moved = false;
  uint64_t generation = 0;              // how often it has moved: here, or, if it has moved, at its node
  std::string node = {}, address = {};  // that have it, if it has moved
  std::vector<std::string> held = {};   // what that node held it in when it moved (claim.h)
};
// Returns what the server knows of an index's families, or of the one that `family` names; by name. Others serve, in
// generation 0. Errors of the call. Thread-safe.
absl::StatusOr<std::vector<FamilyState>> ListFamilyStates(Client* client, const std::string& index,
                                                          const std::string& family = "");

// Returns the families of an index, by name. Errors of the calls. Thread-safe.
absl::StatusOr<std::vector<Family>> ListFamilies(Client* client, const std::string& index);
// Returns the families of every index that the caller may know of, by index and name.
absl::StatusOr<std::vector<Family>> ListFamilies(Client* client);

}  // namespace seine::client

#endif  // SEINE_CLIENT_FLEET_FAMILIES_H_
