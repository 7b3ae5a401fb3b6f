// Finds and reads the profile once, and holds layers against it.
#include "engines/llama.cpp/profiles/model_profile.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engines/llama.cpp/profiles/profiles.h"
#include "engines/llama.cpp/report.h"
#include "engines/llama.cpp/settings.h"

namespace seine::llama {

namespace {

constexpr char kTurnsOtherwise[] = "a layer of another RoPE than the profile's";
constexpr char kLacked[] = "a layer that the profile lacks";

// Returns true if the profile is of other layers of the model, whose heads are others.
bool HasOtherHeads(const Profile& profile, const CacheFacts& facts) {
  CacheFacts of = facts;
  of.num_q_heads = profile.num_q_heads, of.num_kv_heads = profile.num_kv_heads, of.head_dim = profile.head_dim;
  const bool alike =
      of.num_q_heads == facts.num_q_heads && of.num_kv_heads == facts.num_kv_heads && of.head_dim == facts.head_dim;
  return !alike && !LayersOfShape(of).empty();
}

}  // namespace

absl::Status ModelProfile::Read(const CacheFacts& facts) {
  if (std::exchange(read_, true)) return status_;
  const Settings& s = settings();
  std::string path = s.profile;
  if (path.empty() && !s.profiles.empty()) {
    CacheFacts of = facts;  // profiles are of layers that attend all
    if (const auto other = FindOther(facts); other && other->capacity > facts.capacity) of = *other;
    absl::StatusOr<std::string> found = FindProfile(s.profiles, of, static_cast<int>(LayersOfCache(of).size()));
    if (const auto other = FindOther(of); absl::IsNotFound(found.status()) && other && other->capacity == of.capacity) {
      found = FindProfile(s.profiles, *other, static_cast<int>(LayersOfCache(*other).size()));  // swa_full
    }
    if (found.ok()) {
      path = *std::move(found);
    } else {
      SayOnce(absl::StrCat(found.status().message(), "; the ", CodecConfig().name, " code is used, which needs none"));
    }
  }
  if (path.empty()) return absl::OkStatus();
  absl::StatusOr<Profile> profile = ReadProfile(path);
  if (!profile.ok()) return status_ = profile.status();
  profile_ = std::make_shared<const Profile>(*std::move(profile));
  path_ = path;
  return absl::OkStatus();
}

int ModelProfile::NumberOf(const CacheFacts& facts) const {
  return profile_ == nullptr ? facts.layer : NumberInProfile(facts, profile_->num_layers());
}

std::string ModelProfile::Unfit(const CacheFacts& facts) const {
  if (profile_ == nullptr) return {};
  if (HasOtherHeads(*profile_, facts)) return kLacked;
  return MomentsAreOf(*profile_, NumberOf(facts), facts) ? "" : kTurnsOtherwise;
}

std::string ModelProfile::Unfit(const CacheFacts& facts, const Geometry& geometry) const {
  const int number = NumberOf(facts);
  if (profile_ != nullptr) {
    const auto layers = static_cast<size_t>(profile_->num_layers());
    const auto other = FindOther(facts);
    if (other && LayersOfCache(*other).size() == layers && MomentsAreOf(*profile_, NumberOf(*other), *other)) {
      const bool either = other->capacity == facts.capacity && LayersOfCache(facts).size() == layers;  // swa_full
      if (other->capacity >= facts.capacity && !either) return kLacked;
    }
  }
  if (number >= geometry.num_layers) return kLacked;
  return profile_ == nullptr || geometry.RopeOf(number).inv_freq == facts.rope.inv_freq ? "" : kTurnsOtherwise;
}

void ModelProfile::State(const CacheFacts& facts, CellConfig* config) const {
  if (profile_ == nullptr) return;
  config->geometry.num_layers = profile_->num_layers();
  StateRopes(facts, profile_.get(), &config->geometry);
  config->codec.name = "balanced";
  config->codec.profile_name = path_;
  config->codec.profile = profile_;
  const CodeBits bits = CodeBitsOf(facts.head_dim);
  config->codec.coarse_bits = bits.coarse, config->codec.total_bits = bits.total;
}

}  // namespace seine::llama
