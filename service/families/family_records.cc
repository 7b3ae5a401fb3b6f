#include "service/families/family_records.h"

#include <filesystem>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "service/families/sequence_families.h"
#include "service/fields/checked_text.h"
#include "service/fields/error.h"

namespace seine {
namespace {

namespace fs = std::filesystem;

constexpr char kRecordSuffix[] = ".family";

// A caller can do nothing about the server's folders: they are full, or they fail.
absl::Status OfRecord(const absl::Status& status) {
  if (status.ok()) return status;
  const auto code =
      absl::IsResourceExhausted(status) ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable;
  return absl::Status(
      code, absl::StrCat("the record of the family: ", absl::StripPrefix(status.message(), "the snapshot file: ")));
}

std::vector<fs::path> RecordsIn(const std::string& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (absl::EndsWith(entry->path().string(), kRecordSuffix)) found.push_back(entry->path());
  }
  return found;
}

absl::StatusOr<FamilyRecord> ReadRecord(const fs::path& path) {
  const std::optional<std::string> text = ReadTextFile(path.string());
  if (!text.has_value()) return absl::UnavailableError("the record of a family cannot be read");
  absl::StatusOr<FamilyRecord> record = ParseFamilyRecord(*text);
  if (record.ok() && FileOfFamily(record->family) != path.stem().string()) {
    return absl::DataLossError("the record of a family stands under another family's name");
  }
  return record;
}

}  // namespace

uint64_t IndexRecords::Generation(absl::string_view family) const {
  const auto found = families.find(family);
  return found == families.end() ? 0 : found->second.home.generation;
}

absl::Status IndexRecords::CheckCopy(absl::string_view family, uint64_t generation) const {
  if (damaged.contains(FileOfFamily(family))) {
    return absl::DataLossError(absl::StrCat("whether the family ", Quoted(family), " has moved is not known"));
  }
  const uint64_t known = Generation(family);
  if (generation >= known) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the family ", Quoted(family), " is in generation ", known,
                                                    " by now, and the file has it in generation ", generation));
}

std::string FamilyRecords::PathOf(const FamilyKey& key) const {
  return absl::StrCat(folder_.FamilyFolder(key.tenant, key.index), "/", FileOfFamily(key.family), kRecordSuffix);
}

// Writes the folders above through as well, for a record in a folder that does not last does not last.
absl::Status FamilyRecords::MakeFolderOf(const FamilyKey& key) {
  const std::string folder = folder_.FamilyFolder(key.tenant, key.index);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (made_.contains(folder)) return absl::OkStatus();
  if (absl::Status s = MakeFolder(folder); !s.ok()) return s;
  for (fs::path at = folder; at.string().size() > folder_.root().size();) {
    at = at.parent_path();
    if (files_.SyncFolder(at.string()) != 0) return absl::UnavailableError("writing its folder through");
  }
  made_.insert(folder);
  return absl::OkStatus();
}

absl::Status FamilyRecords::Write(const FamilyKey& key, const FamilyRecord& record) {
  if (absl::Status s = MakeFolderOf(key); !s.ok()) return OfRecord(s);
  const std::string path = PathOf(key);
  const std::optional<std::string> before = ReadTextFile(path);
  const absl::Status written = WriteTextFile(path, ToText(record), &files_);
  if (written.ok() || ReadTextFile(path) == before) return OfRecord(written);
  // It is in place, and not known to last.
  if (before.has_value()) {
    WriteTextFile(path, *before, &files_).IgnoreError();
  } else {
    files_.Remove(path);
  }
  return OfRecord(written);
}

void FamilyRecords::Remove(const FamilyKey& key) { files_.Remove(PathOf(key)); }

void FamilyRecords::RemoveIndex(absl::string_view tenant, absl::string_view index) {
  for (const fs::path& path : RecordsIn(folder_.FamilyFolder(tenant, index))) files_.Remove(path.string());
}

IndexRecords FamilyRecords::Read(absl::string_view tenant, absl::string_view index) const {
  IndexRecords records;
  for (const fs::path& path : RecordsIn(folder_.FamilyFolder(tenant, index))) {
    absl::StatusOr<FamilyRecord> record = ReadRecord(path);
    if (!record.ok()) {
      records.damaged.emplace(path.stem().string(), record.status());
      continue;
    }
    std::string family = record->family;
    records.families.emplace(std::move(family), *std::move(record));
  }
  return records;
}

void FamilyRecords::Sweep(absl::string_view tenant, absl::string_view index) {
  for (const fs::path& path : RecordsIn(folder_.FamilyFolder(tenant, index))) {
    const absl::StatusOr<FamilyRecord> record = ReadRecord(path);
    if (record.ok() && record->moved() && absl::Now() < record->until) continue;
    files_.Remove(path.string());
  }
}

}  // namespace seine
