// The idle tier: families of sequences that nobody has used for a while, or that memory is short for, lie in files. The
// next call on one of their sequences brings the family back.
//
// One spill runs at a time in a process. It waits for no call and for no layer: only families are taken that no call
// works on. So a thread that holds locks of layers may ask for room.
#ifndef SEINE_INDEX_IDLE_IDLE_TIER_H_
#define SEINE_INDEX_IDLE_IDLE_TIER_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "index/bytes/byte_stream.h"
#include "index/bytes/file_ops.h"
#include "index/counts/histogram.h"
#include "index/fair_mutex.h"
#include "index/memory/memory_budget.h"
#include "index/memory/reclaimer.h"

namespace seine {

struct IdleOptions {
  std::string folder;                             // empty: there is no idle tier
  std::chrono::nanoseconds spill_after{0};        // since a family's last use; 0: only where memory is short
  int64_t limit_bytes = 0;                        // of files; 0: none
  std::chrono::nanoseconds pause{1'000'000'000};  // after a spill that failed, before the next
};

// The sequences of one family.
struct FamilyNames {
  absl::string_view tenant, index;
  std::vector<absl::string_view> ids;
};

// What the tier's owner may add; each may be empty. Called from any thread, and not once Stop has returned.
struct IdleHooks {
  // Is told of spills and restores that fail.
  std::function<void(const absl::Status&)> failed;
  // Is asked before a family is written. Returns what is held until that has ended; nullptr: it stays in memory now.
  std::function<std::shared_ptr<void>(const FamilyNames&)> hold;
};

// What the tier holds now, and has done since it was opened.
struct IdleReading {
  int64_t families = 0, bytes = 0;  // on disk
  int64_t spills_idle = 0, spills_memory = 0, restores = 0;
  int64_t spills_failed = 0, restores_failed = 0;
  HistogramReading restore_times;
};

// What the tier asks of an index. Thread-safe.
class SpillingIndex {
 public:
  struct Family {
    uint64_t number;
    int64_t last_used_ns;  // SequenceUse's precise clock
  };
  virtual ~SpillingIndex() = default;
  // Those in memory that no call works on.
  virtual std::vector<Family> IdleFamilies() const = 0;
  // Writes a family to a file of the tier's and drops it from memory. False, and nothing changed, where a call works on
  // it after all, or it is held back. Nothing changes on an error either: those of the tier's Write.
  virtual absl::StatusOr<bool> Spill(uint64_t family) = 0;
  virtual bool CountsIn(const MemoryBudget& budget) const = 0;
};

// Thread-safe. Serves any number of indexes; each calls Leave before it goes.
class IdleTier : public Reclaimer {
 public:
  // Makes the folder's own place, DIR/idle, where there is none, and removes the files that an earlier process has left
  // there. INVALID_ARGUMENT: the folder cannot be written to, or another process has it.
  static absl::StatusOr<std::shared_ptr<IdleTier>> Open(const IdleOptions& options, IdleHooks hooks = {},
                                                        FileOps* files = nullptr);
  ~IdleTier() override;
  IdleTier(const IdleTier&) = delete;
  IdleTier& operator=(const IdleTier&) = delete;

  // Ends the tier's thread, and calls no hook from then on. Families still come back, and none is written any more.
  void Stop();

  // Spills the least recently used family that counts in `budget`. False: there is none that can go.
  bool SpillOldest(const MemoryBudget& budget);
  // The same, unless others have made room meanwhile. False, too, where the call is stopped while it waits for them.
  bool MakeRoom(const MemoryBudget& full, int64_t bytes) override;
  // Lets the tier's thread spill the oldest soon. `full` lives until Stop. Waits for nothing.
  void MakeRoomSoon(const MemoryBudget& full);
  // Spills what nobody has used for options.spill_after. The tier's thread does so by itself.
  void SpillIdle();

  // What the owner holds for a spill of that family. False: it stays in memory now.
  bool Hold(const FamilyNames& family, std::shared_ptr<void>* held) const;

  void Join(SpillingIndex* index);
  void Leave(SpillingIndex* index);  // returns once none of its families is being written

  IdleReading Read() const;

  // ---- For an index's own spills and restores ----

  // Returns the path of a new file of `bytes` about, once `write` has written it. RESOURCE_EXHAUSTED beyond the limit;
  // errors of WriteFile.
  absl::StatusOr<std::string> Write(int64_t bytes, const std::function<absl::Status(ByteSink*)>& write);
  // A file that Write has made is not needed any more.
  void Remove(const std::string& path, int64_t bytes);
  void Restored(const absl::Status& status, std::chrono::nanoseconds time);

 private:
  struct Found {
    SpillingIndex* index;
    SpillingIndex::Family family;
  };

  IdleTier(const IdleOptions& options, std::string folder, int lock, IdleHooks hooks, FileOps* files);
  std::vector<Found> OldestFirst(const MemoryBudget* budget) const;  // nullptr: of all. Needs mutex_ held
  bool SpillOne(const Found& found, std::atomic<int64_t>* count);    // needs mutex_ held
  bool SpillFirst(const MemoryBudget& budget);                       // needs mutex_ held
  void Fail(const absl::Status& why);
  bool SleepUnlessEnded(std::chrono::nanoseconds longest);  // false: the tier ends
  void MakeRoomAsked();
  void Work();

  const IdleOptions options_;
  const std::string folder_;
  const int lock_;  // a descriptor: the folder is this process's while it is open
  FileOps& files_;
  std::mutex hooks_mutex_;  // held while `failed` is called
  IdleHooks hooks_;         // of it, `failed` is guarded by hooks_mutex_; `hold` does not change
  FairMutex mutex_;         // held while a family is written
  std::condition_variable_any wake_;
  std::atomic<bool> ends_{false};                       // written under mutex_
  std::atomic<const MemoryBudget*> asked_{nullptr};     // MakeRoomSoon's
  std::vector<SpillingIndex*> indexes_;                 // guarded by mutex_
  std::chrono::steady_clock::time_point paused_until_;  // guarded by mutex_
  uint64_t last_file_ = 0;                              // guarded by mutex_
  std::atomic<int64_t> families_{0}, bytes_{0}, spills_idle_{0}, spills_memory_{0}, restores_{0};
  std::atomic<int64_t> spills_failed_{0}, restores_failed_{0};
  ThreadLocalCounters cells_{Histogram::kCells};
  const Histogram restore_times_{&cells_, 0};
  std::thread thread_;  // started by Open
};

}  // namespace seine

#endif  // SEINE_INDEX_IDLE_IDLE_TIER_H_
