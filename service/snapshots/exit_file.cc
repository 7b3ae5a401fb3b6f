#include "service/snapshots/exit_file.h"

#include <fstream>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "index/snapshot/snapshot_file.h"
#include "service/families/sequence_families.h"
#include "service/fields/checked_text.h"
#include "service/snapshots/files/without_ids.h"

namespace seine {
namespace {

constexpr absl::string_view kNotesMagic = "SEINEGEN";
constexpr size_t kChecksumBytes = 32, kCountBytes = 8, kNotesFixedBytes = kChecksumBytes + kCountBytes + 8;

std::string NotesOf(const std::vector<SequenceInfo>& sequences,
                    const std::function<uint64_t(absl::string_view family)>& generation_of) {
  Generations generations;
  for (const SequenceInfo& one : sequences) {
    const absl::string_view family = FamilyOfId(one.handle.id);
    if (const uint64_t generation = generation_of(family); generation > 0) generations.emplace(family, generation);
  }
  if (generations.empty()) return "";
  std::string lines;
  for (const auto& [family, generation] : generations) absl::StrAppend(&lines, family, " ", generation, "\n");
  return absl::StrCat(lines, ChecksumOf(lines), absl::Hex(lines.size(), absl::kZeroPad8), kNotesMagic);
}

std::string ReadEnd(std::ifstream* in, int64_t bytes) {
  std::string text(bytes, '\0');
  in->seekg(-bytes, std::ios::end);
  in->read(text.data(), bytes);
  return *in ? text : "";
}

absl::StatusOr<Generations> ParseLines(absl::string_view lines) {
  Generations generations;
  for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> each = absl::StrSplit(line, ' ');
    const bool is_family = IsSequenceId(each.first) && FamilyOfId(each.first) == each.first;
    if (!is_family || !absl::SimpleAtoi(each.second, &generations[each.first])) {
      return absl::DataLossError("what stands behind the snapshot are no families with their generations");
    }
  }
  return generations;
}

// Reads what stands behind the snapshot; *bytes: how much that is.
absl::StatusOr<Generations> ReadNotes(const std::string& path, int64_t* bytes) {
  std::ifstream in(path, std::ios::binary);
  const std::string fixed = ReadEnd(&in, kNotesFixedBytes);
  absl::string_view end = fixed;
  *bytes = 0;
  if (!absl::ConsumeSuffix(&end, kNotesMagic)) return Generations();
  uint32_t count = 0;  // of lines' bytes; of this type, for a sign would be taken for others
  const absl::Status damaged = absl::DataLossError("the generations behind the snapshot are damaged");
  if (!absl::SimpleHexAtoi(end.substr(kChecksumBytes), &count)) return damaged;
  *bytes = static_cast<int64_t>(count + kNotesFixedBytes);
  if (in.tellg() < *bytes) return damaged;
  const std::string all = ReadEnd(&in, *bytes);
  const absl::string_view lines = absl::string_view(all).substr(0, count);
  if (ChecksumOf(lines) != end.substr(0, kChecksumBytes)) return damaged;
  return ParseLines(lines);
}

// Deletes those of the restored sequences that have these ids. ALREADY_EXISTS where no other is left.
absl::Status LeaveOut(const std::set<DeletedId>& ids, Index* index, RestoreInfo* info) {
  const std::string settings = ChecksumOf(info->settings);
  for (auto one = info->sequences.begin(); one != info->sequences.end();) {
    if (!ids.contains({settings, one->handle.id})) {
      ++one;
      continue;
    }
    if (absl::Status s = index->DeleteSequence(one->handle); !s.ok()) return s;
    one = info->sequences.erase(one);
    ++info->left_out;
  }
  if (!info->sequences.empty()) return absl::OkStatus();
  return absl::AlreadyExistsError("its sequences were deleted while it was passed over");
}

// A source without its last bytes.
class ShorterSource : public ByteSource {
 public:
  ShorterSource(ByteSource* whole, int64_t without) : whole_(*whole), without_(without) {}
  absl::Status Read(uint8_t* data, int64_t bytes) override { return whole_.Read(data, bytes); }
  std::optional<int64_t> size() const override { return *whole_.size() - without_; }

 private:
  ByteSource& whole_;
  const int64_t without_;
};

}  // namespace

absl::StatusOr<SnapshotInfo> WriteExitFile(const Index& index, const SequenceHandle& handle, const std::string& path,
                                           const std::function<uint64_t(absl::string_view family)>& generation_of,
                                           FileOps* files) {
  SnapshotInfo info;
  const auto write = [&](ByteSink* sink) {
    absl::StatusOr<SnapshotInfo> written = index.Snapshot(handle, SnapshotScope::kFamily, sink);
    if (!written.ok()) return written.status();
    info = *std::move(written);
    const std::string notes = NotesOf(info.sequences, generation_of);
    return sink->Write(reinterpret_cast<const uint8_t*>(notes.data()), static_cast<int64_t>(notes.size()));
  };
  if (absl::Status s = WriteFile(path, write, files); !s.ok()) return s;
  return info;
}

absl::StatusOr<RestoreInfo> RestoreExitFile(
    Index* index, const std::string& path,
    const std::function<absl::Status(absl::string_view family, uint64_t generation)>& accept,
    Generations* generations) {
  const absl::StatusOr<std::unique_ptr<ByteSource>> source = OpenFile(path);
  if (!source.ok()) return source.status();
  int64_t behind = 0;
  absl::StatusOr<Generations> notes = ReadNotes(path, &behind);
  if (!notes.ok()) return notes.status();
  const absl::StatusOr<std::set<DeletedId>> without = ReadWithoutIds(path);
  if (!without.ok()) return without.status();
  *generations = *std::move(notes);
  RestoreParams params;
  params.leave_out_taken = true;
  params.accept = [&](const std::vector<SequenceInfo>& sequences) {
    absl::Status status;
    for (const SequenceInfo& one : sequences) {
      const absl::string_view family = FamilyOfId(one.handle.id);
      const auto found = generations->find(family);
      status.Update(accept(family, found == generations->end() ? 0 : found->second));
    }
    return status;
  };
  ShorterSource snapshot(source->get(), behind);
  absl::StatusOr<RestoreInfo> info = index->Restore(&snapshot, params);
  if (!info.ok()) return info;
  if (absl::Status s = LeaveOut(*without, index, &*info); !s.ok()) return s;
  return info;
}

}  // namespace seine
