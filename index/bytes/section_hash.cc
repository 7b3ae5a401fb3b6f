#include "index/bytes/section_hash.h"

#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace seine {

struct SectionHash::State {
  XXH3_state_t xxh;
};

SectionHash::SectionHash(uint64_t seed) : state_(std::make_unique<State>()) {
  XXH3_128bits_reset_withSeed(&state_->xxh, seed);
}

SectionHash::~SectionHash() = default;

void SectionHash::Add(const void* data, int64_t bytes) {
  XXH3_128bits_update(&state_->xxh, data, static_cast<size_t>(bytes));
}

Hash128 SectionHash::Digest() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_->xxh));
  Hash128 hash;
  std::memcpy(hash.data(), canonical.digest, hash.size());
  return hash;
}

}  // namespace seine
