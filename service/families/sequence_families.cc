#include "service/families/sequence_families.h"

#include <algorithm>
#include <new>
#include <random>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "service/families/family_names.h"
#include "service/fields/error.h"

namespace seine {
namespace {

absl::Status WrongState(absl::string_view field, absl::string_view what) {
  return FieldError("WRONG_STATE", field, what, absl::StatusCode::kFailedPrecondition);
}

std::string NewFreeze() {
  std::random_device chance;
  return absl::StrCat(absl::Hex(chance(), absl::kZeroPad8), absl::Hex(chance(), absl::kZeroPad8));
}

}  // namespace

absl::string_view FamilyOfId(absl::string_view id) { return id.substr(0, id.find('/')); }

SequenceFamilies::Change& SequenceFamilies::Change::operator=(Change&& other) noexcept {
  End();
  shard_ = std::exchange(other.shard_, nullptr);
  round_ = other.round_;
  return *this;
}

void SequenceFamilies::Change::End() {
  if (shard_ == nullptr) return;
  Leave(std::exchange(shard_, nullptr), round_);
}

int SequenceFamilies::Join(Shard* shard) {
  for (;;) {
    const int round = shard->round.load();
    shard->changes[round].fetch_add(1);
    if (shard->round.load() == round) return round;
    Leave(shard, round);  // that round has ended, and nobody waits for those who join it late
  }
}

void SequenceFamilies::Leave(Shard* shard, int round) {
  if (shard->changes[round].fetch_sub(1) != 1 || !shard->states.load()) return;
  const std::lock_guard<std::mutex> lock(shard->mutex);
  shard->ended.notify_all();
}

SequenceFamilies::Shard& SequenceFamilies::ShardOf(const FamilyKey& key) const {
  return shards_[absl::HashOf(key.tenant, key.index, key.family) % shards_.size()];
}

const SequenceFamilies::Entry* SequenceFamilies::Find(const Shard& shard, const FamilyKey& key) const {
  if (shard.entries.empty()) return nullptr;
  const auto found = shard.entries.find(FullName(key));
  return found != shard.entries.end() && now_() < found->second.until ? &found->second : nullptr;
}

absl::Status SequenceFamilies::CheckHere(const FamilyKey& key) const {
  const Shard& shard = ShardOf(key);
  if (!shard.states.load(std::memory_order_relaxed)) return absl::OkStatus();
  const std::lock_guard<std::mutex> lock(shard.mutex);
  const Entry* const entry = Find(shard, key);
  if (entry == nullptr || entry->frozen) return absl::OkStatus();
  return Moved(key.family, entry->home.node, entry->home.address, entry->home.generation);
}

absl::Status SequenceFamilies::BeginChange(const FamilyKey& key, Change* change) {
  Shard& shard = ShardOf(key);
  Change begun;
  begun.round_ = Join(&shard);
  begun.shard_ = &shard;
  if (shard.states.load()) {
    std::unique_lock<std::mutex> lock(shard.mutex);
    if (const Entry* const entry = Find(shard, key); entry != nullptr) {
      absl::Status refused = entry->frozen
                                 ? Moving(key.family)
                                 : Moved(key.family, entry->home.node, entry->home.address, entry->home.generation);
      lock.unlock();  // the change that ends here may take it
      return refused;
    }
  }
  *change = std::move(begun);
  return absl::OkStatus();
}

std::vector<SequenceFamilies::Change> SequenceFamilies::BeginChanges(absl::string_view tenant, absl::string_view index,
                                                                     absl::Span<const absl::string_view> ids) {
  std::vector<Change> begun(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!BeginChange({tenant, index, FamilyOfId(ids[i])}, &begun[i]).ok()) return {};
  }
  return begun;
}

absl::Status SequenceFamilies::MakeRoom(Shard* shard) const {
  Entries& entries = shard->entries;
  if (entries.size() < most_of_a_shard_) return absl::OkStatus();
  std::erase_if(entries, [now = now_()](const auto& entry) { return entry.second.until <= now; });
  if (entries.size() < most_of_a_shard_) return absl::OkStatus();
  auto oldest = entries.end();
  for (auto each = entries.begin(); each != entries.end(); ++each) {
    if (each->second.frozen) continue;
    if (oldest == entries.end() || each->second.until < oldest->second.until) oldest = each;
  }
  if (oldest == entries.end()) {
    return Overloaded("TOO_MANY_FROZEN", "too many families are frozen", absl::Seconds(1));
  }
  entries.erase(oldest);
  return absl::OkStatus();
}

absl::Status SequenceFamilies::Freeze(const FamilyKey& key, Clock::duration limit, uint64_t generation,
                                      std::string* freeze) {
  Shard& shard = ShardOf(key);
  const std::lock_guard<std::mutex> freezing(shard.freezing);
  std::unique_lock<std::mutex> lock(shard.mutex);
  if (const Entry* const entry = Find(shard, key); entry != nullptr) {
    return entry->frozen ? WrongState("family", "is frozen already")
                         : Moved(key.family, entry->home.node, entry->home.address, entry->home.generation);
  }
  const uint64_t here = GenerationHere(shard, FullName(key));
  if (generation != 0 && generation < here) return StaleGeneration(key.family, generation, here);
  if (absl::Status s = MakeRoom(&shard); !s.ok()) return s;
  std::string name = NewFreeze();
  Entry entry;
  entry.frozen = true;
  entry.freeze = name;
  entry.until = now_() + limit;
  shard.entries.insert_or_assign(FullName(key), std::move(entry));
  shard.waiting = true;
  NoteStates(&shard);
  const int round = shard.round.load();
  shard.round = 1 - round;
  shard.ended.wait(lock, [&] { return shard.changes[round] == 0; });
  shard.waiting = false;
  NoteStates(&shard);
  *freeze = std::move(name);
  return absl::OkStatus();
}

absl::Status SequenceFamilies::CheckFreeze(const Shard& shard, const FamilyKey& key, absl::string_view freeze) const {
  const Entry* const entry = Find(shard, key);
  if (entry == nullptr || !entry->frozen) return WrongState("family", "is not frozen");
  if (entry->leaving) return WrongState("family", "is being given up");
  if (entry->freeze != freeze) return WrongState("freeze", "another freeze holds the family now");
  return absl::OkStatus();
}

absl::Status SequenceFamilies::Thaw(const FamilyKey& key, absl::string_view freeze) {
  Shard& shard = ShardOf(key);
  const std::lock_guard<std::mutex> lock(shard.mutex);
  if (absl::Status s = CheckFreeze(shard, key, freeze); !s.ok()) return s;
  shard.entries.erase(FullName(key));
  NoteStates(&shard);
  return absl::OkStatus();
}

absl::Status SequenceFamilies::GiveUp(const FamilyKey& key, absl::string_view freeze, FamilyHome home,
                                      Clock::duration limit, const Keep& keep) {
  Shard& shard = ShardOf(key);
  std::unique_lock<std::mutex> lock(shard.mutex);
  if (absl::Status s = CheckFreeze(shard, key, freeze); !s.ok()) return s;
  const std::string name = FullName(key);
  const uint64_t here = GenerationHere(shard, name);
  if (home.generation == 0) home.generation = here + 1;
  if (home.generation <= here) return StaleGeneration(key.family, home.generation, here);
  absl::Status kept = absl::ResourceExhaustedError("out of memory");
  Entry& frozen = shard.entries.find(name)->second;
  frozen.leaving = true;
  const Clock::time_point until = std::exchange(frozen.until, Clock::time_point::max());
  lock.unlock();
  try {
    kept = keep(home);
  } catch (const std::bad_alloc&) {
  }
  lock.lock();
  const auto entry = shard.entries.find(name);
  if (entry == shard.entries.end()) return WrongState("family", "its index is gone");
  entry->second.leaving = false;
  entry->second.until = until;
  if (!kept.ok()) return kept;
  shard.generations.erase(name);
  entry->second = Entry{.freeze = "", .home = std::move(home), .until = now_() + limit};
  return absl::OkStatus();
}

}  // namespace seine
