// xxh3-128 of a section's bytes, as they come.
#ifndef SEINE_INDEX_BYTES_SECTION_HASH_H_
#define SEINE_INDEX_BYTES_SECTION_HASH_H_

#include <array>
#include <cstdint>
#include <memory>

namespace seine {

// Canonical form: high half first, each big-endian.
using Hash128 = std::array<uint8_t, 16>;

class SectionHash {
 public:
  explicit SectionHash(uint64_t seed);
  ~SectionHash();
  SectionHash(const SectionHash&) = delete;
  SectionHash& operator=(const SectionHash&) = delete;

  void Add(const void* data, int64_t bytes);
  Hash128 Digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace seine

#endif  // SEINE_INDEX_BYTES_SECTION_HASH_H_
