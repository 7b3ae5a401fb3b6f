#include "index/snapshot/snapshot_settings.h"

#include <Eigen/Core>
#include <algorithm>
#include <type_traits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "index/bytes/section_hash.h"
#include "profile/field_error.h"
#include "profile/moments.h"
#include "profile/profile.h"

namespace seine {

namespace {

std::string HexOf(const SectionHash& hash) {
  const Hash128 digest = hash.Digest();
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

template <typename T>
void AddAll(const std::vector<T>& heads, SectionHash* hash) {
  for (const T& head : heads) hash->Add(head.data(), static_cast<int64_t>(head.size() * sizeof(head.data()[0])));
}

// The moments alone: texts and names change nothing.
std::string ChecksumOf(const Profile* profile) {
  if (profile == nullptr) return "none";
  SectionHash hash(0);
  for (const LayerProfile& layer : profile->layers) {
    for (const auto* means : {&layer.q_mean, &layer.k_mean, &layer.v_mean}) AddAll(*means, &hash);
    for (const auto* moments : {&layer.q_moment, &layer.k_moment, &layer.k_residual, &layer.v_moment}) {
      AddAll(*moments, &hash);
    }
  }
  return HexOf(hash);
}

template <typename T>
std::string ChecksumOf(const std::vector<T>& values) {
  if (values.empty()) return "none";
  SectionHash hash(0);
  hash.Add(values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
  return HexOf(hash);
}

class Lines {
 public:
  template <typename T>
  void Add(absl::string_view field, const T& value) {
    absl::StrAppend(&text_, field, "=", TextOf(value), "\n");
  }
  const std::string& text() const { return text_; }

 private:
  static std::string TextOf(const std::string& value) { return value; }
  static std::string TextOf(const char* value) { return value; }
  static std::string TextOf(double value) { return absl::StrFormat("%a", value); }  // to the last bit
  template <typename T>
  static std::string TextOf(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      return absl::StrCat(static_cast<int>(value));
    } else {
      return absl::StrCat(value);
    }
  }
  std::string text_;
};

void AddGeometry(const IndexConfig& config, Lines* lines) {
  const Geometry& g = config.geometry;
  lines->Add("geometry.num_layers", g.num_layers);
  lines->Add("geometry.num_q_heads", g.num_q_heads);
  lines->Add("geometry.num_kv_heads", g.num_kv_heads);
  lines->Add("geometry.head_dim", g.head_dim);
  lines->Add("geometry.dtype", g.dtype);
  lines->Add("geometry.rope", ChecksumOf(g.rope.inv_freq));
  lines->Add("geometry.rope_style", g.rope.style);
  // Absent where they say nothing, as in snapshots of before they were thought of.
  if (g.rope.rotary_dim > 0) lines->Add("geometry.rope_rotary_dim", g.rope.rotary_dim);
  for (const auto& [layer, rope] : g.layer_ropes) {
    lines->Add(absl::StrCat("geometry.layer_ropes.", layer), ChecksumOf(rope.inv_freq));
  }
  lines->Add("zones.sink", config.zones.sink);
  lines->Add("zones.local", config.zones.local);
  lines->Add("zones.update_buffer", config.zones.update_buffer);
  lines->Add("kv_store", config.kv_store);
}

void AddCodec(const Context& context, Lines* lines) {
  const CodecConfig& codec = context.config.codec;
  lines->Add("codec.name", codec.name);
  lines->Add("search.coarse", Name(context.config.search.coarse));
  lines->Add("codec.centre", Name(codec.centre));
  lines->Add("codec.centre_tokens", codec.centre_window);  // as snapshots of before spell it
  const CodecTraits& traits = TraitsOf(codec.name);
  if (traits.needs_profile) lines->Add("codec.profile", ChecksumOf(codec.profile.get()));
  ForEachCodecOption([&](const auto& option) {
    if (traits.Takes(option.name)) lines->Add(absl::StrCat("codec.", option.name), codec.*option.field);
  });
  if (traits.needs_profile) {
    lines->Add("codec.horizon", codec.horizon);
    lines->Add("codec.query_position", codec.query_position.value_or(-1));
  } else {
    lines->Add("codec.seed", codec.seed);
  }
  lines->Add("layout.coarse_bytes", context.codes.layout.coarse_bytes);
  lines->Add("layout.fine_bytes", context.codes.layout.fine_bytes);
  lines->Add("layout.segment_keys", context.codes.segment_keys);
  lines->Add("layout.chunk_tokens", context.row_shape.length);
}

void AddEviction(const Context& context, Lines* lines) {
  lines->Add("eviction", context.eviction.on());
  if (!context.eviction.on()) return;
  const EvictionConfig& e = context.eviction.settings();
  lines->Add("eviction.scorer.name", e.scorer.name);
  ForEachScorerOption(
      [&](const auto& option) { lines->Add(absl::StrCat("eviction.scorer.", option.name), e.scorer.*option.field); });
  ForEachStored(e, [&](const char* name, const auto& value) { lines->Add(absl::StrCat("eviction.", name), value); });
  lines->Add("eviction.keep_queries", context.kept_queries());
  lines->Add("eviction.horizon", FilterHorizon(context.config));
  lines->Add("eviction.profile", ChecksumOf(context.eviction.profile()));
  for (const Filters& filters : e.filters) lines->Add("eviction.filters", ChecksumOf(filters));
}

void AddSubspace(const IndexConfig& config, Lines* lines) {
  lines->Add("subspace", config.subspace.has_value());
  if (!config.subspace) return;
  const SubspaceConfig& s = *config.subspace;
  for (int layer = 0; layer < config.geometry.num_layers; ++layer) {
    lines->Add(absl::StrCat("subspace.key_rank[", layer, "]"), s.key_rank_of(layer));
    lines->Add(absl::StrCat("subspace.value_rank[", layer, "]"), s.value_rank_of(layer));
  }
  ForEachStored(s, [&](const char* name, const auto& value) { lines->Add(absl::StrCat("subspace.", name), value); });
  lines->Add("subspace.profile", ChecksumOf(s.profile.get()));
  lines->Add("subspace.carried_to", s.carried_to);
  lines->Add("subspace.stack_queries", s.stack_queries);
}

}  // namespace

std::string SettingsText(const Context& context) {
  Lines lines;
  AddGeometry(context.config, &lines);
  AddCodec(context, &lines);
  AddEviction(context, &lines);
  AddSubspace(context.config, &lines);
  return lines.text();
}

absl::Status CheckSettings(absl::string_view snapshot, absl::string_view own) {
  constexpr size_t kLongest = 200;  // line that is shown
  if (snapshot == own) return absl::OkStatus();
  const std::vector<std::string> theirs = absl::StrSplit(snapshot, '\n'), ours = absl::StrSplit(own, '\n');
  size_t i = 0;
  while (i < theirs.size() && i < ours.size() && theirs[i] == ours[i]) ++i;
  const auto at = [i](const std::vector<std::string>& lines) {
    if (i >= lines.size() || lines[i].empty()) return std::string("nothing");
    const bool shown =
        lines[i].size() <= kLongest && std::all_of(lines[i].begin(), lines[i].end(), absl::ascii_isprint);
    return shown ? lines[i] : std::string("what is no setting");
  };
  return absl::FailedPreconditionError(absl::StrCat("the index was made with other settings than the snapshot's: ",
                                                    at(ours), " where the snapshot has ", at(theirs)));
}

}  // namespace seine
