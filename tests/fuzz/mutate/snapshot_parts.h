// Snapshots in parts, for mutators: as files, and in a short form without checksums, in which an array has its first
// bytes alone.
#ifndef SEINE_TESTS_FUZZ_MUTATE_SNAPSHOT_PARTS_H_
#define SEINE_TESTS_FUZZ_MUTATE_SNAPSHOT_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace seine::fuzz {

inline constexpr uint32_t kArraySection = 3, kChainSection = 4;  // index/snapshot/snapshot_format.cc

enum class SnapshotForm : uint8_t { kFile, kShort };

struct SnapshotSection {
  uint32_t kind = 0;
  size_t size = 0;    // of an array, in the file
  std::string bytes;  // of an array in the short form, the first of them
};

// A snapshot without its checksums.
struct SnapshotParts {
  std::string start;  // magic and version
  std::vector<SnapshotSection> sections;
};

// Absent: the text is none, or its sections are longer than it.
std::optional<SnapshotParts> SplitSnapshot(absl::string_view text, SnapshotForm form);
// Writes sizes and checksums as the parts are. Arrays that are too short repeat their bytes in a file.
std::string JoinSnapshot(const SnapshotParts& parts, SnapshotForm form);

}  // namespace seine::fuzz

#endif  // SEINE_TESTS_FUZZ_MUTATE_SNAPSHOT_PARTS_H_
