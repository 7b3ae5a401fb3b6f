// What snapshots of a family have written and read so far, so that a later one carries only what came since.
//
// The side that writes keeps the copies it wrote from. Their pieces do not change while it does, for whoever writes to
// a shared piece writes to a copy of it. So a piece that has the same address is the same, and its number stands for
// it. The side that reads keeps the pieces it has read, by the same numbers.
#ifndef SEINE_INDEX_SNAPSHOT_SNAPSHOT_BASE_H_
#define SEINE_INDEX_SNAPSHOT_SNAPSHOT_BASE_H_

#include <memory>
#include <vector>

#include "index/bytes/section_hash.h"
#include "index/bytes/state_reader.h"
#include "index/bytes/state_writer.h"
#include "index/snapshot_types.h"

namespace seine {

struct Sequence;  // index/sequence/sequence.h

using SnapshotName = Hash128;  // by chance; zeros: none

// A snapshot's own name, and that of the one that it adds to.
struct SnapshotChain {
  SnapshotName name{}, base{};
};

// What later snapshots of the same index may leave out. The index outlives it. Not thread-safe.
class WrittenBase {
 public:
  SnapshotName name{};  // of the newest snapshot
  WrittenObjects objects;
  std::vector<std::shared_ptr<const Sequence>> copies;  // hold the objects
};

// What files that add to earlier ones find read already, and what RestoreHeld makes be there. The index that it was
// read into outlives it, and counts its memory. Not thread-safe.
class ReadBase {
 public:
  SnapshotName name{};
  ReadObjects objects;
  std::vector<std::shared_ptr<Sequence>> sequences;  // of the newest snapshot, which nobody else knows
};

}  // namespace seine

#endif  // SEINE_INDEX_SNAPSHOT_SNAPSHOT_BASE_H_
