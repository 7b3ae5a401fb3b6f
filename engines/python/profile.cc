// RoPE as a config states it, and a profile's moments out of arrays: profile/ as Python calls it.
#include "engines/python/profile.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>  // in every unit alike: without it a str is no std::string
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engines/python/tensor_file.h"
#include "engines/python/values/errors.h"
#include "profile/profile.h"
#include "profile/rope.h"

namespace seine::python {
namespace {

namespace nb = nanobind;

using Floats = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;  // [tokens, heads, head_dim]
using Doubles = nb::ndarray<double, nb::ndim<3>, nb::c_contig, nb::device::cpu>;      // [heads, tokens, head_dim]

Rope::Style StyleNamed(const std::string& style) {
  if (style == "half_split") return Rope::Style::kHalfSplit;
  if (style != "interleaved")
    ThrowValueError(absl::StrCat("rope_style: must be one of half_split, interleaved, not ", style));
  return Rope::Style::kInterleaved;
}

void MakeRope(Rope* rope, const std::string& config, int head_dim, const std::string& style, int64_t length) {
  absl::StatusOr<Rope> parsed = ParseRope(config, head_dim, StyleNamed(style), length);
  if (!parsed.ok()) ThrowValueError(absl::StrCat(parsed.status().message()));
  new (rope) Rope(*std::move(parsed));
}

void Undo(const Rope& rope, const Doubles& x, int64_t first_position) {
  const auto tokens = static_cast<int64_t>(x.shape(1)), dim = static_cast<int64_t>(x.shape(2));
  if (rope.stated() && rope.head_dim() != dim)
    ThrowValueError(absl::StrCat("x: head_dim is ", dim, ", not ", rope.head_dim()));
  const auto rows = static_cast<int64_t>(x.shape(0)) * tokens;
  for (int64_t i = 0; i < rows; ++i) UndoRope(rope, first_position + i % tokens, x.data() + i * dim);
}

class Builder {
 public:
  Builder(int num_layers, int num_q_heads, int num_kv_heads, int head_dim)
      : num_layers_(num_layers),
        num_q_heads_(num_q_heads),
        num_kv_heads_(num_kv_heads),
        head_dim_(head_dim),
        builder_(num_layers, num_q_heads, num_kv_heads, head_dim) {}
  Builder(const Builder&) = delete;

  void AddQueries(int layer, const Floats& rows, int64_t first_position, const Rope& rope) {
    Check("queries", layer, rows, num_q_heads_, rope);
    const nb::gil_scoped_release release;
    builder_.AddQueries(layer, rows.data(), static_cast<int64_t>(rows.shape(0)), first_position, rope);
  }
  void AddKeys(int layer, const Floats& rows, int64_t first_position, const Rope& rope) {
    Check("keys", layer, rows, num_kv_heads_, rope);
    const nb::gil_scoped_release release;
    builder_.AddKeys(layer, rows.data(), static_cast<int64_t>(rows.shape(0)), first_position, rope);
  }
  void AddValues(int layer, const Floats& rows) {
    Check("values", layer, rows, num_kv_heads_, Rope());
    const nb::gil_scoped_release release;
    builder_.AddValues(layer, rows.data(), static_cast<int64_t>(rows.shape(0)));
  }

  void Write(nb::handle path, const std::string& model, const std::vector<std::string>& texts,
             const std::string& licence, const std::string& rope, const std::string& layer_ropes,
             const std::string& rope_style, bool fp32) const {
    const std::string file = FileName(path);
    const Rope::Style style = StyleNamed(rope_style);
    const nb::gil_scoped_release release;
    absl::StatusOr<Profile> profile = builder_.Finish();
    absl::Status status = profile.status();
    if (status.ok()) {
      profile->model = model, profile->texts = texts, profile->licence = licence;
      profile->rope_json = rope, profile->layer_ropes_json = layer_ropes, profile->rope_style = style;
      status = WriteProfile(*profile, fp32 ? ProfilePrecision::kFloat32 : ProfilePrecision::kFloat16, file);
    } else {
      status = absl::InvalidArgumentError(status.message());
    }
    const nb::gil_scoped_acquire acquire;
    RaiseIfWrongFile(status);
  }

 private:
  void Check(const char* what, int layer, const Floats& rows, int heads, const Rope& rope) const {
    if (layer < 0 || layer >= num_layers_)
      ThrowValueError(absl::StrCat("layer: ", layer, " is not in [0, ", num_layers_, ")"));
    if (static_cast<int>(rows.shape(1)) != heads || static_cast<int>(rows.shape(2)) != head_dim_) {
      ThrowValueError(absl::StrCat(what, ": must be [tokens, ", heads, ", ", head_dim_, "], not [", rows.shape(0), ", ",
                                   rows.shape(1), ", ", rows.shape(2), "]"));
    }
    if (rope.stated() && rope.head_dim() != head_dim_)
      ThrowValueError(absl::StrCat("rope: is of head_dim ", rope.head_dim()));
  }

  const int num_layers_, num_q_heads_, num_kv_heads_, head_dim_;
  ProfileBuilder builder_;
};

void MakeBuilder(Builder* builder, int num_layers, int num_q_heads, int num_kv_heads, int head_dim) {
  if (num_layers < 1 || num_q_heads < 1 || num_kv_heads < 1 || head_dim < 1) {
    ThrowValueError(absl::StrCat("a profile has layers, heads and a head_dim, not ", num_layers, ", ", num_q_heads,
                                 ", ", num_kv_heads, ", ", head_dim));
  }
  new (builder) Builder(num_layers, num_q_heads, num_kv_heads, head_dim);
}

}  // namespace

void AddProfileClasses(nb::module_& module) {
  using nb::arg;
  nb::class_<Rope>(module, "Rope")
      .def("__init__", &MakeRope, arg("config"), arg("head_dim"), arg("style"), arg("length"))
      .def_ro("inv_freq", &Rope::inv_freq)
      .def_prop_ro("rotary_dim", [](const Rope& rope) { return 2 * rope.half(); })
      .def("undo", &Undo, arg("x").noconvert(), arg("first_position"));
  nb::class_<Builder>(module, "ProfileBuilder")
      .def("__init__", &MakeBuilder, arg("num_layers"), arg("num_q_heads"), arg("num_kv_heads"), arg("head_dim"))
      .def("add_queries", &Builder::AddQueries, arg("layer"), arg("rows"), arg("first_position"), arg("rope"))
      .def("add_keys", &Builder::AddKeys, arg("layer"), arg("rows"), arg("first_position"), arg("rope"))
      .def("add_values", &Builder::AddValues, arg("layer"), arg("rows"))
      .def("write", &Builder::Write, arg("path"), nb::kw_only(), arg("model"), arg("texts"), arg("licence"),
           arg("rope"), arg("layer_ropes"), arg("rope_style"), arg("fp32"));
}

}  // namespace seine::python
