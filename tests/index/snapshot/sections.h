// Sections of a snapshot that a test changes, with checksums made to fit.
#ifndef SEINE_TESTS_INDEX_SNAPSHOT_SECTIONS_H_
#define SEINE_TESTS_INDEX_SNAPSHOT_SECTIONS_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "index/bytes/section_hash.h"

namespace seine::testing {

// Where each section begins and ends, the header first.
struct Span {
  size_t begin, end;
};
inline std::vector<Span> SectionsOf(const std::string& snapshot) {
  uint32_t count;
  std::memcpy(&count, snapshot.data() + 12, 4);
  std::vector<Span> sections = {{0, 16 + size_t{count} * 16}};
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t bytes;
    std::memcpy(&bytes, snapshot.data() + 16 + i * 16 + 8, 8);
    const size_t begin = sections.back().end + 16;
    sections.push_back({begin, begin + bytes});
  }
  return sections;
}

// `seed`: the section's number, settings being 0; of the header ~0.
inline void FixChecksum(const Span& section, uint64_t seed, std::string* snapshot) {
  SectionHash hash(seed);
  hash.Add(snapshot->data() + section.begin, static_cast<int64_t>(section.end - section.begin));
  const Hash128 digest = hash.Digest();
  std::memcpy(snapshot->data() + section.end, digest.data(), digest.size());
}

}  // namespace seine::testing

#endif  // SEINE_TESTS_INDEX_SNAPSHOT_SECTIONS_H_
