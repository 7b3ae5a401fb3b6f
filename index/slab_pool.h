// Equal blocks cut from slabs of some MiB, so that pieces smaller than a huge page lie in huge pages all the same.
// Measured on a virtual machine, 1M keys, D 128: scans gain 7-10% and reranks 20% over 4 KiB pages; the first touch of
// 256 bytes costs 32-43 ns instead of 150-190.
#ifndef SEINE_INDEX_SLAB_POOL_H_
#define SEINE_INDEX_SLAB_POOL_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "kernels/backend.h"

namespace seine {

// Slabs double from one block until kSmallBytes are held and are of kSlabBytes from then on, so that a little index
// holds little, and nearly all of a larger one lies in huge pages. What a growing pool holds beyond its blocks in use
// stays below kSlabBytes. A slab goes back to the backend when its last block does. Thread-safe.
class SlabPool {
 public:
  static constexpr int64_t kSlabBytes = int64_t{4} << 20;
  static constexpr int64_t kSmallBytes = kSlabBytes / 8;

  SlabPool(Backend* backend, Place place, int64_t block_bytes);
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  uint8_t* Allocate();  // block_bytes, 64-byte aligned; nullptr if the backend has no memory
  void Free(uint8_t* block);

 private:
  struct Slab {
    Buffer buffer;
    int64_t used = 0;  // blocks
  };
  // The slab that holds `block`: the last that begins at or before it.
  std::map<uint8_t*, Slab>::iterator SlabOf(uint8_t* block) { return std::prev(slabs_.upper_bound(block)); }
  bool AddSlab();

  Backend* const backend_;
  const Place place_;
  const int64_t block_bytes_;  // a multiple of 64
  std::mutex mutex_;
  // Guarded by mutex_.
  std::map<uint8_t*, Slab> slabs_;  // by first byte
  std::vector<uint8_t*> free_;
  int64_t blocks_ = 0;  // in all slabs
};

}  // namespace seine

#endif  // SEINE_INDEX_SLAB_POOL_H_
