#include "profile/io/output_path.h"

#include <sys/stat.h>

#include <filesystem>
#include <random>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace seine {

namespace fs = std::filesystem;

absl::StatusOr<std::string> ResolveOutput(const std::string& path) {
  constexpr int kMostLinks = 40;  // Linux follows as many
  if (path.find('\0') != std::string::npos) return absl::InvalidArgumentError("the name holds a NUL");
  struct stat stat;
  if (::stat(path.c_str(), &stat) == 0 && !S_ISREG(stat.st_mode)) {
    return absl::InvalidArgumentError("it is no regular file");
  }
  fs::path at = path;
  for (int links = 0;; ++links) {
    std::error_code error;
    if (!fs::is_symlink(fs::symlink_status(at, error))) break;
    if (links == kMostLinks) return absl::InvalidArgumentError("its links turn in a circle");
    const fs::path target = fs::read_symlink(at, error);
    if (error) break;  // whoever opens it says why
    at = target.is_absolute() ? target : at.parent_path() / target;
  }
  return at.string();
}

std::string PartialPath(const std::string& path, absl::string_view suffix) {
  std::random_device chance;
  return absl::StrCat(path, ".", absl::Hex(chance(), absl::kZeroPad8), absl::Hex(chance(), absl::kZeroPad8), suffix);
}

}  // namespace seine
