#include "service/snapshots/files/exit_files.h"

#include <algorithm>
#include <filesystem>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "service/fields/checked_text.h"
#include "service/snapshots/files/snapshot_folder.h"

namespace seine {
namespace {

constexpr size_t kDigits = 16;
constexpr char kReplacedSuffix[] = ".replaced";  // behind kSnapshotSuffix

bool IsHex(absl::string_view text) {
  return text.size() == kDigits && std::all_of(text.begin(), text.end(), absl::ascii_isxdigit);
}

ExitFile ParsePath(std::string path) {
  ExitFile file{std::move(path)};
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(file.path, error);
  file.bytes = error ? 0 : static_cast<int64_t>(bytes);
  file.replaced = absl::EndsWith(file.path, kReplacedSuffix);
  const std::string name = std::filesystem::path(file.path).stem().string();
  const absl::string_view end = absl::string_view(name).substr(0, kDigits);
  if (name.size() != 2 * kDigits + 1 || name[kDigits] != '-') return file;
  const absl::string_view family = absl::string_view(name).substr(kDigits + 1);
  if (!IsHex(end) || !IsHex(family) || !absl::SimpleHexAtoi(end, &file.end)) return file;
  file.family = std::string(family);
  return file;
}

// Whether another start may restore the file.
bool MayComeBack(PassedOver reason) {
  switch (reason) {
    case PassedOver::kDoubtful:
    case PassedOver::kDamaged:
    case PassedOver::kUnfit:
    case PassedOver::kOlder:
    case PassedOver::kNoRoom:
    case PassedOver::kUnreadable:
      return true;
    case PassedOver::kStale:
    case PassedOver::kReplaced:
    case PassedOver::kNoIndex:
      return false;
  }
  return false;
}

std::string NewFamily() {
  std::random_device chance;
  return absl::StrCat(absl::Hex(chance(), absl::kZeroPad8), absl::Hex(chance(), absl::kZeroPad8));
}

}  // namespace

absl::string_view ToString(PassedOver reason) {
  constexpr absl::string_view kNames[kPassedOverReasons] = {"stale", "doubtful", "damaged", "unfit",     "replaced",
                                                            "older", "no_index", "no_room", "unreadable"};
  return kNames[static_cast<int>(reason)];
}

absl::StatusOr<std::vector<ExitFile>> ExitFilesIn(const std::string& folder) {
  std::vector<ExitFile> files;
  for (const char* behind : {"", kReplacedSuffix}) {
    absl::StatusOr<std::vector<std::string>> paths = FilesIn(folder, absl::StrCat(kSnapshotSuffix, behind));
    if (!paths.ok()) return paths.status();
    for (std::string& path : *paths) files.push_back(ParsePath(std::move(path)));
  }
  std::stable_sort(files.begin(), files.end(), [](const ExitFile& a, const ExitFile& b) { return a.end > b.end; });
  return files;
}

absl::Status RemoveExitFiles(const std::string& folder, FileOps* files) {
  const absl::StatusOr<std::vector<ExitFile>> found = ExitFilesIn(folder);
  if (!found.ok()) return found.status();
  absl::Status status;
  for (const ExitFile& file : *found) {
    if (files->Remove(file.path) != 0) status.Update(absl::UnavailableError(absl::StrCat(file.path, " stays")));
    RemoveWithoutIds(file.path, files);
  }
  return status;
}

std::string ExitPath(const std::string& folder, uint64_t end, const std::string& family) {
  return absl::StrCat(folder, "/", absl::Hex(end, absl::kZeroPad16), "-", family, kSnapshotSuffix);
}

uint64_t BeginEnd(const std::vector<ExitFile>& files) {
  auto end = static_cast<uint64_t>(std::max<int64_t>(1, absl::ToUnixMicros(absl::Now())));
  for (const ExitFile& file : files) end = std::max(end, file.end + 1);
  return end;
}

void ExitFiles::Restored(const OfIndex& index, const ExitFile& file, const RestoreInfo& info, bool renamed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Source source{file.path, file.family.empty() || renamed ? NewFamily() : file.family};
  Known& known = known_[index];
  known.own.insert(file.path);
  const std::string settings = ChecksumOf(info.settings);
  for (const SequenceInfo& one : info.sequences) {
    known.sources[one.handle.generation] = source;
    known.ids.emplace(settings, one.handle.id);
  }
}

void ExitFiles::Superseded(const OfIndex& index, const ExitFile& file) {
  const std::lock_guard<std::mutex> lock(mutex_);
  known_[index].own.insert(file.path);
}

void ExitFiles::Replaced(const OfIndex& index, const ExitFile& file) {
  const std::lock_guard<std::mutex> lock(mutex_);
  known_[index].own.insert(file.path);
  known_[index].replaced.insert(file.path);
}

void ExitFiles::PassOver(const OfIndex& index, const ExitFile& file, PassedOver reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::string name = std::filesystem::path(file.path).filename().string();
  passed_over_.push_back({index.first, index.second, name, file.bytes, reason});
  if (MayComeBack(reason)) known_[index].waiting.insert(file.path);
}

void ExitFiles::PassOverFolder(const OfIndex& index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  passed_over_.push_back({index.first, index.second, "", 0, PassedOver::kUnreadable});
}

void ExitFiles::Reconsider(const OfIndex& index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(passed_over_, [&](const PassedOverFile& file) {
    return file.reason == PassedOver::kNoIndex && OfIndex(file.tenant, file.index) == index;
  });
}

std::string ExitFiles::FamilyOf(const OfIndex& index, uint64_t generation) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = known_.find(index);
  if (known == known_.end()) return NewFamily();
  const auto source = known->second.sources.find(generation);
  return source == known->second.sources.end() ? NewFamily() : source->second.family;
}

void ExitFiles::Written(const OfIndex& index, const std::string& path, const std::string& family,
                        const std::vector<SequenceInfo>& sequences) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Known& known = known_[index];
  std::set<std::string> before;
  for (const SequenceInfo& one : sequences) {
    const Source old = std::exchange(known.sources[one.handle.generation], Source{path, family});
    if (!old.path.empty() && old.path != path) before.insert(old.path);
  }
  for (const std::string& old : before) {
    if (Retire(&known, old)) known.own.erase(old);
  }
  known.own.insert(path);
}

bool ExitFiles::Retire(Known* known, const std::string& path) {
  const bool replaced = known->replaced.contains(path);
  if ((replaced ? files_->Rename(path, path + kReplacedSuffix) : files_->Remove(path)) != 0) return false;
  known->replaced.erase(path);
  RemoveWithoutIds(path, files_);
  return true;
}

bool ExitFiles::AllWritten(const OfIndex& index, const std::set<std::string>& written,
                           const std::set<std::string>& held) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Known& known = known_[index];
  std::set<DeletedId> deleted = known.ids;
  std::erase_if(deleted, [&](const DeletedId& one) { return held.contains(one.second); });
  for (const std::string& path : known.waiting) {
    if (!deleted.empty() && !AddWithoutIds(path, deleted, files_).ok()) return false;
  }
  std::erase_if(known.own, [&](const std::string& path) { return !written.contains(path) && Retire(&known, path); });
  return std::all_of(known.own.begin(), known.own.end(), [&](const auto& path) { return written.contains(path); });
}

void ExitFiles::Forget(const OfIndex& index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  known_.erase(index);
  std::erase_if(passed_over_, [&](const PassedOverFile& file) { return OfIndex(file.tenant, file.index) == index; });
}

std::vector<PassedOverFile> ExitFiles::List() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return passed_over_;
}

}  // namespace seine
