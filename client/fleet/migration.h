// Moves a family of sequences from one server to another, by a snapshot in a folder that both servers see.
#ifndef SEINE_CLIENT_FLEET_MIGRATION_H_
#define SEINE_CLIENT_FLEET_MIGRATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"

namespace seine::client {

struct MigrationTarget {
  std::string node;     // its name in the fleet, as callers of the source are told
  std::string address;  // as Client::Connect takes it, told to the same callers
};

struct Migration {
  bool ended_earlier = false;           // an earlier mover stopped: what the target held is there now
  std::vector<SequenceInfo> sequences;  // as they are at the target
  std::vector<std::string> files;       // snapshots that were written; they stay in the folder
  int64_t bytes = 0;                    // of the files
  int64_t last_bytes = 0;               // of those that were written while the family was frozen
  std::string why_whole;                // they hold everything, for this reason; empty: what came since the others
  uint64_t generation = 0;              // of the family at the target
  absl::Duration pause;                 // in which the family took no changes, as the caller saw it
};

// The reason of an error after the source has given the family up.
inline constexpr char kGivenUp[] = "GIVEN_UP";

// Writes the family to snapshots while it serves, which the target reads and holds. Then freezes it at the source,
// writes what came since, which the target holds as well, compares ids and lengths, and gives the family up. Last the
// target brings up what it holds (claim.h). Where a server is of the version before, or has forgotten the first
// snapshots, everything is written while the family is frozen; where it is the target, the copy is there and frozen
// until the source has given the family up. The family gets a generation that is newer than what either server knows of
// it. The target needs the index and the same snapshots.dir. Takes the role admin.
//
// Where the source has given the family up to this target and its mover has stopped, the target brings it up, and
// nothing else is done.
//
// Any error before the family is given up drops what the target holds and thaws the source; the text says so.
// INVALID_ARGUMENT: both are one server. NOT_FOUND: the source has no such family, or the target no such index.
// FAILED_PRECONDITION: the family is frozen or has moved, shares tokens with another family, or what was read is not
// what was written. UNKNOWN: the source does not say within 65 seconds, when its freeze has ended, whether it has given
// the family up. Any error of reason kGivenUp: it has, and the target has not brought the family up; the text says
// where it waits. NOT_FOUND of them: the target was started again, and has lost it. A source that was started again
// meanwhile and has lost the family leaves it to the target. Thread-safe.
absl::StatusOr<Migration> MigrateFamily(Client* source, Client* target, const std::string& index,
                                        const std::string& family, const MigrationTarget& to);

}  // namespace seine::client

#endif  // SEINE_CLIENT_FLEET_MIGRATION_H_
