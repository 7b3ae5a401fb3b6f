// Cutting slabs into blocks.
#include "index/slab_pool.h"

#include <algorithm>
#include <utility>

namespace seine {

SlabPool::SlabPool(Backend* backend, Place place, int64_t block_bytes)
    : backend_(backend), place_(place), block_bytes_((block_bytes + 63) / 64 * 64) {}

uint8_t* SlabPool::Allocate() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty() && !AddSlab()) return nullptr;
  uint8_t* block = free_.back();
  free_.pop_back();
  ++SlabOf(block)->second.used;
  return block;
}

void SlabPool::Free(uint8_t* block) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(block);
  const auto slab = SlabOf(block);
  if (--slab->second.used > 0) return;
  const Buffer& buffer = slab->second.buffer;
  const auto inside = [&](uint8_t* b) { return b >= buffer.data() && b < buffer.data() + buffer.size(); };
  blocks_ -= static_cast<int64_t>(std::erase_if(free_, inside));
  slabs_.erase(slab);
}

bool SlabPool::AddSlab() {
  const int64_t most = std::max<int64_t>(kSlabBytes / block_bytes_, 1);
  const bool small = blocks_ * block_bytes_ < kSmallBytes;
  const int64_t count = small ? std::clamp<int64_t>(blocks_, 1, most) : most;
  Buffer buffer = backend_->Allocate(static_cast<size_t>(count * block_bytes_), place_);
  if (!buffer) return false;
  uint8_t* data = buffer.data();
  for (int64_t i = count - 1; i >= 0; --i) free_.push_back(data + i * block_bytes_);  // the first is taken first
  slabs_[data].buffer = std::move(buffer);
  blocks_ += count;
  return true;
}

}  // namespace seine
