#include "service/profiles.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "service/fields/error.h"
#include "service/fields/names.h"

namespace seine {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffixes[] = {".profile.safetensors", ".safetensors"};  // the first that fits counts
constexpr absl::string_view kFiltersSuffix = ".filters.safetensors";
constexpr size_t kMostNamed = 8;  // in an error

}  // namespace

absl::StatusOr<std::shared_ptr<Profiles>> Profiles::Open(const std::string& folder) {
  std::error_code error;
  fs::directory_iterator files(folder, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat("'", folder, "': ", error.message()));
  auto profiles = std::make_shared<Profiles>();
  profiles->folder_ = folder;
  return profiles;
}

absl::StatusOr<std::string> Profiles::Add(const std::string& path) {
  std::error_code error;
  const fs::path file = fs::canonical(path, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat("'", path, "': ", error.message()));
  if (auto s = CheckIsProfile(file.string()); !s.ok()) return absl::InvalidArgumentError(s.message());
  std::string name = file.filename().string();
  for (const char* suffix : kSuffixes) {
    if (absl::EndsWith(name, suffix)) name.resize(name.size() - absl::string_view(suffix).size());
  }
  if (auto s = CheckName(name, absl::StrCat("'", path, "'")); !s.ok()) return s;
  const std::lock_guard<std::mutex> lock(files_mutex_);
  const auto [at, added] = files_.emplace(name, file.string());
  if (added || at->second == file.string()) return name;
  return absl::AlreadyExistsError(absl::StrCat("'", path, "': another profile, '", at->second, "', is called ", name));
}

Profiles::Listing Profiles::List() const {
  Listing listing;
  {
    const std::lock_guard<std::mutex> lock(files_mutex_);
    for (const auto& [name, path] : files_) listing.names.push_back(name);
  }
  if (folder_.empty()) return listing;
  std::error_code error;  // a folder that went away since holds none
  for (fs::directory_iterator file(folder_, error), end; !error && file != end; file.increment(error)) {
    const std::string path = file->path().string(), file_name = file->path().filename().string();
    for (const char* suffix : kSuffixes) {
      if (absl::EndsWith(file_name, kFiltersSuffix)) break;
      if (!absl::EndsWith(file_name, suffix)) continue;
      const std::string name(absl::StripSuffix(file_name, suffix));
      absl::Status status = CheckName(name, "");
      std::string checksum;
      if (status.ok()) status = CheckIsProfile(path, &checksum);
      const bool meant = suffix == kSuffixes[0] || status.code() != absl::StatusCode::kFailedPrecondition;
      if (status.ok()) {
        listing.names.push_back(name);
        if (checksum.empty()) listing.without_checksum.push_back(file_name);
      } else if (meant) {
        listing.passed_over.push_back(
            absl::StrCat(file_name, ": ", absl::StripPrefix(status.message(), absl::StrCat(path, ": "))));
      }
      break;
    }
  }
  for (auto* list : {&listing.names, &listing.passed_over, &listing.without_checksum})
    std::sort(list->begin(), list->end());
  listing.names.erase(std::unique(listing.names.begin(), listing.names.end()), listing.names.end());
  return listing;
}

std::string Profiles::PathOf(const std::string& name) const {
  {
    const std::lock_guard<std::mutex> lock(files_mutex_);
    if (const auto file = files_.find(name); file != files_.end()) return file->second;
  }
  if (folder_.empty() || !CheckName(name, "").ok()) return "";
  for (const char* suffix : kSuffixes) {
    std::string path = absl::StrCat(folder_, "/", name, suffix);
    std::error_code error;
    if (fs::exists(path, error)) return path;
  }
  return "";
}

void Profiles::Forget() {
  const std::lock_guard<std::mutex> lock(mutex_);
  read_.clear();
}

bool Profiles::Has(const std::string& name) const {
  const std::string path = PathOf(name);
  return !path.empty() && CheckIsProfile(path).code() != absl::StatusCode::kFailedPrecondition;
}

absl::StatusOr<std::shared_ptr<const Profile>> Profiles::Find(const std::string& name, absl::string_view field) {
  if (auto s = CheckName(name, field); !s.ok()) return s;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto found = read_.find(name); found != read_.end()) return found->second;
  const std::string path = PathOf(name);
  if (path.empty()) {
    std::vector<std::string> names = Names();
    const bool more = names.size() > kMostNamed;
    if (more) names.resize(kMostNamed);
    const std::string what =
        folder_.empty() && names.empty() ? "the server has no folder of profiles (--profiles)"
        : names.empty()                  ? "no such profile; the server has none"
                        : absl::StrCat("no such profile; there are ", absl::StrJoin(names, ", "), more ? ", ..." : "");
    return FieldError("PROFILE_NOT_FOUND", field, what, absl::StatusCode::kNotFound);
  }
  absl::StatusOr<Profile> profile = ReadProfile(path);
  if (!profile.ok()) {  // clients need not know where the server's files lie
    const absl::string_view what = absl::StripPrefix(profile.status().message(), absl::StrCat(path, ": "));
    return FieldError("BAD_PROFILE", field, what, absl::StatusCode::kFailedPrecondition);
  }
  return read_[name] = std::make_shared<const Profile>(*std::move(profile));
}

absl::StatusOr<std::vector<Filters>> Profiles::FindFilters(const std::string& name, const Geometry& geometry,
                                                           absl::string_view field) const {
  if (auto s = CheckName(name, field); !s.ok()) return s;
  const std::string file = absl::StrCat(name, kFiltersSuffix), path = absl::StrCat(folder_, "/", file);
  std::error_code error;
  if (folder_.empty() || !fs::exists(path, error)) {
    const std::string what = folder_.empty() ? "the server has no folder of profiles (--profiles)"
                                             : absl::StrCat("the server's folder of profiles has no ", file);
    return FieldError("PROFILE_NOT_FOUND", field, what, absl::StatusCode::kNotFound);
  }
  auto filters = ReadFilters(path, /*negated=*/true, geometry.num_layers, geometry.num_kv_heads, geometry.head_dim);
  if (filters.ok()) return filters;
  // Clients need not know where the server's files lie.
  const std::string what = absl::StrReplaceAll(filters.status().message(), {{path, file}});
  return FieldError("BAD_PROFILE", field, what, absl::StatusCode::kFailedPrecondition);
}

}  // namespace seine
