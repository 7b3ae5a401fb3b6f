// The model profile: first and second moments of queries, keys and values of every head, measured once on any texts, in
// the frame before RoPE. What calibrated methods need: the balanced code, Q-Filters, OjaKV's first bases, Expected
// Attention. docs/profile.md says how one is made. The numbers themselves are in profile/moments.h.
//
// File: safetensors, fp16 or fp32. A symmetric matrix is stored as its upper triangle, row by row
// ([heads, D (D + 1) / 2]: D + D - 1 + ... + 1 numbers), which halves the file.
//   layers.{l}.q_mean [Hq, D]    .q_moment [Hq, T]
//   layers.{l}.k_mean [Hkv, D]   .k_moment [Hkv, T]   .k_residual [Hkv, T]   (T = D (D + 1) / 2)
//   layers.{l}.v_mean [Hkv, D]   .v_moment [Hkv, T]   (of all layers, or of none where values were not to be had)
// Moments of queries and keys lie in the coordinates of the model's own layout, rope_style. Where an index's keys come
// in the other one, its profile is brought to it (layout.h). A profile that states no RoPE states no layout either: it
// is taken as it is. metadata, strings: format = "seine-profile-1", model, texts (JSON list), rope (JSON as config.json
// states it, empty if not stated), rope_style (half_split | interleaved), num_layers, num_q_heads, num_kv_heads,
// head_dim, key_tokens, query_tokens (measured, a layer), licence; and seine_checksum, over the whole file
// (checksum.h), which files written before it was thought of do without. Where layers turn otherwise than `rope` says,
// or not at all, format is "seine-profile-2" and layer_ropes says how (ParseLayerRopes).
#ifndef SEINE_PROFILE_PROFILE_H_
#define SEINE_PROFILE_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "profile/rope.h"

namespace seine {

struct LayerProfile;  // the moments of one layer: profile/moments.h

struct Profile {
  std::string model, licence;
  std::vector<std::string> texts;
  std::string rope_json;  // of the model as it is used without stretching; empty: not stated, moments as observed
  std::string layer_ropes_json;  // of layers that turn otherwise; empty: none do
  Rope::Style rope_style = Rope::Style::kHalfSplit;
  int num_q_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t key_tokens = 0, query_tokens = 0;  // measured, a layer
  std::vector<LayerProfile> layers;

  Profile();
  ~Profile();
  Profile(const Profile& other);
  Profile& operator=(const Profile& other);
  Profile(Profile&& other) noexcept;
  Profile& operator=(Profile&& other) noexcept;

  int num_layers() const;
};

// Errors open with the path: NOT_FOUND, PERMISSION_DENIED, DATA_LOSS (cut short, or not what its checksum states),
// INVALID_ARGUMENT (no regular file, no profile, another version, a tensor missing or of another shape, a value that is
// not finite, a matrix that is not positive semi-definite to rounding).
absl::StatusOr<Profile> ReadProfile(const std::string& path);

// What a profile's metadata says of the model; no tensor is read.
struct ProfileHeader {
  std::string model, rope_json, layer_ropes_json;
  Rope::Style rope_style = Rope::Style::kHalfSplit;
  int num_layers = 0, num_q_heads = 0, num_kv_heads = 0, head_dim = 0;
};
// FAILED_PRECONDITION: it is a tensor file of something else. Other errors: those of ReadProfile.
absl::StatusOr<ProfileHeader> ReadProfileHeader(const std::string& path);

// Whether a file says that it is a profile, of this version or another; nothing but its header is read.
// FAILED_PRECONDITION: it is a tensor file of something else. Other errors: those of ReadProfile. `checksum` gets what
// the file states; empty: it was written before profiles had one, or by somebody else, and damage to it goes unseen.
absl::Status CheckIsProfile(const std::string& path, std::string* checksum = nullptr);

enum class ProfilePrecision : uint8_t { kFloat16, kFloat32 };
// Writes beside the path and renames, so that a reader never sees half a file.
absl::Status WriteProfile(const Profile& profile, ProfilePrecision precision, const std::string& path);

// INVALID_ARGUMENT naming the field ("profile: ...") unless the profile is of this geometry.
absl::Status CheckGeometry(const Profile& profile, int num_layers, int num_q_heads, int num_kv_heads, int head_dim);

// Gathers moments from any number of texts, one stretch of tokens of one layer at a time; sums in fp64.
class ProfileBuilder {
 public:
  // `rope`: as seen by the vectors that are added (a stretched run states its own); not stated: moments as observed.
  ProfileBuilder(int num_layers, int num_q_heads, int num_kv_heads, int head_dim);
  ~ProfileBuilder();

  // fp32 [count, heads, D] after RoPE, positions first_position... Keys come in order within a text; those before
  // `sink` should be left out by the caller, for sinks are no zone keys. Windows of 64 begin at the first key of a
  // call, and a last part of a window counts in k_moment only.
  void AddKeys(int layer, const float* keys, int64_t count, int64_t first_position, const Rope& rope);
  void AddQueries(int layer, const float* queries, int64_t count, int64_t first_position, const Rope& rope);
  void AddValues(int layer, const float* values, int64_t count);

  // FAILED_PRECONDITION naming a layer that has no keys or queries, or no values where another has some; values that no
  // layer has were not measured. Names, texts and RoPE are the caller's to fill in.
  absl::StatusOr<Profile> Finish() const;

 private:
  struct LayerSums;
  int num_q_heads_, num_kv_heads_, head_dim_;
  std::vector<LayerSums> layers_;
};

}  // namespace seine

#endif  // SEINE_PROFILE_PROFILE_H_
