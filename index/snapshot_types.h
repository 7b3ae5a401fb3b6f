// What snapshots are asked for and what they tell. Plain values.
#ifndef SEINE_INDEX_SNAPSHOT_TYPES_H_
#define SEINE_INDEX_SNAPSHOT_TYPES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "index/reports.h"

namespace seine {

class WrittenBase;  // snapshot_base.h
class ReadBase;

enum class SnapshotScope : uint8_t { kFamily = 0, kSequence = 1 };

struct SnapshotInfo {
  int64_t bytes = 0;                    // written
  std::vector<SequenceInfo> sequences;  // as they were written, the oldest first
};

struct RestoreParams {
  // The sequence's id, in place of the one that it had. Only of a snapshot that holds one sequence. Empty: as it was.
  std::string id = {};
  // Asked before memory is taken, with the number of sequences; what it returns, if not OK, ends the restore.
  std::function<absl::Status(int64_t sequences)> admit = {};
  // Asked once all is read, before the sequences are there; what it returns, if not OK, ends the restore.
  std::function<absl::Status(const std::vector<SequenceInfo>& sequences)> accept = {};
  // What was read of the snapshots that this one adds to, the last of them under `hold`. It must live meanwhile.
  // nullptr: the snapshot stands alone.
  ReadBase* base = nullptr;
  // The sequences are read into `base`, and are not there: nobody can call them, and their generations are 0. Their
  // memory stays with the base, for a snapshot that adds to this one, or for RestoreHeld.
  bool hold = false;
  // Sequences whose id is in use are left out, with what they alone hold. ALREADY_EXISTS where no other is left.
  bool leave_out_taken = false;
  // A step waits for it. So it is read faster beside other steps, which then may wait for it a little.
  bool step_waits = false;
};

struct RestoreInfo {
  int64_t bytes = 0;                    // read
  std::vector<SequenceInfo> sequences;  // in the snapshot's order
  int64_t left_out = 0;                 // sequences, by RestoreParams::leave_out_taken
  std::string settings;                 // of the index and the snapshot alike: lines "field=value"
};

}  // namespace seine

#endif  // SEINE_INDEX_SNAPSHOT_TYPES_H_
