// Cutting slabs into blocks.
#include "index/memory/slab_pool.h"

#include <algorithm>
#include <utility>

namespace seine {

namespace {

int64_t Rounded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

uint8_t* SlabPool::Allocate(int64_t bytes) {
  bytes = Rounded(bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  auto open = open_.lower_bound({bytes, nullptr});
  if (open == open_.end()) {
    if (!AddSlab(bytes)) return nullptr;
    open = open_.lower_bound({bytes, nullptr});
  }
  uint8_t* const data = open->second;
  Slab& slab = slabs_.at(data);
  const auto fits =
      std::find_if(slab.free.begin(), slab.free.end(), [&](const auto& range) { return range.second >= bytes; });
  const auto [at, size] = *fits;
  slab.free.erase(fits);
  if (size > bytes) slab.free[at + bytes] = size - bytes;
  FindLongest(data, &slab);
  used_ += bytes;
  return data + at;
}

void SlabPool::Free(uint8_t* block, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  used_ -= Rounded(bytes);
  const auto slab = SlabOf(block);
  std::map<int64_t, int64_t>& free = slab->second.free;
  auto range = free.emplace(block - slab->first, Rounded(bytes)).first;
  if (const auto next = std::next(range); next != free.end() && range->first + range->second == next->first) {
    range->second += next->second;
    free.erase(next);
  }
  if (range != free.begin() && std::prev(range)->first + std::prev(range)->second == range->first) {
    std::prev(range)->second += range->second;
    free.erase(range);
  }
  FindLongest(slab->first, &slab->second);
  const auto size = static_cast<int64_t>(slab->second.buffer.size());
  if (slab->second.longest < size) return;
  held_ -= size;
  open_.erase({size, slab->first});
  slabs_.erase(slab);
}

int64_t SlabPool::free_bytes() {
  std::lock_guard<std::mutex> lock(mutex_);
  return held_ - used_;
}

bool SlabPool::AddSlab(int64_t bytes) {
  const int64_t wanted = held_ < kSmallBytes ? std::min(held_, kSlabBytes) : kSlabBytes;
  const int64_t size = std::max<int64_t>(wanted / bytes, 1) * bytes;
  Buffer buffer = backend_->Allocate(static_cast<size_t>(size), space_);
  if (!buffer) return false;
  uint8_t* const data = buffer.data();
  Slab& slab = slabs_[data];
  slab.buffer = std::move(buffer);
  slab.free[0] = size;
  FindLongest(data, &slab);
  held_ += size;
  return true;
}

// Puts the slab where it belongs in open_.
void SlabPool::FindLongest(uint8_t* data, Slab* slab) {
  open_.erase({slab->longest, data});
  slab->longest = 0;
  for (const auto& [at, size] : slab->free) slab->longest = std::max(slab->longest, size);
  if (slab->longest > 0) open_.insert({slab->longest, data});
}

}  // namespace seine
