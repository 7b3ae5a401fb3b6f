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

// Returns the families of an index, by name. Errors of the calls. Thread-safe.
absl::StatusOr<std::vector<Family>> ListFamilies(Client* client, const std::string& index);
// Returns the families of every index that the caller may know of, by index and name.
absl::StatusOr<std::vector<Family>> ListFamilies(Client* client);

}  // namespace seine::client

#endif  // SEINE_CLIENT_FLEET_FAMILIES_H_
