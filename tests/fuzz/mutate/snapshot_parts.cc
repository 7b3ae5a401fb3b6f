#include "tests/fuzz/mutate/snapshot_parts.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "index/bytes/section_hash.h"

namespace seine::fuzz {
namespace {

constexpr size_t kStartBytes = 12, kTableAt = 16, kEntryBytes = 16;  // index/snapshot/snapshot_format.h
constexpr size_t kArrayBytes = 1024;                                 // of an array, in the short form
constexpr size_t kMostSectionBytes = size_t{64} << 20;               // of a section

template <typename T>
T NumberAt(absl::string_view bytes, size_t at) {
  T value;
  memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

template <typename T>
void PutNumber(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutHashed(absl::string_view bytes, uint64_t seed, std::string* out) {
  SectionHash hash(seed);
  hash.Add(bytes.data(), static_cast<int64_t>(bytes.size()));
  const Hash128 digest = hash.Digest();
  absl::StrAppend(out, bytes, absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

// As the file has it. Other sections than arrays are as long as their bytes.
size_t FileBytes(const SnapshotSection& section) {
  return section.kind == kArraySection && !section.bytes.empty() ? section.size : section.bytes.size();
}

std::string BytesOf(const SnapshotSection& section, SnapshotForm form) {
  const size_t size = form == SnapshotForm::kFile || section.kind != kArraySection
                          ? FileBytes(section)
                          : std::min(FileBytes(section), kArrayBytes);
  std::string bytes = section.bytes;
  while (bytes.size() < size) bytes.append(section.bytes);
  bytes.resize(size);
  return bytes;
}

}  // namespace

std::optional<SnapshotParts> SplitSnapshot(absl::string_view text, SnapshotForm form) {
  if (text.size() < kTableAt) return std::nullopt;
  const bool whole = form == SnapshotForm::kFile;
  const size_t count = NumberAt<uint32_t>(text, kStartBytes), most = (text.size() - kTableAt) / kEntryBytes;
  if (count > most) return std::nullopt;
  SnapshotParts parts{std::string(text.substr(0, kStartBytes)), {}};
  size_t at = kTableAt + count * kEntryBytes;
  for (size_t i = 0; i < count; ++i) {
    at += whole ? sizeof(Hash128) : 0;
    const auto kind = NumberAt<uint32_t>(text, kTableAt + i * kEntryBytes);
    const size_t size = NumberAt<uint64_t>(text, kTableAt + i * kEntryBytes + 8);
    const size_t bytes = whole || kind != kArraySection ? size : std::min(size, kArrayBytes);
    if (size > kMostSectionBytes || at > text.size() || bytes > text.size() - at) return std::nullopt;
    parts.sections.push_back({kind, size, std::string(text.substr(at, bytes))});
    at += bytes;
  }
  return parts;
}

std::string JoinSnapshot(const SnapshotParts& parts, SnapshotForm form) {
  std::string text = parts.start;
  PutNumber(static_cast<uint32_t>(parts.sections.size()), &text);
  for (const SnapshotSection& section : parts.sections) {
    PutNumber(section.kind, &text);
    PutNumber(uint32_t{0}, &text);
    PutNumber(static_cast<uint64_t>(FileBytes(section)), &text);
  }
  if (form == SnapshotForm::kShort) {
    for (const SnapshotSection& section : parts.sections) text.append(BytesOf(section, form));
    return text;
  }
  std::string file;
  PutHashed(text, ~uint64_t{0}, &file);
  for (size_t i = 0; i < parts.sections.size(); ++i) PutHashed(BytesOf(parts.sections[i], form), i, &file);
  return file;
}

}  // namespace seine::fuzz
