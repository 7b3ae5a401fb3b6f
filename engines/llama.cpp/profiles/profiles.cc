// Compares the headers of a folder's profiles with what the graph says of the model.
#include "engines/llama.cpp/profiles/profiles.h"

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

bool TurnAlike(const Rope& profile, const Rope& graph) {
  if (!graph.stated()) return !profile.stated();  // of a kind that no profile states
  if (!profile.turns() && !graph.turns()) return true;
  const bool halved = profile.style == Rope::Style::kHalfSplit && graph.style == Rope::Style::kHalfSplit;
  if (halved && profile.half() != graph.half()) return false;
  return std::equal(profile.inv_freq.begin(), profile.inv_freq.end(), graph.inv_freq.begin(), graph.inv_freq.end(),
                    [](double x, double y) { return std::abs(x - y) <= kTolerance * std::max(x, y); });
}

bool TurnsAs(const Rope& rope, const CacheFacts& facts) {
  return TurnAlike(rope, facts.rope) || TurnAlike(rope, facts.plain_rope);
}

// RoPE as a profile states it: of short texts, and as LongRoPE turns in long ones.
struct StatedRopes {
  // `header`: a Profile or its header, which are read from a file.
  template <typename Header>
  static StatedRopes Of(const Header& header) {
    StatedRopes stated;
    for (const int64_t length : {int64_t{1}, int64_t{INT32_MAX}}) {
      auto rope = ParseRope(header.rope_json, header.head_dim, header.rope_style, length);
      auto others = ParseLayerRopes(header.layer_ropes_json, header.head_dim, header.rope_style, length);
      if (rope.ok() && others.ok()) stated.ropes.emplace_back(*std::move(rope), *std::move(others));
    }
    return stated;
  }
  // Returns true if the graph's layer turns as the profile's layer `number` does.
  bool Fit(int number, const CacheFacts& facts) const {
    return std::any_of(ropes.begin(), ropes.end(),
                       [&](const auto& of) { return TurnsAs(RopeOfLayer(of.first, of.second, number), facts); });
  }

  std::vector<std::pair<Rope, LayerRopes>> ropes;
};

bool Fits(const ProfileHeader& profile, const CacheFacts& facts, int num_layers) {
  if (profile.num_layers != num_layers || profile.num_q_heads != facts.num_q_heads ||
      profile.num_kv_heads != facts.num_kv_heads || profile.head_dim != facts.head_dim) {
    return false;
  }
  const StatedRopes stated = StatedRopes::Of(profile);
  const std::vector<CacheFacts> layers = FactsOfCache(facts);
  return std::all_of(layers.begin(), layers.end(),
                     [&](const CacheFacts& layer) { return stated.Fit(NumberInProfile(layer, num_layers), layer); });
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

int NumberInProfile(const CacheFacts& facts, int num_layers) {
  const std::vector<int> layers = LayersOfCache(facts);
  if (layers.size() != static_cast<size_t>(num_layers)) return facts.layer;
  return static_cast<int>(std::lower_bound(layers.begin(), layers.end(), facts.layer) - layers.begin());
}

bool MomentsAreOf(const Profile& profile, int number, const CacheFacts& facts) {
  const StatedRopes stated = StatedRopes::Of(profile);
  if (profile.rope_json.empty() || stated.Fit(number, facts)) return true;
  const std::vector<CacheFacts> layers = LayersOfShape(facts);
  return std::none_of(layers.begin(), layers.end(), [&](const CacheFacts& other) { return stated.Fit(number, other); });
}

void StateRopes(const CacheFacts& facts, const Profile* profile, Geometry* geometry) {
  const std::vector<CacheFacts> layers = FactsOfCache(facts);
  const auto turning = std::find_if(layers.begin(), layers.end(), [](const auto& layer) { return layer.rope.turns(); });
  geometry->rope = turning == layers.end() ? facts.rope : turning->rope;
  if (turning == layers.end()) return;
  if (profile != nullptr) {
    auto others = ParseLayerRopes(profile->layer_ropes_json, profile->head_dim, profile->rope_style, /*length=*/1);
    if (others.ok()) geometry->layer_ropes = *std::move(others);  // a file that is read has right ones
    for (auto& [number, rope] : geometry->layer_ropes) {
      rope.style = geometry->rope.style, rope.rotary_dim = geometry->rope.rotary_dim;
    }
  }
  for (const CacheFacts& layer : layers) {
    const int number = NumberInProfile(layer, geometry->num_layers);
    geometry->layer_ropes.erase(number);
    if (layer.rope.inv_freq != geometry->rope.inv_freq) geometry->layer_ropes[number] = layer.rope;
  }
}

}  // namespace seine::llama
