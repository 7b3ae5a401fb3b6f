#include "service/snapshots/files/without_ids.h"

#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "service/fields/checked_text.h"

namespace seine {
namespace {

std::string FileOf(const std::string& path) { return absl::StrCat(path, ".without"); }

// Also where nobody can say whether it is there.
bool MayBeThere(const std::string& file) {
  std::error_code error;
  return std::filesystem::exists(file, error) || error;
}

}  // namespace

absl::StatusOr<std::set<DeletedId>> ReadWithoutIds(const std::string& path) {
  const std::string file = FileOf(path);
  std::set<DeletedId> ids;
  if (!MayBeThere(file)) return ids;
  const std::optional<std::string> text = ReadTextFile(file);
  if (!text) return absl::UnavailableError("the ids that it gives no more cannot be read");
  absl::string_view lines = *text;
  if (!TakeChecksum(&lines)) return absl::DataLossError("the ids that it gives no more are damaged");
  for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    ids.insert(absl::StrSplit(line, ' '));
  }
  return ids;
}

absl::Status AddWithoutIds(const std::string& path, std::set<DeletedId> ids, FileOps* files) {
  absl::StatusOr<std::set<DeletedId>> before = ReadWithoutIds(path);
  if (absl::IsDataLoss(before.status())) return absl::OkStatus();
  if (!before.ok()) return before.status();
  ids.merge(*before);
  std::string lines;
  for (const auto& [settings, id] : ids) absl::StrAppend(&lines, settings, " ", id, "\n");
  return WriteTextFile(FileOf(path), WithChecksum(lines), files);
}

void RemoveWithoutIds(const std::string& path, FileOps* files) {
  if (MayBeThere(FileOf(path))) files->Remove(FileOf(path));
}

}  // namespace seine
