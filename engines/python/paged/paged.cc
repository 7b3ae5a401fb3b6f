#include "engines/python/paged/paged.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>  // in every unit alike: without it a str is no std::string
#include <nanobind/stl/unique_ptr.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engines/python/paged/attention.h"
#include "engines/python/paged/layer.h"
#include "engines/python/paged/step.h"
#include "engines/python/paged/tensors.h"
#include "engines/python/values/errors.h"
#include "index/config/code_bits.h"
#include "profile/profile.h"
#include "profile/rope.h"

namespace seine::python {
namespace {

std::shared_ptr<PagedAttention> MakeAttention(int num_layers, int num_q_heads, int num_kv_heads, int head_dim,
                                              int64_t num_blocks, int block_size, int64_t max_tokens, float scale,
                                              float softcap, int64_t min_tokens, int top_k, double beta, int refine,
                                              int sink, int local, bool tail, double gate, double prompt_mass,
                                              int64_t prompt_min, const std::string& profile, const std::string& rope,
                                              const std::string& layer_ropes, const std::string& rope_style,
                                              int64_t codes_bytes, int threads) {
  if (num_blocks < 1) ThrowValueError("num_blocks: must be positive");
  if (block_size < kWindowTokens || block_size % kWindowTokens != 0) {
    ThrowValueError(absl::StrCat("block_size: must be a multiple of ", kWindowTokens, ", not ", block_size));
  }
  if (num_blocks * block_size > std::numeric_limits<int32_t>::max()) ThrowValueError("num_blocks: 2^31 slots or more");
  if (min_tokens < 1) ThrowValueError("min_tokens: must be positive");
  if (!(prompt_mass > 0 && prompt_mass <= 1)) ThrowValueError("prompt_mass: must be in (0, 1]");
  if (!(gate >= 0 && gate <= 1)) ThrowValueError("gate: must be in [0, 1]");
  if (codes_bytes < 0) ThrowValueError("codes_bytes: must be 0 or more");
  if (rope_style != "half_split" && rope_style != "interleaved") {
    ThrowValueError(absl::StrCat("rope_style: must be half_split or interleaved, not '", rope_style, "'"));
  }
  const Rope::Style style = rope_style == "interleaved" ? Rope::Style::kInterleaved : Rope::Style::kHalfSplit;
  PagedSettings settings;
  settings.block_size = block_size, settings.min_tokens = min_tokens, settings.gate = gate;
  settings.codes_bytes = codes_bytes;
  settings.prompt.mass = prompt_mass, settings.prompt.least = prompt_min;
  CellConfig& config = settings.cells;
  config.geometry = {.num_layers = num_layers,
                     .num_q_heads = num_q_heads,
                     .num_kv_heads = num_kv_heads,
                     .head_dim = head_dim,
                     .dtype = DType::kFloat16,
                     .rope = {}};
  config.search.top_k = top_k, config.search.candidate_fraction = beta, config.search.rescore_k = refine;
  config.search.softmax_scale = scale;
  config.sink = sink, config.local = local, config.tail = tail, config.softcap = softcap;
  config.capacity = max_tokens, config.shortest = min_tokens;
  if (!profile.empty()) {
    absl::StatusOr<Profile> read = ReadProfile(profile);
    RaiseIfWrong(read.status());
    if (!rope.empty()) {
      absl::StatusOr<Rope> turns = ParseRope(rope, head_dim, style, max_tokens);
      RaiseIfWrong(turns.status());
      config.geometry.rope = *std::move(turns);
      absl::StatusOr<LayerRopes> others = ParseLayerRopes(layer_ropes, head_dim, style, max_tokens);
      RaiseIfWrong(others.status());
      config.geometry.layer_ropes = *std::move(others);
    }
    config.codec.name = "balanced", config.codec.profile_name = profile;
    config.codec.profile = std::make_shared<const Profile>(*std::move(read));
    // docs/decisions/codecs/0038-two-bits-for-small-heads.md
    const CodeBits bits = head_dim <= 64 ? CodeBits{2, 2.125} : UsualBits(head_dim);
    config.codec.coarse_bits = bits.coarse, config.codec.total_bits = bits.total;
  }
  CellConfig slots = config;
  slots.sink = 0;  // windows begin with the first slot; what a text's first tokens are, a step tells
  absl::StatusOr<std::unique_ptr<CellContext>> context = CellContext::Create(slots);
  RaiseIfWrong(context.status());
  auto made = PagedAttention::Create(std::move(settings), num_blocks, *std::move(context), threads);
  RaiseIfWrong(made.status());
  return *std::move(made);
}

}  // namespace

void AddPagedClasses(nb::module_& module) {
  using nb::arg;
  nb::class_<PagedStep>(module, "PagedStep").def_prop_ro("num_tokens", &PagedStep::num_tokens);
  nb::class_<PagedLayer>(module, "PagedLayer")
      .def("write", &PagedLayer::Write, arg("keys"), arg("values"), arg("slots"))
      .def("attend", &PagedLayer::Attend, arg("step"), arg("queries"), arg("output"))
      .def("counts", &PagedLayer::Counts)
      .def_prop_ro("most_bytes", &PagedLayer::most_bytes);
  nb::class_<PagedAttention>(module, "PagedAttention")
      .def(nb::new_(&MakeAttention), nb::kw_only(), arg("num_layers"), arg("num_q_heads"), arg("num_kv_heads"),
           arg("head_dim"), arg("num_blocks"), arg("block_size"), arg("max_tokens"), arg("scale"),
           arg("softcap") = 0.0f, arg("min_tokens") = 2048, arg("top_k") = 100, arg("beta") = 0.0, arg("refine") = 100,
           arg("sink") = 64, arg("local") = 256, arg("tail") = true, arg("gate") = kGateBound, arg("prompt_mass") = 1.0,
           arg("prompt_min") = 2048, arg("profile") = "", arg("rope") = "", arg("layer_ropes") = "",
           arg("rope_style") = "half_split", arg("codes_bytes") = 0, arg("threads") = 0)
      .def(
          "layer",
          [](const std::shared_ptr<PagedAttention>& self, int number, nb::handle cache) {
            return std::make_unique<PagedLayer>(self, number, cache);
          },
          arg("number"), arg("cache"))
      .def(
          "step",
          [](PagedAttention& self, nb::handle query_start, nb::handle seq_lens, nb::handle block_table) {
            return std::make_unique<PagedStep>(&self, query_start, seq_lens, block_table);
          },
          arg("query_start"), arg("seq_lens"), arg("block_table"), nb::keep_alive<0, 1>())
      .def_prop_ro("code_blocks", &PagedAttention::code_blocks)
      .def_prop_ro("openmp", [](PagedAttention& self) { return self.team().openmp(); })
      .def_prop_ro("threads", [](PagedAttention& self) { return self.team().threads(); });
}

}  // namespace seine::python
