// Bases that a server keeps between two snapshots of a family: of those that it has written, and of those that it has
// read and that are not there yet. Each ends by itself.
#ifndef SEINE_SERVICE_SNAPSHOTS_FILES_SNAPSHOT_BASES_H_
#define SEINE_SERVICE_SNAPSHOTS_FILES_SNAPSHOT_BASES_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "index/index.h"
#include "index/snapshot/snapshot_base.h"

namespace seine {

// One base. It holds memory of its index, and either what was written or what was read.
struct KeptBase {
  std::shared_ptr<Index> index;
  std::unique_ptr<WrittenBase> written;
  std::unique_ptr<ReadBase> read;
  // The call that has read into the base last, or has used it up, and its answer, a serialized RestoreResponse; empty
  // before.
  std::string file, answer;
  bool held = false;
};

struct BaseCounts {
  int64_t written = 0, read = 0;
};

// Thread-safe.
class SnapshotBases {
 public:
  using Clock = std::chrono::steady_clock;
  // Beyond it one makes room: first those that are used up, then those that were written, each by when it would end.
  // Bases that are held make none: one may be all that there is of a family.
  static constexpr size_t kMost = 1024;

  struct Owner {
    std::string tenant, index;
    bool operator==(const Owner&) const = default;
  };

  explicit SnapshotBases(std::function<Clock::time_point()> now = &Clock::now, size_t most = kMost)
      : now_(std::move(now)), most_(most) {}

  // Keeps a base for `limit`. Returns its name, which nobody can guess. RESOURCE_EXHAUSTED, reason TOO_MANY_BASES: as
  // many are held.
  absl::StatusOr<std::string> Add(Owner owner, KeptBase base, Clock::duration limit);
  // Takes a base out for one call, which gives it back. NOT_FOUND, reason BASE_NOT_FOUND: there is none, or no longer.
  // UNAVAILABLE, reason BASE_IN_USE: another call has it.
  absl::Status Take(const Owner& owner, const std::string& name, KeptBase* base);
  // Gives a base back that was taken. It ends after `limit`; 0: when it would have ended anyway.
  void GiveBack(const std::string& name, KeptBase base, Clock::duration limit);
  // Drops a base, also one that a call has taken. False: there is none.
  bool Drop(const Owner& owner, const std::string& name);
  // Drops the bases of an index that is deleted.
  void ForgetIndex(absl::string_view tenant, absl::string_view index);
  // Drops those that have ended. Every half second or so.
  void DropEnded();
  BaseCounts Count() const;

 private:
  struct Entry {
    Owner owner;
    KeptBase base;  // empty while it is taken
    Clock::time_point until;
    bool taken = false;
  };
  using Entries = std::map<std::string, Entry>;
  static bool MakesRoom(const Entry& entry) { return !entry.taken && entry.base.read == nullptr; }
  // Takes those out that `ends` names, for they are destroyed without the lock.
  Entries TakeOut(const std::function<bool(const Entry&)>& ends);
  Entries::iterator Find(const Owner& owner, const std::string& name);  // mutex_ is held

  const std::function<Clock::time_point()> now_;
  const size_t most_;
  mutable std::mutex mutex_;
  Entries entries_;  // guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_SNAPSHOTS_FILES_SNAPSHOT_BASES_H_
