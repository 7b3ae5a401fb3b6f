// Compares the headers of a folder's profiles with what the graph says of the model.
#include "engines/llama.cpp/profiles.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engines/llama.cpp/report.h"
#include "profile/profile.h"

namespace seine::llama {

namespace {

// llama.cpp's frequencies come of an fp32 base, and factors in fp32.
constexpr double kTolerance = 1e-4;

bool TurnAlike(const Rope& a, const Rope& b) {
  return std::equal(a.inv_freq.begin(), a.inv_freq.end(), b.inv_freq.begin(), b.inv_freq.end(),
                    [](double x, double y) { return std::abs(x - y) <= kTolerance * std::max(x, y); });
}

bool TurnsAs(const Rope& rope, const CacheFacts& facts) {
  return TurnAlike(rope, facts.rope) || TurnAlike(rope, facts.plain_rope);
}

bool Fits(const ProfileHeader& profile, const CacheFacts& facts, int num_layers) {
  if (profile.num_layers != num_layers || profile.num_q_heads != facts.num_q_heads ||
      profile.num_kv_heads != facts.num_kv_heads || profile.head_dim != facts.head_dim) {
    return false;
  }
  const absl::StatusOr<Rope> rope = ParseRope(profile.rope_json, profile.head_dim, profile.rope_style, /*length=*/1);
  return rope.ok() && TurnsAs(*rope, facts);
}

// Names of the folder's *.safetensors, sorted.
absl::StatusOr<std::vector<std::string>> ListFiles(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") paths.push_back(entry->path().string());
  }
  if (error) return absl::NotFoundError(absl::StrCat("SEINE_PROFILES=", folder, ": ", error.message()));
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

absl::StatusOr<std::string> FindProfile(const std::string& folder, const CacheFacts& facts, int num_layers) {
  const absl::StatusOr<std::vector<std::string>> paths = ListFiles(folder);
  if (!paths.ok()) return paths.status();
  std::vector<std::string> fitting;
  for (const std::string& path : *paths) {
    const absl::StatusOr<ProfileHeader> header = ReadProfileHeader(path);
    // Traces and other tensor files may well lie there; what is called a profile should be one.
    const bool meant = absl::EndsWith(path, ".profile.safetensors") || !absl::IsFailedPrecondition(header.status());
    if (!header.ok() && meant) SayOnce(absl::StrCat("a profile is passed over: ", header.status().message()));
    if (header.ok() && Fits(*header, facts, num_layers)) fitting.push_back(path);
  }
  if (fitting.size() == 1) return fitting[0];
  const std::string model =
      absl::StrCat(num_layers, " layers, ", facts.num_q_heads, " query heads, ", facts.num_kv_heads,
                   " KV heads, head_dim ", facts.head_dim, facts.rope.stated() ? "" : ", no RoPE that profiles state");
  if (fitting.empty()) {
    return absl::NotFoundError(absl::StrCat("SEINE_PROFILES=", folder, ": no profile is of this model (", model, ")"));
  }
  return absl::FailedPreconditionError(absl::StrCat("SEINE_PROFILES=", folder, ": several profiles fit this model (",
                                                    model, "): ", absl::StrJoin(fitting, ", "),
                                                    "; name one by SEINE_PROFILE"));
}

bool MomentsAreOf(const Profile& profile, const CacheFacts& facts) {
  const absl::StatusOr<Rope> rope = ParseRope(profile.rope_json, profile.head_dim, profile.rope_style, /*length=*/1);
  if (!rope.ok() || !rope->stated() || TurnsAs(*rope, facts)) return true;
  const std::vector<CacheFacts> layers = LayersOfShape(facts);
  return std::none_of(layers.begin(), layers.end(), [&](const CacheFacts& other) { return TurnsAs(*rope, other); });
}

}  // namespace seine::llama
