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

  // [count] radians a token.
  std::vector<double> Table(const char* name, size_t count) {
    std::vector<double> out;
    const Json* value = Find(name);
    for (const Json& entry : value != nullptr && value->is_array() ? *value : Json::array()) {
      if (entry.is_number() && entry.get<double>() >= 0 && std::isfinite(entry.get<double>())) {
        out.push_back(entry.get<double>());
      }
    }
    if (out.size() != count || value->size() != count) Fail(Wrong(name, "must be ", count, " frequencies"));
    return out;
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
  if (fields.Number("partial_rotary_factor", 0, 1) != 1) {
    fields.Fail(Wrong("partial_rotary_factor", "only 1 is known: every pair of coordinates turns"));
  }
  if (fields.Find("mrope_section") != nullptr)
    fields.Fail(Wrong("mrope_section", "positions of several axes are not known"));

  const Json* named = fields.Find("rope_type");
  if (named == nullptr) named = fields.Find("type");
  const std::string type = named == nullptr ? "default" : named->is_string() ? named->get<std::string>() : "";
  // Above 1: turns slow down from pair to pair, and YaRN divides by its logarithm.
  const double theta = type == "table" ? 0 : fields.Number("rope_theta", 1.000001);
  if (type == "table") {
    rope.inv_freq = fields.Table("inv_freq", static_cast<size_t>(head_dim) / 2);
  } else if (type == "default") {
    rope.inv_freq = Plain(theta, head_dim);
  } else if (type == "linear") {
    rope.inv_freq = Linear(&fields, theta, head_dim);
  } else if (type == "dynamic") {
    rope.inv_freq = Dynamic(&fields, theta, head_dim, length);
  } else if (type == "yarn") {
    rope.inv_freq = Yarn(&fields, theta, head_dim);
  } else if (type == "llama3") {
    rope.inv_freq = Llama3(&fields, theta, head_dim);
  } else {
    fields.Fail(Wrong("rope_type", "must be default, linear, dynamic, yarn, llama3 or table, not ", ShownJson(*named)));
  }
  if (!fields.status().ok()) return fields.status();
  return rope;
}

std::string RopeJson(const Rope& rope) {
  if (!rope.stated()) return "";
  return Json({{"rope_type", "table"}, {"inv_freq", rope.inv_freq}}).dump();
}

void UndoRope(const Rope& rope, int64_t position, double* x) { Turn(rope, -static_cast<double>(position), x); }

void ApplyRope(const Rope& rope, int64_t position, double* x) { Turn(rope, static_cast<double>(position), x); }

}  // namespace seine
