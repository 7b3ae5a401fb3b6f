// Checks of settings: one clear line with the field's name in front, in the wire's words.
#include "index/config/config.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "index/config/config_check.h"
#include "profile/field_error.h"
#include "profile/moments.h"
#include "profile/profile.h"

namespace seine {

namespace {

constexpr int kMaxKvHeads = 1024;
constexpr int kMaxZoneTokens = 1 << 24;
constexpr int kMaxCentreTokens = 2048;
constexpr int kMaxTopK = 65536;
constexpr int kMaxRescored = 1 << 24;
constexpr double kMaxFrequency = 1e6;  // radians a token

absl::Status CheckRope(const Rope& rope, int head_dim) {
  if (absl::Status s = CheckFieldEnum("geometry", "rope.style", rope.style, Rope::Style::kInterleaved); !s.ok())
    return s;
  if (!rope.stated()) return absl::OkStatus();
  if (rope.head_dim() != head_dim) {
    return WrongField("geometry", "rope.inv_freq", rope.inv_freq.size(), " frequencies where head_dim ", head_dim,
                      " has ", head_dim / 2, " pairs");
  }
  for (const double w : rope.inv_freq) {
    if (!(w >= 0 && w <= kMaxFrequency)) return WrongField("geometry", "rope.inv_freq", w, " is no frequency");
  }
  if (rope.rotary_dim < 0 || rope.rotary_dim > head_dim || rope.rotary_dim % 2 != 0) {
    return WrongField("geometry", "rope.rotary_dim", rope.rotary_dim, " is no even number in [0, ", head_dim, "]");
  }
  if (std::any_of(rope.inv_freq.begin() + rope.half(), rope.inv_freq.end(), [](double w) { return w > 0; })) {
    return WrongField("geometry", "rope.inv_freq", "turns pairs behind rotary_dim ", rope.rotary_dim);
  }
  return absl::OkStatus();
}

absl::Status CheckRopes(const Geometry& g) {
  if (absl::Status s = CheckRope(g.rope, g.head_dim); !s.ok()) return s;
  for (const auto& [layer, rope] : g.layer_ropes) {
    if (absl::Status s = CheckRope(rope, g.head_dim); !s.ok()) return WithField(s, "geometry.layer_ropes");
  }
  const absl::Status alike = CheckLayerRopes(g.rope, g.layer_ropes, g.num_layers);
  return alike.ok() ? alike : WrongField("geometry", "layer_ropes", alike.message());
}

absl::Status CheckGeometry(const Geometry& g) {
  absl::Status status =
      FirstError(CheckFieldRange("geometry", "num_layers", g.num_layers, 1, kMaxLayers),
                 CheckFieldRange("geometry", "num_kv_heads", g.num_kv_heads, 1, kMaxKvHeads),
                 CheckFieldRange("geometry", "num_q_heads", g.num_q_heads, 1, kMaxKvHeads * kMaxGroup),
                 CheckFieldEnum("geometry", "dtype", g.dtype, DType::kBFloat16));
  if (!status.ok()) return status;
  if (g.num_q_heads % g.num_kv_heads != 0) {
    return WrongField("geometry", "num_q_heads", g.num_q_heads, " is not a multiple of num_kv_heads ", g.num_kv_heads);
  }
  if (g.group() > kMaxGroup) {
    return WrongField("geometry", "num_q_heads", g.group(), " query heads a KV head, at most ", kMaxGroup);
  }
  for (const int dim : kHeadDims) {
    if (g.head_dim == dim) return CheckRopes(g);
  }
  return WrongField("geometry", "head_dim", g.head_dim, " is none of ", absl::StrJoin(kHeadDims, ", "));
}

// Every head needs something to be balanced by, or its first keys could not be encoded.
absl::Status CheckProfile(const Profile& profile, const Geometry& g) {
  if (absl::Status s = seine::CheckGeometry(profile, g.num_layers, g.num_q_heads, g.num_kv_heads, g.head_dim);
      !s.ok()) {
    return WithField(s, "codec.profile");
  }
  if (absl::Status s = CheckProfileRope(profile, g); !s.ok()) return s;
  for (int l = 0; l < g.num_layers; ++l) {
    for (int h = 0; h < g.num_kv_heads; ++h) {
      const double keys = profile.layers[l].k_residual[h].trace(), queries = GroupQueryMoment(profile, l, h).trace();
      if (keys > 0 && queries > 0 && std::isfinite(keys) && std::isfinite(queries)) continue;
      return WrongField("codec", "profile", "no moments of layer ", l, ", KV head ", h);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckProfileRope(const Profile& profile, const Geometry& g) {
  if (profile.rope_json.empty()) return absl::OkStatus();
  if (!g.rope.stated()) {
    return WrongField("geometry", "rope", "not stated, but the profile's moments are of before RoPE");
  }
  const auto rope = ParseRope(profile.rope_json, profile.head_dim, profile.rope_style, /*length=*/1);
  if (!rope.ok()) return rope.status();
  const auto others = ParseLayerRopes(profile.layer_ropes_json, profile.head_dim, profile.rope_style, /*length=*/1);
  if (!others.ok()) return others.status();
  for (int layer = 0; layer < g.num_layers; ++layer) {
    const Rope &own = RopeOfLayer(*rope, *others, layer), &given = g.RopeOf(layer);
    const auto turned = [](const Rope& of) {
      return std::count_if(of.inv_freq.begin(), of.inv_freq.end(), [](double w) { return w > 0; });
    };
    const bool alike = std::equal(own.inv_freq.begin(), own.inv_freq.end(), given.inv_freq.begin(),
                                  given.inv_freq.end(), [](double a, double b) { return (a > 0) == (b > 0); });
    if (!alike) {
      return WrongField("geometry", given.turns() && own.turns() ? "rope" : "layer_ropes", "layer ", layer, " turns ",
                        turned(given), " of ", g.head_dim / 2, " pairs of coordinates, and the profile's turns ",
                        turned(own), turned(own) == turned(given) ? " others" : "");
    }
    const bool halved = own.style == Rope::Style::kHalfSplit && given.style == Rope::Style::kHalfSplit;
    if (own.turns() && halved && own.half() != given.half()) {
      return WrongField("geometry", "rope.rotary_dim", "layer ", layer, "'s pairs lie in ", 2 * given.half(),
                        " coordinates, and the profile's in ", 2 * own.half());
    }
  }
  return absl::OkStatus();
}

namespace {

// Names of the codecs, or of those that need a profile: "rsq and balanced".
std::string NamesOf(bool with_profile) {
  std::vector<absl::string_view> names;
  for (const CodecTraits* traits : AllCodecs()) {
    if (!with_profile || traits->needs_profile) names.push_back(traits->name);
  }
  return absl::StrJoin(names, " and ");
}

// The first mode of several is the usual one, and named alone.
absl::Status CheckCapabilities(const IndexConfig& config) {
  const CodecTraits& traits = TraitsOf(config.codec.name);
  if (!traits.Supports(config.search.coarse)) {
    return WrongField("retrieval", "coarse", traits.name, " needs ", Name(*traits.coarse_modes.begin()));
  }
  if (!traits.Supports(config.codec.centre)) {
    return WrongField("codec", "centre", traits.name, " needs ", Name(*traits.centres.begin()));
  }
  return absl::OkStatus();
}

std::string CodecsThatTake(const char* option) {
  std::vector<absl::string_view> names;
  for (const CodecTraits* traits : AllCodecs()) {
    if (traits->Takes(option)) names.push_back(traits->name);
  }
  return absl::StrJoin(names, " and ");
}

// Options of another codec are a misunderstanding, not something to pass over.
absl::Status CheckOptions(const CodecConfig& codec, int head_dim) {
  absl::Status status;
  ForEachCodecOption([&](const auto& option) {
    const bool given = codec.*option.field != CodecOptions().*option.field;
    if (!status.ok() || !given || TraitsOf(codec.name).Takes(option.name)) return;
    status = WrongField("codec", option.name, "given, but only ", CodecsThatTake(option.name), " has one");
  });
  return status.ok() ? ValidateOptions(codec, head_dim) : status;
}

absl::Status CheckProfiled(const IndexConfig& config) {
  const CodecConfig& codec = config.codec;
  const bool rope = config.geometry.rope.stated();
  if (codec.profile == nullptr) return WrongField("codec", "profile", codec.name, " needs one");
  if (codec.profile_name.size() > kMaxNameLength) {
    return WrongField("codec", "profile", codec.profile_name.size(), " characters, at most ", kMaxNameLength);
  }
  if (!rope && codec.horizon != kDefaultHorizon)
    return WrongField("codec", "horizon", "given, but geometry.rope is not");
  if (!rope && codec.query_position) return WrongField("codec", "query_position", "given, but geometry.rope is not");
  if (absl::Status s = CheckFieldRange("codec", "horizon", codec.horizon, kMinHorizon, kMaxHorizon); !s.ok()) return s;
  if (absl::Status s = CheckFieldRange("codec", "query_position", codec.query_position.value_or(0), 0, INT32_MAX);
      !s.ok())
    return s;
  if (absl::Status s = CheckOptions(codec, config.geometry.head_dim); !s.ok()) return s;
  return CheckProfile(*codec.profile, config.geometry);
}

// Settings of another codec are a misunderstanding, not something to pass over.
absl::Status CheckUnprofiled(const CodecConfig& codec) {
  const CodecConfig plain;
  const std::string what = absl::StrCat("given, but only ", NamesOf(true), " has one");
  if (codec.profile != nullptr || !codec.profile_name.empty()) return WrongField("codec", "profile", what);
  if (codec.horizon != plain.horizon) return WrongField("codec", "horizon", what);
  if (codec.query_position) return WrongField("codec", "query_position", what);
  return absl::OkStatus();
}

// Tiers rank what a centre leaves of a key, so that keys of other windows, which lack another <q, centre>, could not be
// compared. A centre that all keys share changes no order.
absl::Status CheckCollision(const IndexConfig& config) {
  if (config.search.coarse != Coarse::kCollision || config.codec.centre != Centre::kWindow) return absl::OkStatus();
  return WrongField("codec", "centre", "collision leaves out what windows' centres add; it needs none or global");
}

absl::Status CheckCodec(const CodecConfig& codec) {
  if (FindCodec(codec.name) == nullptr) {
    return WrongField("codec", "name", "unknown codec; there are ", NamesOf(false));
  }
  if (absl::Status s = CheckFieldEnum("codec", "centre", codec.centre, Centre::kWindow); !s.ok()) return s;
  if (codec.centre != Centre::kWindow) return absl::OkStatus();
  if (absl::Status s = CheckFieldRange("codec", "centre_window", codec.centre_window, 1, kMaxCentreTokens); !s.ok())
    return s;
  if (codec.centre_window % kWindowTokens == 0) return absl::OkStatus();
  return WrongField("codec", "centre_window", codec.centre_window, " is not a multiple of ", kWindowTokens);
}

absl::Status CheckZones(const Zones& zones, const CodecConfig& codec) {
  absl::Status status = FirstError(CheckFieldRange("zones", "sink", zones.sink, 0, kMaxZoneTokens),
                                   CheckFieldRange("zones", "local", zones.local, 0, kMaxZoneTokens),
                                   CheckFieldRange("zones", "update_buffer", zones.update_buffer, 1, kMaxZoneTokens),
                                   CheckFieldRange("zones", "dense_threshold", zones.dense_threshold, 0, INT32_MAX));
  if (!status.ok()) return status;
  if (zones.update_buffer % kWindowTokens != 0) {
    return WrongField("zones", "update_buffer", zones.update_buffer, " is not a multiple of ", kWindowTokens);
  }
  if (codec.centre == Centre::kWindow && zones.update_buffer % codec.centre_window != 0) {
    return WrongField("zones", "update_buffer", zones.update_buffer, " is not a multiple of codec.centre_window ",
                      codec.centre_window);
  }
  return absl::OkStatus();
}

// The wire has mass_p, its floor and, as its cap, top_k in one message.
absl::Status CheckSearch(absl::string_view group, const SearchParams& p) {
  absl::Status status = FirstError(CheckFieldRange(group, p.mass_p > 0 ? "mass_p.cap" : "top_k", p.top_k, 1, kMaxTopK),
                                   CheckFieldRange(group, "mass_p.floor", p.mass_floor, 1, kMaxTopK),
                                   CheckFieldRange(group, "rescore_k", p.rescore_k, 0, kMaxRescored),
                                   CheckFieldEnum(group, "coarse", p.coarse, Coarse::kCollision),
                                   CheckFieldEnum(group, "scope", p.scope, Scope::kPerQHead),
                                   CheckFieldEnum(group, "gqa_reduce", p.gqa_reduce, GqaReduce::kMean),
                                   CheckFieldEnum(group, "exact", p.method, Method::kExact));
  if (!status.ok()) return status;
  // Written so that NaN fails too.
  if (!(p.mass_p >= 0 && p.mass_p <= 1)) return WrongField(group, "mass_p.p", p.mass_p, " is not in [0, 1]");
  if (p.mass_p > 0 && p.mass_floor > p.top_k) {
    return WrongField(group, "mass_p.floor", p.mass_floor, " is above mass_p.cap ", p.top_k);
  }
  if (!(p.recall_target >= 0 && p.recall_target < 1)) {
    return WrongField(group, "recall_target", p.recall_target, " is not in [0, 1)");
  }
  if (p.candidates < 0) return WrongField(group, "candidates", p.candidates, " is below 0");
  if (p.candidates > 0 && p.recall_target > 0) {
    return WrongField(group, "candidates", p.candidates, " and recall_target exclude each other");
  }
  if (!(p.candidate_fraction >= 0 && p.candidate_fraction <= 1)) {
    return WrongField(group, "candidate_fraction", p.candidate_fraction, " is not in [0, 1]");
  }
  if (!(p.collision_fraction > 0 && p.collision_fraction <= 1)) {
    return WrongField(group, "collision_fraction", p.collision_fraction, " is not in (0, 1]");
  }
  if (p.coarse == Coarse::kCollision && p.collision_fraction < ShareKept(p, kDefaultCandidateFraction)) {
    return WrongField(group, "collision_fraction", p.collision_fraction, " is below candidate_fraction, ",
                      ShareKept(p, kDefaultCandidateFraction),
                      ": tiers would cover fewer keys than are to be candidates");
  }
  return CheckSoftmaxScale(absl::StrCat(group, group.empty() ? "" : ".", "softmax_scale"), p.softmax_scale);
}

}  // namespace

int QueriesKept(const IndexConfig& config) {
  if (!config.eviction) return 0;
  const EvictionConfig& e = *config.eviction;
  if (e.keep_queries) return *e.keep_queries;
  const auto scorer = MakeScorer(e.scorer);
  if (!scorer.ok() || ((*scorer)->takes_profile() && HasEvictionProfile(config))) return 0;
  return static_cast<int>((*scorer)->default_query_window());
}

CodecSpec SpecOf(const CodecConfig& codec, int head_dim) {
  return {static_cast<const CodecOptions&>(codec), head_dim, codec.seed, codec.centre, codec.centre_window};
}

int64_t FilterHorizon(const IndexConfig& config) {
  if (config.eviction && config.eviction->horizon) return *config.eviction->horizon;
  return TraitsOf(config.codec.name).needs_profile ? config.codec.horizon : kDefaultHorizon;
}

absl::Status ValidateOptions(const CodecConfig& codec, int head_dim) {
  const CodecTraits& traits = TraitsOf(codec.name);
  if (traits.check == nullptr) return absl::OkStatus();
  const CodecFault fault = traits.check(SpecOf(codec, head_dim));
  return *fault.option == 0 ? absl::OkStatus() : WrongField("codec", fault.option, fault.what);
}

absl::Status CheckSoftmaxScale(absl::string_view field, float scale) {
  if (scale >= 0 && scale <= kMaxSoftmaxScale) return absl::OkStatus();
  return WrongField("", field, scale, " is not in [0, ", kMaxSoftmaxScale, "]");
}

absl::Status Validate(const SearchParams& params) { return CheckSearch("", params); }

absl::Status Validate(const SearchParams& params, const IndexConfig& config) {
  if (absl::Status s = Validate(params); !s.ok()) return s;
  if (params.coarse != config.search.coarse) {
    return WrongField("", "coarse", "fixed for the index's life as ", Name(config.search.coarse));
  }
  if (params.recall_target > 0 && !TraitsOf(config.codec.name).predicts_noise) {
    return WrongField("", "recall_target", config.codec.name, " does not predict its noise; give candidate_fraction");
  }
  if (params.method == Method::kExact && config.kv_store == KvStore::kNone) {
    return FieldError(absl::StatusCode::kFailedPrecondition, "exact", "needs kv_store keys or keys_values");
  }
  return absl::OkStatus();
}

absl::Status Validate(const AttentionParams& params, const IndexConfig& config) {
  if (config.kv_store != KvStore::kKeysValues) {
    return FieldError(absl::StatusCode::kFailedPrecondition, "attention",
                      "kv_store keeps no values; it needs keys_values");
  }
  if (!(params.prompt_mass > 0 && params.prompt_mass <= 1)) {
    return WrongField("attention", "prompt_mass", params.prompt_mass, " is not in (0, 1]");
  }
  if (absl::Status s = CheckSoftmaxScale("attention.softcap", params.softcap); !s.ok()) return s;
  return CheckSoftmaxScale("attention.scale", params.scale);
}

absl::Status Validate(const IndexConfig& config) {
  if (config.name.size() > kMaxNameLength) {
    return WrongField("", "name", config.name.size(), " characters, at most ", kMaxNameLength);
  }
  for (const char c : config.name) {
    if (!absl::ascii_isprint(c)) return WrongField("", "name", "holds a character that is not printable");
  }
  if (config.model.size() > kMaxNameLength) {
    return WrongField("", "model", config.model.size(), " characters, at most ", kMaxNameLength);
  }
  absl::Status status = FirstError(CheckGeometry(config.geometry), CheckCodec(config.codec));
  if (!status.ok()) return status;
  status = FirstError(CheckZones(config.zones, config.codec), CheckSearch("retrieval", config.search),
                      CheckFieldEnum("", "kv_store", config.kv_store, KvStore::kKeysValues));
  if (!status.ok()) return status;
  if (!(config.gate >= 0 && config.gate <= 1)) return WrongField("retrieval", "gate", config.gate, " is not in [0, 1]");
  if (config.kv_store == KvStore::kNone && config.search.method == Method::kExact) {
    return WrongField("retrieval", "exact", "needs kv_store keys or keys_values");
  }
  status = FirstError(CheckEviction(config), CheckSubspace(config));
  if (!status.ok()) return status;
  if (status = CheckCapabilities(config); !status.ok()) return status;
  status = TraitsOf(config.codec.name).needs_profile
               ? CheckProfiled(config)
               : FirstError(CheckUnprofiled(config.codec), CheckOptions(config.codec, config.geometry.head_dim),
                            CheckCollision(config));
  if (!status.ok()) return status;
  if (config.memory_limit_bytes < 0)
    return WrongField("", "memory_limit_bytes", config.memory_limit_bytes, " is negative");
  if (config.device_memory_limit_bytes < 0) {
    return WrongField("", "device_memory_limit_bytes", config.device_memory_limit_bytes, " is negative");
  }
  return absl::OkStatus();
}

const char* Name(Coarse coarse) { return coarse == Coarse::kCollision ? "collision" : "sign_ip"; }

const char* Name(Centre centre) {
  return centre == Centre::kWindow ? "window" : centre == Centre::kGlobal ? "global" : "none";
}

}  // namespace seine
