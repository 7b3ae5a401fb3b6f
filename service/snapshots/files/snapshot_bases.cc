#include "service/snapshots/files/snapshot_bases.h"

#include <algorithm>
#include <random>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "service/fields/error.h"

namespace seine {
namespace {

std::string NewName() {
  std::random_device chance;
  return absl::StrCat(absl::Hex(chance(), absl::kZeroPad8), absl::Hex(chance(), absl::kZeroPad8));
}

}  // namespace

absl::StatusOr<std::string> SnapshotBases::Add(Owner owner, KeptBase base, Clock::duration limit) {
  std::string name = NewName();
  Entry forgotten;  // destroyed without the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  if (entries_.size() >= most_) {
    const auto rank = [](const Entry& entry) {
      return std::tuple(!MakesRoom(entry), entry.base.written != nullptr, entry.until);
    };
    const auto first = std::min_element(entries_.begin(), entries_.end(),
                                        [&](const auto& a, const auto& b) { return rank(a.second) < rank(b.second); });
    if (!MakesRoom(first->second)) return Overloaded("TOO_MANY_BASES", "too many snapshots are held", absl::Seconds(1));
    forgotten = std::move(first->second);
    entries_.erase(first);
  }
  entries_.insert_or_assign(name, Entry{std::move(owner), std::move(base), now_() + limit});
  return name;
}

SnapshotBases::Entries::iterator SnapshotBases::Find(const Owner& owner, const std::string& name) {
  const auto found = entries_.find(name);
  const bool is_there = found != entries_.end() && found->second.owner == owner && now_() < found->second.until;
  return is_there ? found : entries_.end();
}

absl::Status SnapshotBases::Take(const Owner& owner, const std::string& name, KeptBase* base) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = Find(owner, name);
  if (found == entries_.end()) {
    return FieldError("BASE_NOT_FOUND", "base", "the server keeps no such base, or no longer",
                      absl::StatusCode::kNotFound);
  }
  if (found->second.taken) {
    return FieldError("BASE_IN_USE", "base", "another call uses it", absl::StatusCode::kUnavailable);
  }
  found->second.taken = true;
  *base = std::move(found->second.base);
  return absl::OkStatus();
}

void SnapshotBases::GiveBack(const std::string& name, KeptBase base, Clock::duration limit) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) return;  // dropped meanwhile; `base` goes once the lock is free
  found->second.taken = false;
  found->second.base = std::move(base);
  if (limit > Clock::duration::zero()) found->second.until = now_() + limit;
}

bool SnapshotBases::Drop(const Owner& owner, const std::string& name) {
  Entry dropped;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = Find(owner, name);
  if (found == entries_.end()) return false;
  dropped = std::move(found->second);
  entries_.erase(found);
  return true;
}

SnapshotBases::Entries SnapshotBases::TakeOut(const std::function<bool(const Entry&)>& ends) {
  Entries out;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto each = entries_.begin(); each != entries_.end();) {
    const auto next = std::next(each);
    if (ends(each->second)) out.insert(entries_.extract(each));
    each = next;
  }
  return out;
}

void SnapshotBases::ForgetIndex(absl::string_view tenant, absl::string_view index) {
  TakeOut([&](const Entry& entry) { return entry.owner.tenant == tenant && entry.owner.index == index; });
}

void SnapshotBases::DropEnded() {
  const Clock::time_point now = now_();
  TakeOut([&](const Entry& entry) { return !entry.taken && entry.until <= now; });
}

BaseCounts SnapshotBases::Count() const {
  BaseCounts counts;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [name, entry] : entries_) {
    counts.written += entry.base.written != nullptr ? 1 : 0;
    counts.read += entry.base.read != nullptr ? 1 : 0;
  }
  return counts;
}

}  // namespace seine
