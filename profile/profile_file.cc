// The profile's file, and checks of what it holds.
#include "profile/profile.h"

#include <Eigen/Cholesky>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "profile/field_error.h"
#include "profile/io/json.h"
#include "profile/io/tensor_file.h"
#include "profile/io/tensor_writer.h"
#include "profile/moments.h"

namespace seine {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;
using Json = nlohmann::json;

constexpr char kFormat[] = "seine-profile-1", kFormatPrefix[] = "seine-profile-";
constexpr char kLayersFormat[] = "seine-profile-2";  // with layer_ropes, which older programs would pass over
constexpr int64_t kMostOfAKind = 65536;              // layers, heads, head_dim: more is no model

constexpr std::pair<Rope::Style, const char*> kStyleNames[] = {{Rope::Style::kHalfSplit, "half_split"},
                                                               {Rope::Style::kInterleaved, "interleaved"}};

template <typename... Parts>
absl::Status BadProfile(const std::string& path, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", parts...));
}

// ---- Writing ----

// Values as they stand in the file; INVALID_ARGUMENT where fp16 cannot hold one.
absl::StatusOr<std::string> Pack(const std::vector<double>& values, ProfilePrecision precision,
                                 const std::string& name) {
  const bool half = precision == ProfilePrecision::kFloat16;
  std::string bytes(values.size() * (half ? 2 : 4), '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    const float single = static_cast<float>(values[i]);
    const Eigen::half rounded(single);
    if (half && (Eigen::numext::isfinite)(rounded)) {
      std::memcpy(bytes.data() + 2 * i, &rounded.x, 2);
    } else if (!half && std::isfinite(single)) {
      std::memcpy(bytes.data() + 4 * i, &single, 4);
    } else {
      const char* why = !std::isfinite(values[i]) ? "is not finite" : half ? "fp16 cannot; write fp32" : "fp32 cannot";
      return BadField("profile", name, " holds ", values[i], ", which ", why);
    }
  }
  return bytes;
}

// Calls visit(name, the layer's tensor, its heads) for each of a layer's tensors; stops at an error.
template <typename Layer, typename Visit>
absl::Status ForEachTensor(const Profile& profile, int index, bool with_values, Layer* layer, const Visit& visit) {
  const std::string prefix = absl::StrCat("layers.", index, ".");
  const int q = profile.num_q_heads, kv = profile.num_kv_heads;
  absl::Status status = visit(prefix + "q_mean", &layer->q_mean, q);
  if (status.ok()) status = visit(prefix + "q_moment", &layer->q_moment, q);
  if (status.ok()) status = visit(prefix + "k_mean", &layer->k_mean, kv);
  if (status.ok()) status = visit(prefix + "k_moment", &layer->k_moment, kv);
  if (status.ok()) status = visit(prefix + "k_residual", &layer->k_residual, kv);
  if (!with_values) return status;
  if (status.ok()) status = visit(prefix + "v_mean", &layer->v_mean, kv);
  if (status.ok()) status = visit(prefix + "v_moment", &layer->v_moment, kv);
  return status;
}

absl::StatusOr<std::string> ToJson(const std::vector<std::string>& texts) {
  try {
    return Json(texts).dump();
  } catch (const Json::type_error&) {
    return BadField("profile", "texts must be UTF-8");
  }
}

// ---- Reading ----

// The metadata's format; INVALID_ARGUMENT where it is no profile's.
absl::StatusOr<std::string> FormatOf(const TensorFile& file) {
  const auto format = file.metadata().find("format");
  if (format != file.metadata().end() && absl::StartsWith(format->second, kFormatPrefix)) return format->second;
  return BadProfile(file.path(), "not a profile: metadata's format is not ", kFormat);
}

// Off by what rounding to the stored type may have moved an eigenvalue: 2^-11 (fp16) of the trace, and its subnormals'
// steps. A factorisation of the shifted matrix exists only where no eigenvalue is lower.
bool PositiveToRounding(const MatrixXd& moment, bool half) {
  const double trace = moment.trace(), dim = static_cast<double>(moment.rows());
  if (moment.diagonal().minCoeff() < 0) return false;
  MatrixXd shifted = moment;
  shifted.diagonal().array() += half ? trace * 0x1p-10 + dim * 0x1p-24 : trace * 0x1p-20 + 1e-37;
  return shifted.llt().info() == Eigen::Success;
}

class Reader {
 public:
  explicit Reader(TensorFile file) : file_(std::move(file)) {}

  absl::StatusOr<Profile> Read() {
    absl::Status status = ReadMetadata();
    const bool with_values = std::any_of(file_.names().begin(), file_.names().end(), [](const std::string& name) {
      return absl::EndsWith(name, ".v_mean") || absl::EndsWith(name, ".v_moment");
    });
    for (int64_t layer = 0; status.ok() && layer < num_layers_; ++layer) {
      profile_.layers.emplace_back();  // one by one: num_layers is not to be believed before the tensors are there
      status = ForEachTensor(profile_, static_cast<int>(layer), with_values, &profile_.layers.back(),
                             [&](const std::string& name, auto* heads, int count) { return Fill(name, count, heads); });
    }
    if (!status.ok()) return status;
    return std::move(profile_);
  }

  absl::StatusOr<ProfileHeader> ReadHeader() {
    absl::Status status = ReadMetadata();
    if (!status.ok()) return status;
    return ProfileHeader{profile_.model,
                         profile_.rope_json,
                         profile_.layer_ropes_json,
                         profile_.rope_style,
                         static_cast<int>(num_layers_),
                         profile_.num_q_heads,
                         profile_.num_kv_heads,
                         profile_.head_dim};
  }

 private:
  std::string path() const { return file_.path(); }

  absl::StatusOr<std::string> Metadata(const char* key) const {
    const auto it = file_.metadata().find(key);
    if (it == file_.metadata().end()) return BadProfile(path(), "metadata has no ", key);
    return it->second;
  }

  absl::Status ReadCount(const char* key, int64_t most, int64_t* out) const {
    const absl::StatusOr<std::string> text = Metadata(key);
    if (!text.ok()) return text.status();
    if (!absl::SimpleAtoi(*text, out) || *out < 1 || *out > most) {
      return BadProfile(path(), key, ": must be a number from 1 to ", most, ", not '", *text, "'");
    }
    return absl::OkStatus();
  }

  absl::Status ReadMetadata() {
    const absl::StatusOr<std::string> format = FormatOf(file_);
    if (!format.ok()) return format.status();
    if (*format != kFormat && *format != kLayersFormat) {
      return BadProfile(path(), "format ", *format, " is another version; this program reads ", kFormat, " and ",
                        kLayersFormat);
    }
    if (*format == kLayersFormat) {
      absl::StatusOr<std::string> layers = Metadata("layer_ropes");
      if (!layers.ok()) return layers.status();
      profile_.layer_ropes_json = *std::move(layers);
    }
    int64_t q_heads = 0, kv_heads = 0, dim = 0;
    constexpr int64_t kMostTokens = int64_t{1} << 53;
    for (const auto& [key, most, out] : {std::tuple("num_layers", kMostOfAKind, &num_layers_),
                                         {"num_q_heads", kMostOfAKind, &q_heads},
                                         {"num_kv_heads", kMostOfAKind, &kv_heads},
                                         {"head_dim", kMostOfAKind, &dim},
                                         {"key_tokens", kMostTokens, &profile_.key_tokens},
                                         {"query_tokens", kMostTokens, &profile_.query_tokens}}) {
      absl::Status status = ReadCount(key, most, out);
      if (!status.ok()) return status;
    }
    if (q_heads % kv_heads != 0) {
      return BadProfile(path(), "num_q_heads: ", q_heads, " is no multiple of num_kv_heads, ", kv_heads);
    }
    profile_.num_q_heads = static_cast<int>(q_heads);
    profile_.num_kv_heads = static_cast<int>(kv_heads);
    profile_.head_dim = static_cast<int>(dim);
    return ReadTexts();
  }

  absl::Status ReadTexts() {
    std::string texts, style;
    for (const auto& [key, out] : {std::pair("model", &profile_.model),
                                   {"licence", &profile_.licence},
                                   {"rope", &profile_.rope_json},
                                   {"texts", &texts},
                                   {"rope_style", &style}}) {
      absl::StatusOr<std::string> value = Metadata(key);
      if (!value.ok()) return value.status();
      *out = *std::move(value);
    }
    const absl::StatusOr<Json> list = ParseJson(texts);
    if (!list.ok() || !list->is_array()) return BadProfile(path(), "texts: must be a JSON list of strings");
    for (const Json& text : *list) {
      if (!text.is_string()) return BadProfile(path(), "texts: must be a JSON list of strings");
      profile_.texts.push_back(text.get<std::string>());
    }
    const auto named = std::find_if(std::begin(kStyleNames), std::end(kStyleNames),
                                    [&](const auto& row) { return style == row.second; });
    if (named == std::end(kStyleNames)) {
      return BadProfile(path(), "rope_style: must be half_split or interleaved, not '", style, "'");
    }
    profile_.rope_style = named->first;
    const auto rope = ParseRope(profile_.rope_json, profile_.head_dim, profile_.rope_style, 1);
    if (!rope.ok()) return BadProfile(path(), rope.status().message());
    const auto layers = ParseLayerRopes(profile_.layer_ropes_json, profile_.head_dim, profile_.rope_style, 1);
    if (!layers.ok()) return BadProfile(path(), layers.status().message());
    absl::Status alike = CheckLayerRopes(*rope, *layers, static_cast<int>(num_layers_));
    return alike.ok() ? alike : BadProfile(path(), "layer_ropes: ", alike.message());
  }

  // Values of a tensor [heads, width], all finite.
  absl::StatusOr<std::vector<float>> Values(const std::string& name, int heads, int64_t width, bool* half) const {
    const absl::StatusOr<TensorFile::Tensor> tensor = file_.Get(name);
    if (!tensor.ok()) return BadProfile(path(), "tensor ", name, " is missing");
    *half = tensor->type == TensorFile::Type::kF16;
    if (!*half && tensor->type != TensorFile::Type::kF32) {
      return BadProfile(path(), "tensor ", name, ": must be F16 or F32, not ", TensorFile::NameOf(tensor->type));
    }
    if (tensor->shape != std::vector<int64_t>{heads, width}) {
      return BadProfile(path(), "tensor ", name, ": must be [", heads, ", ", width, "], not [",
                        absl::StrJoin(tensor->shape, ", "), "]");
    }
    absl::StatusOr<std::vector<float>> values = TensorFile::ToFloat32(*tensor);
    if (!values.ok()) return values.status();
    if (!std::all_of(values->begin(), values->end(), [](float value) { return std::isfinite(value); })) {
      return BadProfile(path(), "tensor ", name, ": holds a value that is not finite");
    }
    return values;
  }

  absl::Status Fill(const std::string& name, int heads, std::vector<VectorXd>* out) const {
    bool half;
    const int dim = profile_.head_dim;
    const absl::StatusOr<std::vector<float>> values = Values(name, heads, dim, &half);
    if (!values.ok()) return values.status();
    *out = MeansOf(*values, heads, dim);
    return absl::OkStatus();
  }

  absl::Status Fill(const std::string& name, int heads, std::vector<MatrixXd>* out) const {
    bool half;
    const int dim = profile_.head_dim;
    const absl::StatusOr<std::vector<float>> values = Values(name, heads, TriangleSize(dim), &half);
    if (!values.ok()) return values.status();
    *out = MomentsOf(*values, heads, dim);
    for (int head = 0; head < heads; ++head) {
      if (!PositiveToRounding((*out)[head], half)) {
        return BadProfile(path(), "tensor ", name, ": head ", head, " is not positive semi-definite");
      }
    }
    return absl::OkStatus();
  }

  TensorFile file_;
  Profile profile_;
  int64_t num_layers_ = 0;
};

}  // namespace

Profile::Profile() = default;
Profile::~Profile() = default;
Profile::Profile(const Profile&) = default;
Profile& Profile::operator=(const Profile&) = default;
Profile::Profile(Profile&&) noexcept = default;
Profile& Profile::operator=(Profile&&) noexcept = default;

int Profile::num_layers() const { return static_cast<int>(layers.size()); }

absl::StatusOr<Profile> ReadProfile(const std::string& path) {
  absl::StatusOr<TensorFile> file = TensorFile::Read(path);
  if (!file.ok()) return file.status();
  return Reader(*std::move(file)).Read();
}

absl::StatusOr<ProfileHeader> ReadProfileHeader(const std::string& path) {
  absl::StatusOr<TensorFile> file = TensorFile::ReadHeader(path);
  if (!file.ok()) return file.status();
  if (absl::Status other = FormatOf(*file).status(); !other.ok()) {
    return absl::FailedPreconditionError(other.message());
  }
  return Reader(*std::move(file)).ReadHeader();
}

absl::Status CheckIsProfile(const std::string& path, std::string* checksum) {
  const absl::StatusOr<TensorFile> file = TensorFile::ReadHeader(path);
  if (!file.ok()) return file.status();
  if (checksum != nullptr) *checksum = std::string(file->checksum());
  const absl::Status status = FormatOf(*file).status();
  return status.ok() ? status : absl::FailedPreconditionError(status.message());
}

absl::Status WriteProfile(const Profile& profile, ProfilePrecision precision, const std::string& path) {
  const TensorFile::Type type =
      precision == ProfilePrecision::kFloat16 ? TensorFile::Type::kF16 : TensorFile::Type::kF32;
  std::vector<OutputTensor> tensors;
  const bool with_values = std::any_of(profile.layers.begin(), profile.layers.end(), [](const LayerProfile& layer) {
    return !layer.v_mean.empty() || !layer.v_moment.empty();
  });
  for (size_t layer = 0; layer < profile.layers.size(); ++layer) {
    absl::Status status = ForEachTensor(profile, static_cast<int>(layer), with_values, &profile.layers[layer],
                                        [&](const std::string& name, const auto* heads, int count) -> absl::Status {
                                          const std::vector<double> values = Flatten(*heads);
                                          const int64_t width =
                                              std::is_same_v<decltype(heads), const std::vector<VectorXd>*>
                                                  ? profile.head_dim
                                                  : TriangleSize(profile.head_dim);
                                          if (static_cast<int64_t>(values.size()) != count * width) {
                                            return BadField("profile", name, " is not of the profile's geometry");
                                          }
                                          absl::StatusOr<std::string> bytes = Pack(values, precision, name);
                                          if (!bytes.ok()) return bytes.status();
                                          tensors.push_back({name, type, {count, width}, *std::move(bytes)});
                                          return absl::OkStatus();
                                        });
    if (!status.ok()) return status;
  }
  const absl::StatusOr<std::string> texts = ToJson(profile.texts);
  if (!texts.ok()) return texts.status();
  const auto style = std::find_if(std::begin(kStyleNames), std::end(kStyleNames),
                                  [&](const auto& row) { return profile.rope_style == row.first; });
  const bool layers = !profile.layer_ropes_json.empty();
  std::vector<std::pair<std::string, std::string>> metadata = {{"format", layers ? kLayersFormat : kFormat},
                                                               {"model", profile.model},
                                                               {"texts", *texts},
                                                               {"rope", profile.rope_json},
                                                               {"rope_style", style->second},
                                                               {"num_layers", absl::StrCat(profile.num_layers())},
                                                               {"num_q_heads", absl::StrCat(profile.num_q_heads)},
                                                               {"num_kv_heads", absl::StrCat(profile.num_kv_heads)},
                                                               {"head_dim", absl::StrCat(profile.head_dim)},
                                                               {"key_tokens", absl::StrCat(profile.key_tokens)},
                                                               {"query_tokens", absl::StrCat(profile.query_tokens)},
                                                               {"licence", profile.licence}};
  if (layers) metadata.emplace_back("layer_ropes", profile.layer_ropes_json);
  return WriteTensors(tensors, metadata, path);
}

absl::Status CheckGeometry(const Profile& profile, int num_layers, int num_q_heads, int num_kv_heads, int head_dim) {
  const struct {
    const char* name;
    int has, wants;
  } fields[] = {{"num_layers", profile.num_layers(), num_layers},
                {"num_q_heads", profile.num_q_heads, num_q_heads},
                {"num_kv_heads", profile.num_kv_heads, num_kv_heads},
                {"head_dim", profile.head_dim, head_dim}};
  for (const auto& field : fields) {
    if (field.has == field.wants) continue;
    return BadField("profile", "is of another model (", profile.model, "): its ", field.name, " is ", field.has,
                    ", not ", field.wants);
  }
  return absl::OkStatus();
}

}  // namespace seine
