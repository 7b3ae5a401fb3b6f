// Copies a family of sequences from one server to another in rounds: while it serves, and then what came since.
#ifndef SEINE_CLIENT_FLEET_FAMILY_COPY_H_
#define SEINE_CLIENT_FLEET_FAMILY_COPY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"

namespace seine::client {

struct CopyTotals {
  std::vector<SequenceInfo> sequences;  // that Finish has copied, as they are at the target
  std::vector<std::string> files;       // snapshots that were written
  int64_t bytes = 0;                    // of the files
  int64_t last_bytes = 0;               // of those that Finish has written
  std::string why_whole;                // Finish has written everything, for this reason; empty: what came since
};

// Not thread-safe. Both clients outlive it.
class FamilyCopy {
 public:
  FamilyCopy(Client* source, Client* target, std::string index, std::string family, uint64_t generation);

  // Copies the family, up to three times while much comes meanwhile. Nobody can call the copy; the target holds its
  // memory. A server of the version before cannot do that, and then nothing is copied yet. Errors: of the calls, and
  // FAILED_PRECONDITION where the family shares tokens with another.
  absl::Status CopyAhead();
  // Copies what came since, or everything where nothing was copied ahead. Nobody may change the family meanwhile. The
  // target holds all of it for an hour: held(). Asks again until `deadline` where there is no answer. Errors as above.
  absl::Status Finish(absl::Time deadline);
  // As Finish, for a target that cannot bring up what it holds: the sequences are there. Calls `arrived` once the first
  // of them are. Errors as above, and those of `arrived`.
  absl::Status FinishThere(absl::Time deadline, const std::function<absl::Status()>& arrived);
  // Names what the target holds of the family since Finish (claim.h).
  const std::vector<std::string>& held() const { return held_; }
  // Drops what both servers keep for later rounds; what is there stays there.
  void Release();

  CopyTotals totals;

 private:
  // What one snapshot holds: a sequence with its forks and what it was forked from. A part of the family, or all of it.
  struct Part {
    std::vector<std::string> ids;
    std::string written, held;  // bases at the source and at the target
  };
  using CopyPart = std::function<absl::Status(const Sequence&, Part*)>;

  Part* PartOf(const std::string& id);  // nullptr: none holds it
  // Calls `copy` for each part, those that are known first, for others may have joined them.
  absl::Status CopyParts(const CopyPart& copy);
  absl::Status CopyPartAhead(const Sequence& sequence, Part* part);
  absl::Status FinishPart(const Sequence& sequence, int hold_seconds, absl::Time deadline, Part* part);
  absl::StatusOr<SnapshotResult> Write(const Sequence& sequence, int keep_seconds, Part* part);
  absl::StatusOr<SnapshotResult> Read(int hold_seconds, absl::Time deadline, const Part& part);
  // Nothing is left out of what is written next.
  void StartAnew(const absl::Status& why, Part* part);
  void ReleasePart(Part* part);

  Client* const source_;
  Client* const target_;
  const std::string index_, family_, name_;  // name_: of the files
  const uint64_t generation_;
  std::vector<Part> parts_;
  std::vector<std::string> held_;
};

}  // namespace seine::client

#endif  // SEINE_CLIENT_FLEET_FAMILY_COPY_H_
