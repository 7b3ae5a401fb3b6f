// RoPE's frequencies out of a model's config, and turning vectors by them.
#include "profile/rope.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "profile/io/json.h"

namespace seine {
namespace {

using Json = nlohmann::json;

constexpr double kPi = 3.14159265358979323846;

template <typename... Parts>
absl::Status Wrong(absl::string_view field, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("rope.", field, ": ", parts...));
}

// Fields of a config: those of the inner object (rope_scaling, rope_parameters), then those beside it. The first error
// is kept, and reading goes on with harmless values.
class Fields {
 public:
  Fields(const Json& inner, const Json& outer) : inner_(inner), outer_(outer) {}

  // nullptr where the field is missing or null.
  const Json* Find(const char* name) const {
    for (const Json* object : {&inner_, &outer_}) {
      const auto it = object->find(name);
      if (it != object->end() && !it->is_null()) return &*it;
    }
    return nullptr;
  }

  // A number of at least `least`; without `otherwise` it must be there.
  double Number(const char* name, double least, std::optional<double> otherwise = std::nullopt) {
    const Json* value = Find(name);
    if (value == nullptr) {
      if (!otherwise) Fail(Wrong(name, "is missing"));
      return otherwise.value_or(least);
    }
    if (!value->is_number() || !std::isfinite(value->get<double>()) || value->get<double>() < least) {
      Fail(Wrong(name, "must be a number of at least ", least, ", not ", ShownJson(*value)));
      return least;
    }
    return value->get<double>();
  }

  // [count] numbers, none below `least`: radians a token, or factors of them.
  std::vector<double> Table(const char* name, size_t count, double least = 0) {
    std::vector<double> out;
    const Json* value = Find(name);
    for (const Json& entry : value != nullptr && value->is_array() ? *value : Json::array()) {
      if (entry.is_number() && entry.get<double>() >= least && std::isfinite(entry.get<double>())) {
        out.push_back(entry.get<double>());
      }
    }
    if (out.size() == count && value->size() == count) return out;
    Fail(Wrong(name, "must be ", count, least > 0 ? " positive factors" : " frequencies"));
    return std::vector<double>(count, 1);
  }

  bool Flag(const char* name, bool otherwise) {
    const Json* value = Find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) {
      Fail(Wrong(name, "must be true or false, not ", ShownJson(*value)));
      return otherwise;
    }
    return value->get<bool>();
  }

  // The context that the model was trained for.
  double OriginalContext() {
    const bool named = Find("original_max_position_embeddings") != nullptr;
    return Number(named || Find("max_position_embeddings") == nullptr ? "original_max_position_embeddings"
                                                                      : "max_position_embeddings",
                  1);
  }

  void Fail(const absl::Status& status) { status_.Update(status); }
  const absl::Status& status() const { return status_; }

 private:
  const Json& inner_;
  const Json& outer_;
  absl::Status status_;
};

std::vector<double> Plain(double theta, int head_dim) {
  std::vector<double> out(head_dim / 2);
  for (size_t i = 0; i < out.size(); ++i) out[i] = std::pow(theta, -2.0 * static_cast<double>(i) / head_dim);
  return out;
}

std::vector<double> Linear(Fields* fields, double theta, int head_dim) {
  const double factor = fields->Number("factor", 1);
  std::vector<double> out = Plain(theta, head_dim);
  for (double& w : out) w /= factor;
  return out;
}

// NTK: a base that grows with the text.
std::vector<double> Dynamic(Fields* fields, double theta, int head_dim, int64_t length) {
  const double factor = fields->Number("factor", 1), context = fields->OriginalContext();
  const double stretch = factor * std::max(1.0, static_cast<double>(length) / context) - (factor - 1);
  return Plain(theta * std::pow(stretch, head_dim / (head_dim - 2.0)), head_dim);
}

// YaRN: pairs that turn more than beta_fast times in the trained context stay, those below beta_slow are stretched, and
// a ramp joins them.
std::vector<double> Yarn(Fields* fields, double theta, int head_dim) {
  const double factor = fields->Number("factor", 1), context = fields->OriginalContext();
  double fast = fields->Number("beta_fast", 0, 32), slow = fields->Number("beta_slow", 0, 1);
  if (fast == 0) fast = 32;  // 0 means unset, as transformers reads it
  if (slow == 0) slow = 1;
  if (fast < slow) fields->Fail(Wrong("beta_fast", "must be at least beta_slow, ", slow, ", not ", fast));
  const auto pair_of = [&](double turns) {
    return head_dim * std::log(context / (turns * 2 * kPi)) / (2 * std::log(theta));
  };
  double low = pair_of(fast), high = pair_of(slow);
  if (fields->Flag("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += .001;
  std::vector<double> out = Plain(theta, head_dim);
  for (size_t i = 0; i < out.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    out[i] = out[i] / factor * ramp + out[i] * (1 - ramp);
  }
  return out;
}

// Llama 3: waves longer than the trained context / low_freq_factor are stretched, those shorter than / high_freq_factor
// stay.
std::vector<double> Llama3(Fields* fields, double theta, int head_dim) {
  const double factor = fields->Number("factor", 1), context = fields->OriginalContext();
  const double low = fields->Number("low_freq_factor", 0), high = fields->Number("high_freq_factor", 0);
  if (high <= low) fields->Fail(Wrong("high_freq_factor", "must be above low_freq_factor, ", low, ", not ", high));
  std::vector<double> out = Plain(theta, head_dim);
  for (double& w : out) {
    const double turns = context * w / (2 * kPi);
    const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    w = (1 - kept) * w / factor + kept * w;
  }
  return out;
}

// LongRoPE: factors of each pair, of texts within the trained context or of longer ones.
std::vector<double> LongRope(Fields* fields, double theta, int head_dim, int64_t length) {
  const bool beyond = static_cast<double>(length) > fields->OriginalContext();
  std::vector<double> out = Plain(theta, head_dim);
  const std::vector<double> factors = fields->Table(beyond ? "long_factor" : "short_factor", out.size(), 1e-9);
  for (size_t i = 0; i < out.size(); ++i) out[i] /= factors[i];
  return out;
}

// Gemma 4's: frequencies are those of a whole head, of which a part's turn.
std::vector<double> Proportional(Fields* fields, double theta, int head_dim, double part) {
  const double factor = fields->Number("factor", 1, 1);
  std::vector<double> out = Plain(theta, head_dim);
  out.resize(static_cast<size_t>(part * head_dim / 2));
  for (double& w : out) w /= factor;
  return out;
}

// Coordinates of a head that turn: of a share as transformers rounds it, or as a table says.
int RotaryDim(Fields* fields, bool table, double part, int head_dim) {
  const char* const field = table ? "rotary_dim" : "partial_rotary_factor";
  const double dim = table ? fields->Number(field, 2, head_dim) : std::floor(part * head_dim);
  if (part <= 1 && dim <= head_dim && dim >= 2 && std::fmod(dim, 2) == 0) return static_cast<int>(dim);
  fields->Fail(Wrong(field, "must turn an even number of a head's ", head_dim, " coordinates, not ",
                     ShownJson(*fields->Find(field))));
  return head_dim;
}

void Turn(const Rope& rope, double position, double* x) {
  for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
    const double angle = position * rope.inv_freq[i], c = std::cos(angle), s = std::sin(angle);
    double &a = x[rope.first(static_cast<int>(i))], &b = x[rope.second(static_cast<int>(i))];
    const double turned = a * c - b * s;
    b = a * s + b * c;
    a = turned;
  }
}

}  // namespace

absl::StatusOr<Rope> ParseRope(absl::string_view json, int head_dim, Rope::Style style, int64_t length) {
  Rope rope;
  rope.style = style;
  if (json.empty()) return rope;
  const absl::StatusOr<Json> parsed = ParseJson(json);
  if (!parsed.ok()) return absl::InvalidArgumentError(absl::StrCat("rope: ", parsed.status().message()));
  const Json& object = *parsed;
  if (object.is_null()) return rope;
  if (!object.is_object()) return absl::InvalidArgumentError("rope: must be a JSON object");
  if (head_dim < 4 || head_dim % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("head_dim: must be even and at least 4, not ", head_dim));
  }
  const Json* inner = &object;
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const auto it = object.find(name);
    if (it == object.end() || it->is_null()) continue;
    if (!it->is_object()) return Wrong(name, "must be an object or null");
    inner = &*it;
  }

  Fields fields(*inner, object);
  if (fields.Find("mrope_section") != nullptr)
    fields.Fail(Wrong("mrope_section", "positions of several axes are not known"));

  const Json* named = fields.Find("rope_type");
  if (named == nullptr) named = fields.Find("type");
  const std::string type = named == nullptr ? "default" : named->is_string() ? named->get<std::string>() : "";
  // Above 1: turns slow down from pair to pair, and YaRN divides by its logarithm.
  const bool table = type == "table", none = type == "none";
  const double theta = table || none ? 0 : fields.Number("rope_theta", 1.000001);
  const double part = table || none ? 1 : fields.Number("partial_rotary_factor", 0, 1);
  const bool whole = none || type == "proportional";  // whose pairs are of all the head
  const int dim = whole ? head_dim : RotaryDim(&fields, table, part, head_dim);
  if (type == "table") {
    rope.inv_freq = fields.Table("inv_freq", static_cast<size_t>(head_dim) / 2);
  } else if (type == "default") {
    rope.inv_freq = Plain(theta, dim);
  } else if (type == "linear") {
    rope.inv_freq = Linear(&fields, theta, dim);
  } else if (type == "dynamic") {
    rope.inv_freq = Dynamic(&fields, theta, dim, length);
  } else if (type == "yarn") {
    rope.inv_freq = Yarn(&fields, theta, dim);
  } else if (type == "llama3") {
    rope.inv_freq = Llama3(&fields, theta, dim);
  } else if (type == "longrope") {
    rope.inv_freq = LongRope(&fields, theta, dim, length);
  } else if (type == "proportional") {
    rope.inv_freq = Proportional(&fields, theta, head_dim, part);
  } else if (!none) {
    fields.Fail(Wrong("rope_type",
                      "must be default, linear, dynamic, yarn, llama3, longrope, proportional, table or none, not ",
                      ShownJson(*named)));
  }
  if (!fields.status().ok()) return fields.status();
  rope.inv_freq.resize(head_dim / 2);
  if (dim < head_dim) rope.rotary_dim = dim;
  if (std::any_of(rope.inv_freq.begin() + rope.half(), rope.inv_freq.end(), [](double w) { return w > 0; })) {
    return Wrong("inv_freq", "pairs behind rotary_dim do not turn");
  }
  return rope;
}

namespace {

Json RopeValue(const Rope& rope) {
  if (!rope.turns()) return {{"rope_type", "none"}};
  Json json = {{"rope_type", "table"}, {"inv_freq", rope.inv_freq}};
  if (rope.rotary_dim > 0) json["rotary_dim"] = rope.rotary_dim;
  return json;
}

}  // namespace

std::string RopeJson(const Rope& rope) { return rope.stated() ? RopeValue(rope).dump() : ""; }

absl::Status CheckLayerRopes(const Rope& rope, const LayerRopes& others, int num_layers) {
  if (!others.empty() && !rope.turns()) {
    return absl::InvalidArgumentError("rope: must be that of layers that turn where others are stated by themselves");
  }
  for (const auto& [layer, own] : others) {
    if (layer < 0 || layer >= num_layers) {
      return absl::InvalidArgumentError(absl::StrCat("layer ", layer, ": the model has ", num_layers, " layers"));
    }
    if (own.head_dim() != rope.head_dim() || (own.turns() && (own.style != rope.style || own.half() != rope.half()))) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", layer, ": pairs other coordinates than the model's other layers"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LayerRopes> ParseLayerRopes(absl::string_view json, int head_dim, Rope::Style style, int64_t length) {
  LayerRopes ropes;
  if (json.empty()) return ropes;
  const absl::StatusOr<Json> parsed = ParseJson(json);
  const auto bad = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("layer_ropes: ", parts...));
  };
  if (!parsed.ok()) return bad(parsed.status().message());
  if (!parsed->is_array()) return bad("must be a list");
  for (const Json& group : *parsed) {
    const auto layers = group.find("layers"), own = group.find("rope");
    if (!group.is_object() || layers == group.end() || !layers->is_array() || own == group.end() || !own->is_object()) {
      return bad("must be objects of layers, a list, and rope, an object");
    }
    absl::StatusOr<Rope> rope = ParseRope(own->dump(), head_dim, style, length);
    if (!rope.ok()) return bad("layers ", layers->dump(), ": ", rope.status().message());
    for (const Json& layer : *layers) {
      constexpr int kMostLayers = 65536;
      if (!layer.is_number_integer() || layer < 0 || layer >= kMostLayers) return bad(ShownJson(layer), " is no layer");
      if (!ropes.emplace(layer.get<int>(), *rope).second) return bad("layer ", layer.dump(), " is stated twice");
    }
  }
  return ropes;
}

std::string LayerRopesJson(const LayerRopes& ropes) {
  if (ropes.empty()) return "";
  std::map<Json, std::vector<int>> layers;
  for (const auto& [layer, rope] : ropes) layers[RopeValue(rope)].push_back(layer);
  Json json = Json::array();
  for (const auto& [rope, numbers] : layers) json.push_back({{"layers", numbers}, {"rope", rope}});
  return json.dump();
}

void UndoRope(const Rope& rope, int64_t position, double* x) { Turn(rope, -static_cast<double>(position), x); }

void ApplyRope(const Rope& rope, int64_t position, double* x) { Turn(rope, static_cast<double>(position), x); }

}  // namespace seine
