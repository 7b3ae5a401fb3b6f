// Keeps which families a server holds back or has given up, so that one node serves each family. A family is the
// sequences of an index whose ids are the same up to the first '/'.
#ifndef SEINE_SERVICE_FAMILIES_SEQUENCE_FAMILIES_H_
#define SEINE_SERVICE_FAMILIES_SEQUENCE_FAMILIES_H_

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace seine {

// Returns what stands before the first '/' of a sequence's id, or all of it.
absl::string_view FamilyOfId(absl::string_view id);

struct FamilyKey {
  absl::string_view tenant, index, family;
};

// The node that serves a family now.
struct FamilyHome {
  static constexpr size_t kMostHeld = 1024;
  std::string node, address;
  uint64_t generation = 0;
  // Names what that node held the family in when it was given up (snapshot_bases.h); empty: it was there.
  std::vector<std::string> held = {};
};

// A family that is frozen, has moved, or serves in a generation above 0.
struct KnownFamily {
  std::string family;
  bool frozen = false, moved = false;
  FamilyHome home;          // of one that has moved; else its generation alone
  double seconds_left = 0;  // of the freeze, or until a home is forgotten
};

struct FamilyCounts {
  int64_t frozen = 0, moved = 0;
  int64_t stale = 0;  // refusals by STALE_GENERATION since the start
};

// Thread-safe. A family serves unless it is frozen or has moved; these two are kept for a bounded time. A generation
// counts how often a family has moved. It is kept while the family is here or its home is remembered, and 0 otherwise.
class SequenceFamilies {
  struct Shard;

 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMostOfAShard = 1024;  // families that are frozen or have moved; there are 64 shards

  // A change of a family that is under way until this is destroyed. Movable.
  class Change {
   public:
    Change() = default;
    Change(Change&& other) noexcept : shard_(std::exchange(other.shard_, nullptr)), round_(other.round_) {}
    Change& operator=(Change&& other) noexcept;
    ~Change() { End(); }

   private:
    friend class SequenceFamilies;
    void End();
    Shard* shard_ = nullptr;
    int round_ = 0;
  };

  explicit SequenceFamilies(std::function<Clock::time_point()> now = &Clock::now,
                            size_t most_of_a_shard = kMostOfAShard)
      : now_(std::move(now)), most_of_a_shard_(most_of_a_shard) {}

  // FAILED_PRECONDITION, reason MOVED: another node serves the family.
  absl::Status CheckHere(const FamilyKey& key) const;
  // Before a family is changed. UNAVAILABLE, reason MOVING: it is frozen. FAILED_PRECONDITION, reason MOVED.
  absl::Status BeginChange(const FamilyKey& key, Change* change);

  // Begins a change of each family that a sequence of `ids` belongs to. Empty, and none begun, where one of them is
  // frozen or has moved.
  std::vector<Change> BeginChanges(absl::string_view tenant, absl::string_view index,
                                   absl::Span<const absl::string_view> ids);

  // Holds back changes for `limit`, and returns when those that had begun have ended. *freeze names this freeze.
  // `generation`: what the caller takes the family's to be; 0: any. FAILED_PRECONDITION: the family is frozen already,
  // has moved, or is newer (reason STALE_GENERATION). RESOURCE_EXHAUSTED: too many are.
  absl::Status Freeze(const FamilyKey& key, Clock::duration limit, uint64_t generation, std::string* freeze);
  // FAILED_PRECONDITION: `freeze` is not the one that holds now.
  absl::Status Thaw(const FamilyKey& key, absl::string_view freeze);
  // Writes a family's new home down.
  using Keep = std::function<absl::Status(const FamilyHome& home)>;
  // Gives a frozen family up, and remembers for `limit` where it is. home.generation 0: one more than here. `keep` is
  // called first, without a lock; meanwhile the freeze does not end, and an error of it leaves the family frozen.
  // Errors as Thaw's and keep's, and FAILED_PRECONDITION, reason STALE_GENERATION: home.generation is not newer than
  // here.
  absl::Status GiveUp(
      const FamilyKey& key, absl::string_view freeze, FamilyHome home, Clock::duration limit,
      const Keep& keep = [](const FamilyHome&) { return absl::OkStatus(); });
  // Before a family comes in `generation`; 0: any. FAILED_PRECONDITION, reason STALE_GENERATION: it is older than what
  // is here, or no newer than what has moved.
  absl::Status CheckArrival(const FamilyKey& key, uint64_t generation) const;
  // Notes that the family is here in `generation`, whatever it was; 0: as it was, or one newer if it had moved. A
  // freeze stays.
  void Arrive(const FamilyKey& key, uint64_t generation);
  // Returns what Arrive would make the family's generation here.
  uint64_t GenerationOnArrival(const FamilyKey& key, uint64_t generation) const;
  // At the start: what the process before knew. `left` above 0: callers are told of the home for so long; else the
  // family was here, in home.generation.
  void Recall(const FamilyKey& key, const FamilyHome& home, Clock::duration left);
  // Returns the generation of the family here, or where it has moved to.
  uint64_t Generation(const FamilyKey& key) const;
  // Forgets the generation of a family whose last sequence is gone.
  void Forget(const FamilyKey& key);
  // Lists the families of an index that are frozen, have moved, or have a generation above 0; by name.
  std::vector<KnownFamily> List(absl::string_view tenant, absl::string_view index) const;
  // Counts the families that are frozen or have moved now.
  FamilyCounts Count() const;
  // Forgets every family of an index that is deleted.
  void ForgetIndex(absl::string_view tenant, absl::string_view index);

 private:
  struct Entry {
    bool frozen = false;   // else it has moved
    bool leaving = false;  // its home is being written down
    std::string freeze;
    FamilyHome home;
    Clock::time_point until;
  };
  using Entries = std::map<std::string, Entry, std::less<>>;
  using Generations = std::map<std::string, uint64_t, std::less<>>;
  // Changes are counted in two rounds: a freeze waits for the round that it ends, while new changes join the other.
  // `states` is set before a round ends, and a change counts itself before it reads `states`. So a change that sees
  // none needs no lock, and the freeze that follows waits for it.
  struct Shard {
    mutable std::mutex mutex;
    std::mutex freezing;  // one freeze waits at a time; taken before `mutex`
    std::condition_variable ended;
    Entries entries;                   // guarded by mutex
    Generations generations;           // of families that are here, above 0; guarded by mutex
    bool waiting = false;              // a freeze waits for changes; guarded by mutex
    std::atomic<bool> states = false;  // `entries` has some, or `waiting`; written under mutex
    std::array<std::atomic<int64_t>, 2> changes{};
    std::atomic<int> round = 0;  // written under mutex
  };

  // Counts a change. Returns the round that it has joined.
  static int Join(Shard* shard);
  static void Leave(Shard* shard, int round);
  // Sets `states`. The shard's mutex is held.
  static void NoteStates(Shard* shard) { shard->states = shard->waiting || !shard->entries.empty(); }
  Shard& ShardOf(const FamilyKey& key) const;
  // The entry that still counts, or nullptr. The shard's mutex is held.
  const Entry* Find(const Shard& shard, const FamilyKey& key) const;
  // The shard's mutex is held, here and below.
  static uint64_t GenerationHere(const Shard& shard, const std::string& name);
  absl::Status CheckFreeze(const Shard& shard, const FamilyKey& key, absl::string_view freeze) const;
  absl::Status MakeRoom(Shard* shard) const;
  absl::Status StaleGeneration(absl::string_view family, uint64_t given, uint64_t known) const;

  const std::function<Clock::time_point()> now_;
  const size_t most_of_a_shard_;
  mutable std::array<Shard, 64> shards_;
  mutable std::atomic<int64_t> stale_{0};
};

}  // namespace seine

#endif  // SEINE_SERVICE_FAMILIES_SEQUENCE_FAMILIES_H_
