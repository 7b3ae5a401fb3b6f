// The rsq codec: SRHT, int8 centres, sign bits with a per-key factor, and 4-bit RSQ records.
// Sources: ParisKV section 4.1 and appendix B (rotation, sign centroids, RSQ weights); RaBitQ for the factor's form.
#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>

#include "kernels/codecs/codec_util.h"
#include "kernels/codecs/kinds/registry.h"
#include "kernels/codecs/kinds/rsq.h"
#include "kernels/codecs/query_tables.h"
#include "kernels/codecs/rsq/errors.h"
#include "kernels/codecs/rsq/lloyd_max.h"
#include "kernels/codecs/rsq/ops.h"
#include "kernels/math.h"
#include "kernels/ops/query/zone_mass.h"
#include "kernels/ops/rows/rows.h"

namespace seine {
namespace {

constexpr int kSubvector = 8;

// Signs of the four coordinates by a nibble's value.
constexpr float kSigns[4][16] = {{-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1},
                                 {-1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1},
                                 {-1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1},
                                 {-1, -1, -1, -1, -1, -1, -1, -1, 1, 1, 1, 1, 1, 1, 1, 1}};

RsqTables MakeTables() {
  const MagnitudeQuantiser& q = RsqQuantiser();
  RsqTables t;
  for (int i = 0; i < 7; ++i) {
    t.thresholds2[i] = static_cast<float>(static_cast<double>(q.thresholds[i]) * static_cast<double>(q.thresholds[i]));
  }
  std::copy(q.levels.begin(), q.levels.end(), t.levels);
  for (int i = 0; i < 8; ++i) t.levels8[i] = static_cast<uint8_t>(std::lround(q.levels[i] * 127.0 / q.levels[7]));
  return t;
}

// Signs of the rotation, +-1/sqrt(P); a dim that is no power of two is rotated twice and needs 2P of them.
std::vector<float> MakeSigns(int dim, uint64_t seed) {
  const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(dim)));
  const float size = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p)));
  std::vector<float> signs(p < dim ? 2 * p : p);
  for (size_t i = 0; i < signs.size(); ++i) signs[i] = RotationSign(seed, i) * size;
  return signs;
}

// Table of a nibble: the sum of +-q~_j over its four coordinates.
std::vector<cpu::NibblePart> MakeParts(int dim) {
  std::vector<cpu::NibblePart> parts(dim);
  for (int i = 0; i < dim; ++i) parts[i] = {i / 4, i, kSigns[i % 4]};
  return parts;
}

CodeLayout LayoutOf(const RsqOptions& o) {
  CodeLayout layout;
  layout.head_dim = o.head_dim;
  layout.coarse_bytes = (o.head_dim / kSubvector + 3) / 4 * 4;
  layout.fine_bytes = o.head_dim / 2;  // three bit planes and head_dim / 8 weights
  layout.centre_window = o.centre == Centre::kWindow ? o.centre_window : 0;
  return layout;
}

RsqOptions OptionsOf(const CodecSpec& spec) { return {spec.head_dim, spec.seed, spec.centre, spec.centre_window}; }

class RsqCodec final : public Codec {
 public:
  explicit RsqCodec(const RsqOptions& o)
      : options_(o),
        layout_(LayoutOf(o)),
        tables_(MakeTables()),
        signs_(MakeSigns(o.head_dim, o.seed)),
        nibble_parts_(MakeParts(o.head_dim)) {}

  const CodeLayout& layout() const override { return layout_; }
  Centre centre() const override { return options_.centre; }
  CodecTables Tables() const override {
    CodecTables t;
    t.kind = CodecKind::kRsq;
    t.layout = layout_;
    t.centre = options_.centre;
    t.rsq.magnitudes = tables_;
    t.rsq.signs = {signs_.data(), static_cast<uint32_t>(signs_.size())};
    return t;
  }

  void Encode(const ConstRows& keys, int num_keys, const SharedCentre* shared, const CodePlanes& out) const override {
    const int dim = layout_.head_dim, step = std::max(kWindowTokens, layout_.centre_window);
    assert(num_keys % step == 0);
    static thread_local std::vector<float> rows, centre;
    rows.resize(static_cast<size_t>(step) * dim);
    centre.assign(dim, 0.0f);
    if (shared != nullptr) {
      for (int j = 0; j < dim; ++j) centre[j] = static_cast<float>(shared->values[j]) * shared->scale;
    }
    for (int first = 0; first < num_keys; first += step) {
      Rotated(keys, first, step, rows.data());
      if (layout_.centre_window > 0) MakeCentre(rows.data(), first / step, out, centre.data());
      if (layout_.centre_window > 0 || shared != nullptr) cpu::SubtractRow(rows.data(), step, dim, centre.data());
      for (int w = 0; w < step; w += kWindowTokens) {
        EncodeWindow(rows.data() + static_cast<size_t>(w) * dim, first + w, out);
      }
    }
  }

  SharedCentre MakeSharedCentre(const ConstRows& keys, int num_keys) const override {
    const int dim = layout_.head_dim;
    std::vector<float> rows(static_cast<size_t>(num_keys) * dim), mean(dim);
    Rotated(keys, 0, num_keys, rows.data());
    cpu::MeanRow(rows.data(), num_keys, dim, mean.data());
    SharedCentre centre;
    centre.values.resize(dim);
    centre.scale = Quantise8(mean.data(), dim, centre.values.data());
    return centre;
  }

  void PrepareQueries(const float* queries, int count, PreparedQuery* const* out) const override {
    const int dim = layout_.head_dim;
    for (int g = 0; g < count; ++g, queries += dim) {
      PreparedQuery& q = *out[g];
      q.transformed.assign(queries, queries + dim);
      cpu::Rotate(q.transformed.data(), 1, dim, signs_.data());
      q.query8.resize(dim);
      q.query8_step = Quantise8(q.transformed.data(), dim, q.query8.data());
      cpu::MakeNibbleTables(nibble_parts_, q.transformed.data(), dim / 4, layout_.coarse_bytes, &q);
    }
  }

  PredictedErrors PredictErrors(const PreparedQuery& query) const override {
    if (!(query.coarse_step > 0)) return {};
    float lanes[16] = {0};
    for (int first = 0; first < layout_.head_dim; first += 16) {
      const float* x = query.transformed.data() + first;
      for (int i = 0; i < 16; ++i) lanes[i] = lanes[i] + x[i] * x[i];
    }
    return RsqErrors(std::sqrt(TreeOf(lanes)) / query.coarse_step);
  }

  void Rerank(const PreparedQuery& query, const Candidates& candidates, const uint32_t* chosen, size_t count,
              const ConstCodePlanes* segments, int segment_keys, float* out) const override {
    const float unit = query.query8_step * (tables_.levels[7] / 127.0f);
    const auto use = [&](const RecordBatch& batch, const uint32_t* bases, size_t first) {
      cpu::RerankRsq(batch.rows, batch.records, bases, batch.size, layout_.head_dim, tables_, query.query8.data(),
                     out + first);
      for (int i = 0; i < batch.size; ++i) {
        out[first + i] = batch.base[i] * query.coarse_step + out[first + i] * unit;
      }
    };
    ForEachRecordBatch(layout_, candidates, chosen, count, segments, segment_keys, use);
  }

 private:
  void Rotated(const ConstRows& keys, int first, int count, float* rows) const {
    const ConstRows from = {keys.row(first), keys.stride_bytes, keys.dtype};
    cpu::ToFloat(from, count, layout_.head_dim, rows);
    cpu::Rotate(rows, count, layout_.head_dim, signs_.data());
  }

  // The window's mean in the rotated space, stored as int8; `centre` is what was stored, which the keys are coded
  // against.
  void MakeCentre(const float* rows, int index, const CodePlanes& out, float* centre) const {
    const int dim = layout_.head_dim;
    int8_t* values = out.centre + static_cast<size_t>(index) * dim;
    cpu::MeanRow(rows, layout_.centre_window, dim, centre);
    const float scale = Quantise8(centre, dim, values);
    out.centre_scale[index] = scale;
    for (int j = 0; j < dim; ++j) centre[j] = static_cast<float>(values[j]) * scale;
  }

  void EncodeWindow(const float* rows, int first, const CodePlanes& out) const {
    float factors[kWindowTokens];
    cpu::EncodeRsqWindow(rows, layout_.head_dim, tables_, layout_.coarse_bytes,
                         out.coarse + static_cast<size_t>(first) * layout_.coarse_bytes, factors,
                         out.fine + static_cast<size_t>(first) * layout_.fine_bytes,
                         out.fine_base + first / kWindowTokens);
    const uint32_t base = WindowFactorBase(factors);
    out.factor_base[first / kWindowTokens] = base;
    for (int i = 0; i < kWindowTokens; ++i) out.factor[first + i] = EncodeFactor(factors[i], base);
  }

  const RsqOptions options_;
  const CodeLayout layout_;
  const RsqTables tables_;
  const std::vector<float> signs_;
  const std::vector<cpu::NibblePart> nibble_parts_;
};

}  // namespace

std::shared_ptr<const Codec> MakeRsqCodec(const RsqOptions& options) { return std::make_shared<RsqCodec>(options); }

constinit const CodecTraits kRsqTraits = {
    .name = "rsq",
    .needs_profile = false,
    .predicts_noise = false,
    .centres = {Centre::kWindow, Centre::kGlobal, Centre::kNone},
    .coarse_modes = {Coarse::kSignIp, Coarse::kCollision},
    .most_code_bytes = 0,
    .options = {},
    .check = nullptr,
    .layout = [](const CodecSpec& spec) { return LayoutOf(OptionsOf(spec)); },
    .make = [](const CodecSpec& spec, const CodecTransform*) { return MakeRsqCodec(OptionsOf(spec)); },
    .accepts = nullptr,
    .distortion = nullptr,
    .query_table_bytes = [](int head_dim) { return 2.0 * head_dim * sizeof(float); },
};

}  // namespace seine
