// Empties a server: it takes no new families, and those that it has move to others, the largest first.
#ifndef SEINE_CLIENT_FLEET_DRAIN_H_
#define SEINE_CLIENT_FLEET_DRAIN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/fleet/families.h"
#include "client/fleet/migration.h"

namespace seine::client {

enum class DrainOutcome {
  kMoved,        // another node serves it
  kSnapshotted,  // it serves on here, and a file holds it as it was
  kStays,        // it serves on here, and no file holds it; or it was given up to a target that has yet to bring it up
  kLost,         // the server was started again meanwhile, and has it no more; or a target that it was given up to was
};
const char* ToString(DrainOutcome outcome);  // "moved", "snapshotted", "stays", "lost"

// What a drain has done with one family.
struct DrainedFamily {
  Family family;
  DrainOutcome outcome = DrainOutcome::kStays;
  MigrationTarget to;              // that it has moved to
  uint64_t generation = 0;         // of the family there
  std::vector<std::string> files;  // snapshots that were written, in the server's folder
  int64_t file_bytes = 0;          // of them
  absl::Duration pause;            // in which it took no changes
  std::string why_whole;           // all of it was written meanwhile, for this reason; empty: what came since a copy
  absl::Status why;                // it has not moved; OK: it has
};

struct DrainTarget {
  Client* client = nullptr;  // outlives the drain
  MigrationTarget to;
};

struct DrainOptions {
  std::vector<DrainTarget> targets;             // none: every family is snapshotted
  double bytes_per_second = 0;                  // of files written, on average; 0: no bound
  absl::Duration patience = absl::Seconds(10);  // a server that does not answer is waited for
  std::function<void(const DrainedFamily&)> progress = [](const DrainedFamily&) {};  // after each family
  std::function<bool()> stop = [] { return false; };  // asked between families: true ends the drain there
};

// Ends with an empty server, or with what keeps it from being empty. A family goes to the first target by rendezvous
// hashing (placement.h) that has memory for it and takes it. One that no target takes is written to a snapshot, where
// the server has a folder: its file is named after the family, and a later drain replaces it. Families that come
// meanwhile, by forks, are drained as well. The server still drains when this returns: SetDraining(false) undoes it.
// A second drain goes on where the first has ended: also with a family that the server had given up and its target has
// not brought up. Where the server is started again meanwhile, the drain waits for
// it, sets it to drain again, and goes on with what it has.
//
// Takes the role admin, and means families of the caller's tenant, which must be the server's own: PERMISSION_DENIED.
// INVALID_ARGUMENT: a target is the server itself. FAILED_PRECONDITION: a target drains. Others: errors of the calls
// before the first family moves, and UNAVAILABLE where the server stays away. Errors of one family are in its `why`.
// Blocks.
absl::StatusOr<std::vector<DrainedFamily>> Drain(Client* source, const DrainOptions& options);

// Whether the server takes new families from now on. Returns whether it drained before. Thread-safe.
absl::StatusOr<bool> SetDraining(Client* client, bool draining);

}  // namespace seine::client

#endif  // SEINE_CLIENT_FLEET_DRAIN_H_
