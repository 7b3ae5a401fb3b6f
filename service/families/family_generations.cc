// Generations of families, and what is listed and counted of them: a part of SequenceFamilies.
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "service/families/family_names.h"
#include "service/families/sequence_families.h"
#include "service/fields/error.h"

namespace seine {

absl::Status SequenceFamilies::StaleGeneration(absl::string_view family, uint64_t given, uint64_t known) const {
  stale_.fetch_add(1, std::memory_order_relaxed);
  return FieldError(
      "STALE_GENERATION", "generation",
      absl::StrCat(given, " is too old: the server knows generation ", known, " of the family ", Quoted(family)),
      absl::StatusCode::kFailedPrecondition);
}

uint64_t SequenceFamilies::GenerationHere(const Shard& shard, const std::string& name) {
  const auto found = shard.generations.find(name);
  return found == shard.generations.end() ? 0 : found->second;
}

absl::Status SequenceFamilies::CheckArrival(const FamilyKey& key, uint64_t generation) const {
  if (generation == 0) return absl::OkStatus();
  Shard& shard = ShardOf(key);
  const std::lock_guard<std::mutex> lock(shard.mutex);
  const Entry* const entry = Find(shard, key);
  if (entry != nullptr && !entry->frozen && generation <= entry->home.generation) {
    return StaleGeneration(key.family, generation, entry->home.generation);
  }
  const uint64_t here = GenerationHere(shard, FullName(key));
  return generation < here ? StaleGeneration(key.family, generation, here) : absl::OkStatus();
}

uint64_t SequenceFamilies::GenerationOnArrival(const FamilyKey& key, uint64_t generation) const {
  Shard& shard = ShardOf(key);
  const std::lock_guard<std::mutex> lock(shard.mutex);
  if (generation != 0) return generation;
  const Entry* const entry = Find(shard, key);
  const bool moved = entry != nullptr && !entry->frozen;
  return moved ? entry->home.generation + 1 : GenerationHere(shard, FullName(key));
}

void SequenceFamilies::Arrive(const FamilyKey& key, uint64_t generation) {
  generation = GenerationOnArrival(key, generation);
  Shard& shard = ShardOf(key);
  const std::lock_guard<std::mutex> lock(shard.mutex);
  const std::string name = FullName(key);
  const Entry* const entry = Find(shard, key);
  if (generation != 0) shard.generations[name] = generation;
  if (entry != nullptr && !entry->frozen) shard.entries.erase(name);
  NoteStates(&shard);
}

void SequenceFamilies::Recall(const FamilyKey& key, const FamilyHome& home, Clock::duration left) {
  Shard& shard = ShardOf(key);
  const std::lock_guard<std::mutex> lock(shard.mutex);
  if (left <= Clock::duration::zero()) {
    shard.generations[FullName(key)] = home.generation;
    return;
  }
  if (!MakeRoom(&shard).ok()) return;  // nothing is frozen yet
  shard.entries.insert_or_assign(FullName(key), Entry{.freeze = "", .home = home, .until = now_() + left});
  NoteStates(&shard);
}

uint64_t SequenceFamilies::Generation(const FamilyKey& key) const {
  Shard& shard = ShardOf(key);
  const std::lock_guard<std::mutex> lock(shard.mutex);
  const Entry* const entry = Find(shard, key);
  if (entry != nullptr && !entry->frozen) return entry->home.generation;
  return GenerationHere(shard, FullName(key));
}

void SequenceFamilies::Forget(const FamilyKey& key) {
  Shard& shard = ShardOf(key);
  const std::lock_guard<std::mutex> lock(shard.mutex);
  shard.generations.erase(FullName(key));
}

std::vector<KnownFamily> SequenceFamilies::List(absl::string_view tenant, absl::string_view index) const {
  const std::string prefix = FamilyPrefix(tenant, index);
  std::map<std::string, KnownFamily> known;
  for (Shard& shard : shards_) {
    const std::lock_guard<std::mutex> lock(shard.mutex);
    for (const auto& [name, generation] : shard.generations) {
      if (absl::StartsWith(name, prefix)) known[name].home.generation = generation;
    }
    for (const auto& [name, entry] : shard.entries) {
      const std::chrono::duration<double> left = entry.until - now_();
      if (!absl::StartsWith(name, prefix) || left.count() <= 0) continue;
      KnownFamily& family = known[name];
      (entry.frozen ? family.frozen : family.moved) = true;
      if (family.moved) family.home = entry.home;
      family.seconds_left = left.count();
    }
  }
  std::vector<KnownFamily> list;
  for (auto& [name, family] : known) {
    family.family = name.substr(prefix.size());
    list.push_back(std::move(family));
  }
  return list;
}

FamilyCounts SequenceFamilies::Count() const {
  FamilyCounts counts;
  counts.stale = stale_.load(std::memory_order_relaxed);
  for (Shard& shard : shards_) {
    if (!shard.states.load(std::memory_order_relaxed)) continue;
    const std::lock_guard<std::mutex> lock(shard.mutex);
    for (const auto& [name, entry] : shard.entries) {
      if (now_() < entry.until) ++(entry.frozen ? counts.frozen : counts.moved);
    }
  }
  return counts;
}

void SequenceFamilies::ForgetIndex(absl::string_view tenant, absl::string_view index) {
  const std::string prefix = FamilyPrefix(tenant, index);
  for (Shard& shard : shards_) {
    const std::lock_guard<std::mutex> lock(shard.mutex);
    std::erase_if(shard.entries, [&](const auto& entry) { return absl::StartsWith(entry.first, prefix); });
    std::erase_if(shard.generations, [&](const auto& one) { return absl::StartsWith(one.first, prefix); });
    NoteStates(&shard);
  }
}

}  // namespace seine
