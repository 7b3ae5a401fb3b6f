#include "engines/python/prompt.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>  // in every unit alike: without it a str is no std::string

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/channel/fork.h"
#include "engines/python/values/arrays.h"
#include "engines/python/values/errors.h"
#include "index/prompt/prompt_batch.h"
#include "kernels/backend.h"

namespace seine::python {
namespace {

using Seen = nb::ndarray<const uint8_t, nb::ndim<4>, nb::c_contig, nb::device::cpu>;  // NOLINT(misc-include-cleaner)

DType ElementsOf(const ArrayView& array, absl::string_view name) {
  switch (array.dtype()) {
    case client::DType::kFloat32:
      return DType::kFloat32;
    case client::DType::kFloat16:
      return DType::kFloat16;
    case client::DType::kBFloat16:
      return DType::kBFloat16;
    default:
      ThrowValueError(absl::StrCat(name, ": dtype must be float32, float16 or bfloat16"));
  }
}

void CheckShape(const ArrayView& array, absl::string_view name, const std::vector<int64_t>& shape) {
  if (array.shape() == absl::MakeConstSpan(shape)) return;
  ThrowValueError(absl::StrCat(name, ": must be [", absl::StrJoin(shape, ", "), "], not ", array.ShapeText()));
}

// Threads of their own, which a child of fork has not.
class PromptThreads {
 public:
  explicit PromptThreads(int threads) {
    if (threads < 0) ThrowValueError(absl::StrCat("threads: must be 0 or more, not ", threads));
    backend_ = MakeCpuBackend(threads);
  }
  ~PromptThreads() {
    if (!made_.here()) client::KeepForEver(std::move(backend_));
  }
  PromptThreads(const PromptThreads&) = delete;

  std::unique_ptr<PromptMask> Mask(int64_t tokens, int64_t places, int group, nb::handle mask) const {
    RaiseIfWrong(made_.Check());
    if (tokens < 1) ThrowValueError(absl::StrCat("tokens: must be 1 or more, not ", tokens));
    if (places < tokens || places > std::numeric_limits<int32_t>::max() - host::kTileKeys) {
      ThrowValueError(absl::StrCat("places: must be tokens, ", tokens, ", or more and below 2^31, not ", places));
    }
    if (group < 1 || group > kMaxGroup) {
      ThrowValueError(absl::StrCat("group: must be 1 to ", kMaxGroup, ", not ", group));
    }
    if (mask.is_none()) return std::make_unique<PromptMask>(tokens, places, group, OnThreadsOf(backend_.get()));
    Seen seen;
    if (!nb::try_cast(mask, seen, /*convert=*/false)) {
      ThrowValueError("seen: must be a dense uint8 array of 4 dimensions in the host's memory");
    }
    const auto rows = static_cast<int64_t>(seen.shape(0)), heads = static_cast<int64_t>(seen.shape(1));
    if (rows < 1 || heads < 1 || static_cast<int64_t>(seen.shape(2)) != tokens ||
        static_cast<int64_t>(seen.shape(3)) != places) {
      ThrowValueError(absl::StrCat("seen: must be [rows, KV heads or 1, ", tokens, ", ", places, "], not [", rows, ", ",
                                   heads, ", ", seen.shape(2), ", ", seen.shape(3), "]"));
    }
    const nb::gil_scoped_release release;
    return std::make_unique<PromptMask>(seen.data(), rows, static_cast<int>(heads), tokens, places, group,
                                        OnThreadsOf(backend_.get()));
  }

  nb::tuple Attend(const PromptMask& mask, nb::handle queries, nb::handle keys, nb::handle values, float scale,
                   double mass, double most, int sample, int64_t least, int sink, int local, float softcap) const {
    RaiseIfWrong(made_.Check());
    PromptParams params;
    params.mass = mass, params.most = most, params.sample = sample, params.least = least;
    params.sink = sink, params.local = local;
    CheckParams(params, scale);
    if (!(softcap >= 0 && std::isfinite(softcap))) ThrowValueError("softcap: must be finite and 0 or more");
    const ArrayView q(queries, "queries"), k(keys, "keys"), v(values, "values");
    if (q.shape().size() != 4 || q.dtype() != client::DType::kFloat32) {
      ThrowValueError("queries: must be float32 [rows, query heads, tokens, head_dim]");
    }
    const int64_t rows = q.shape()[0], q_heads = q.shape()[1], dim = q.shape()[3];
    if (rows < 1 || (mask.rows() > 1 && rows != mask.rows()) || q_heads < 1 || q_heads % mask.group() != 0 ||
        q.shape()[2] != mask.tokens() || (mask.heads() > 1 && q_heads / mask.group() != mask.heads())) {
      ThrowValueError(absl::StrCat("queries: ", q.ShapeText(), " do not fit the mask, of ", mask.rows(), " rows, ",
                                   mask.heads(), " KV heads and ", mask.tokens(), " tokens, in groups of ",
                                   mask.group()));
    }
    if (dim < 16 || dim > kMaxHeadDim || dim % 16 != 0) {
      ThrowValueError(absl::StrCat("queries: head_dim must be a multiple of 16 up to ", kMaxHeadDim, ", not ", dim));
    }
    const int64_t kv_heads = q_heads / mask.group();
    CheckShape(k, "keys", {rows, kv_heads, mask.places(), dim});
    CheckShape(v, "values", {rows, kv_heads, mask.places(), dim});
    const DType dtype = ElementsOf(k, "keys");
    const auto rows_of = [&](int64_t row, int head) {
      const int64_t at = (row * kv_heads + head) * mask.places() * dim * static_cast<int64_t>(SizeOf(dtype));
      return PromptBatch::Rows::Dense(static_cast<const uint8_t*>(k.data()) + at,
                                      static_cast<const uint8_t*>(v.data()) + at, static_cast<int>(dim), dtype);
    };
    PromptBatch batch{.rows_of = rows_of};
    batch.mask = &mask, batch.rows = rows, batch.num_kv_heads = static_cast<int>(kv_heads);
    batch.head_dim = static_cast<int>(dim), batch.scale = scale, batch.softcap = softcap;
    batch.queries = static_cast<const float*>(q.data());
    if (k.dtype() != v.dtype()) ThrowValueError("values: must have the dtype of keys");
    const int64_t of_row = mask.tokens() * q_heads * dim;
    auto outputs = std::make_unique<float[]>(static_cast<size_t>(rows * of_row));
    batch.query_strides = {of_row, dim, mask.tokens() * dim};
    batch.outputs = outputs.get(), batch.output_strides = {of_row, q_heads * dim, dim};
    auto log_sum_exp = std::make_unique<float[]>(static_cast<size_t>(rows * mask.tokens() * q_heads));
    batch.log_sum_exp = log_sum_exp.get();
    PromptCounts counts;
    {
      const nb::gil_scoped_release release;
      counts = AttendPromptBatch(batch, params, OnThreadsOf(backend_.get()));
    }
    const size_t shape[] = {static_cast<size_t>(rows), static_cast<size_t>(mask.tokens()), static_cast<size_t>(q_heads),
                            static_cast<size_t>(dim)};
    const auto array = [&shape](std::unique_ptr<float[]> made, size_t dims) {
      float* const data = made.release();
      const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
      return nb::ndarray<nb::numpy, float>(data, dims, shape, owner).cast();
    };
    nb::dict counted;
    counted["seen"] = counts.seen, counted["taken"] = counts.taken;
    counted["blocks"] = counts.blocks, counted["exact_blocks"] = counts.exact_blocks;
    return nb::make_tuple(array(std::move(outputs), 4), array(std::move(log_sum_exp), 3), counted);
  }

 private:
  static void CheckParams(const PromptParams& params, float scale) {
    if (!(params.mass > 0 && params.mass <= 1)) {
      ThrowValueError(absl::StrCat("mass: must be in (0, 1], not ", params.mass));
    }
    if (!(params.most >= 0 && params.most <= 1)) {
      ThrowValueError(absl::StrCat("most: must be in [0, 1], not ", params.most));
    }
    if (params.sample < 0) ThrowValueError(absl::StrCat("sample: must be 0 or more, not ", params.sample));
    if (params.sink < 0) ThrowValueError(absl::StrCat("sink: must be 0 or more, not ", params.sink));
    if (params.local < 0) ThrowValueError(absl::StrCat("local: must be 0 or more, not ", params.local));
    if (params.least < 0) ThrowValueError(absl::StrCat("least: must be 0 or more, not ", params.least));
    if (!std::isfinite(scale)) ThrowValueError("scale: must be finite");
  }

  const client::MadeHere made_;
  std::shared_ptr<Backend> backend_;
};

}  // namespace

void AddPromptClasses(nb::module_& module) {
  using nb::arg;
  constexpr PromptParams kUsual;
  nb::class_<PromptMask>(module, "PromptMask")
      .def_prop_ro("tokens", &PromptMask::tokens)
      .def_prop_ro("places", &PromptMask::places);
  nb::class_<PromptThreads>(module, "PromptAttention")
      .def(nb::init<int>(), arg("threads") = 0)
      .def("mask", &PromptThreads::Mask, arg("tokens"), arg("places"), arg("group"), arg("seen").none() = nb::none())
      .def("attend", &PromptThreads::Attend, arg("mask"), arg("queries"), arg("keys"), arg("values"), arg("scale"),
           arg("mass") = 1.0, arg("most") = kUsual.most, arg("sample") = kUsual.sample, arg("least") = kUsual.least,
           arg("sink") = kUsual.sink, arg("local") = kUsual.local, arg("softcap") = 0.0f);
}

}  // namespace seine::python
