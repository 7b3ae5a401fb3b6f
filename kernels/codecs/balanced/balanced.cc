// The balanced codec (ours; docs/codecs.md#balanced): where each coordinate's bits lie, the encoder's tables,
// and the query's. Keys are centred in the model's own space, so that one query serves every transform's centres.
#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstring>

#include "kernels/codecs/balanced/errors.h"
#include "kernels/codecs/balanced/fine_steps.h"
#include "kernels/codecs/balanced/gaussian_quantiser.h"
#include "kernels/codecs/balanced/ops.h"
#include "kernels/codecs/balanced/options.h"
#include "kernels/codecs/code.h"
#include "kernels/codecs/codec.h"
#include "kernels/codecs/codec_util.h"
#include "kernels/codecs/kinds/balanced.h"
#include "kernels/codecs/kinds/registry.h"
#include "kernels/codecs/query_tables.h"
#include "kernels/math.h"
#include "kernels/ops/matrix/matrix.h"
#include "kernels/ops/query/recall_target.h"
#include "kernels/ops/query/zone_mass.h"
#include "kernels/ops/rows/rows.h"

namespace seine {
namespace {

constexpr double kTwoBitShare = .01;  // the usual share where two bits a coordinate are scanned
constexpr double kUsualKeys = 8192;   // the longest zone that the full usual share is kept of

constexpr float kLargestLevel8 = 127.0f;

int RoundUp4(int n) { return (n + 3) / 4 * 4; }

using cpu::BitPlace;

// Nibbles of whole coordinates. Widest first, each completed by the widest that still fits; ascending coordinates
// within a width, so that neighbours in importance share a table.
std::vector<BitPlace> PlaceCoarse(const std::vector<uint8_t>& coarse, const std::vector<uint8_t>& total) {
  std::vector<std::vector<int>> by_width(5);
  for (size_t i = coarse.size(); i-- > 0;) by_width[coarse[i]].push_back(static_cast<int>(i));
  std::vector<BitPlace> places;
  const auto take = [&](int width, int at) {
    if (by_width[width].empty()) return false;
    const int i = by_width[width].back();
    by_width[width].pop_back();
    places.push_back({i, total[i] - width, width, at});
    return true;
  };
  for (int nibble = 0;; ++nibble) {
    int used = 0;
    for (int width = 4; width >= 1; --width) {
      while (used + width <= 4 && take(width, nibble * 4 + used)) used += width;
    }
    if (used == 0) return places;
  }
}

// The bits that the coarse plane lacks, one coordinate after another.
std::vector<BitPlace> PlaceFine(const std::vector<uint8_t>& coarse, const std::vector<uint8_t>& total) {
  std::vector<BitPlace> places;
  int at = 0;
  for (size_t i = 0; i < total.size(); ++i) {
    const int rest = total[i] - coarse[i];
    if (rest == 0) continue;
    places.push_back({static_cast<int>(i), 0, rest, at});
    at += rest;
  }
  return places;
}

bool AreFinite(const std::vector<float>& values, size_t count) {
  return values.size() == count && std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

// Whether the columns of a map are whole numbers of 16 bits, and their norms what the encoder's product bears.
bool IsEncoderMap(const std::vector<float>& map, size_t dim) {
  constexpr double kRounding = 512;  // of kBalancedColumnNorm: half a unit of each of 512 entries, and more
  for (size_t i = 0; i < dim; ++i) {
    double squares = 0;
    for (size_t j = 0; j < dim; ++j) {
      const double entry = map[j * dim + i];
      if (std::fabs(entry) > 32767 || entry != std::trunc(entry)) return false;
      squares += entry * entry;
    }
    if (std::sqrt(squares) > kBalancedColumnNorm + kRounding) return false;
  }
  return true;
}

// Whether bits fill whole nibbles of as many as the layout has, and records no more than theirs.
bool FitBits(const CodecSpec& spec, const CodecTransform& t) {
  const size_t dim = spec.head_dim;
  if (t.coarse_bits.size() != dim || t.total_bits.size() != dim) return false;
  int coarse = 0, total = 0;
  for (size_t i = 0; i < dim; ++i) {
    if (t.coarse_bits[i] > 4 || t.total_bits[i] > kMaxGaussianBits || t.coarse_bits[i] > t.total_bits[i]) return false;
    coarse += t.coarse_bits[i];
    total += t.total_bits[i];
  }
  if (coarse != std::lround(spec.coarse_bits * spec.head_dim) || total != std::lround(spec.total_bits * spec.head_dim))
    return false;
  const std::vector<BitPlace> places = PlaceCoarse(t.coarse_bits, t.total_bits);
  return std::all_of(places.begin(), places.end(), [&](const BitPlace& p) { return p.at + p.bits <= coarse; });
}

bool Accepts(const CodecSpec& spec, const CodecTransform& t) {
  const size_t dim = spec.head_dim;
  if (!AreFinite(t.key_map, dim * dim) || !AreFinite(t.query_map, dim * dim) || !AreFinite(t.lambda, dim)) return false;
  if (!std::all_of(t.lambda.begin(), t.lambda.end(), [](float x) { return x > 0; }) || !FitBits(spec, t)) return false;
  return t.key_scale.empty() || (AreFinite(t.key_scale, dim) && IsEncoderMap(t.key_map, dim));
}

// Levels of a coordinate of `total` bits by the value of the nibble that holds its leading bits at `place`.
const float (&LevelsOf(int total, const BitPlace& place))[16] {
  struct Tables {
    float levels[kMaxGaussianBits + 1][5][4][16];  // by total and leading bits, and the first one's place
    Tables() {
      for (int all = 1; all <= kMaxGaussianBits; ++all) {
        for (int bits = 1; bits <= std::min(all, 4); ++bits) {
          const std::array<float, 32>& merged = GaussianQuantiserOf(all).merged[bits];
          const int half = 1 << (bits - 1);
          for (int at = 0; at + bits <= 4; ++at) {
            for (int v = 0; v < 16; ++v) {
              const int index = (v >> at) & (2 * half - 1);
              levels[all][bits][at][v] = index >= half ? merged[index - half] : -merged[half - 1 - index];
            }
          }
        }
      }
    }
  };
  static const Tables tables;
  return tables.levels[total][place.bits][place.at % 4];
}

class BalancedCodec final : public Codec {
 public:
  explicit BalancedCodec(const BalancedOptions& o)
      : query_map_(o.query_map),
        coarse_places_(PlaceCoarse(o.coarse_bits, o.total_bits)),
        fine_places_(PlaceFine(o.coarse_bits, o.total_bits)) {
    const size_t dim = o.head_dim;
    assert(o.key_map.size() == dim * dim && query_map_.size() == dim * dim);
    assert(o.lambda.size() == dim && o.coarse_bits.size() == dim && o.total_bits.size() == dim);
    int coarse = 0, total = 0;
    for (size_t i = 0; i < dim; ++i) {
      assert(o.coarse_bits[i] <= 4 && o.total_bits[i] <= kMaxGaussianBits && o.coarse_bits[i] <= o.total_bits[i]);
      assert(o.lambda[i] > 0);
      coarse += o.coarse_bits[i];
      total += o.total_bits[i];
    }
    layout_ = BalancedLayout(o.head_dim, coarse, total, o.centre_window);
    nibbles_ = coarse / 4;
    assert(coarse % 4 == 0 && layout_.coarse_bytes + layout_.fine_bytes - 1 <= kMaxBalancedBytes);
    MakeTables(o);
    reader_ = cpu::MakeReader(layout_, tables_.total, coarse_places_, fine_places_);
    largest_level_ = GaussianQuantiserOf(kMaxGaussianBits).levels[31];
    MakeCells();
    error_shares_ = ErrorShares(o.lambda, o.coarse_bits, o.total_bits, &fine_shrink_);
  }

  const CodeLayout& layout() const override { return layout_; }
  Centre centre() const override { return Centre::kWindow; }
  CodecTables Tables() const override {
    const auto view = [](const auto& v) { return Table{v.data(), static_cast<uint32_t>(v.size())}; };
    CodecTables t;
    t.kind = CodecKind::kBalanced;
    t.layout = layout_;
    t.centre = Centre::kWindow;
    BalancedViews& v = t.balanced;
    v.query_map = view(query_map_);
    v.deviation = view(deviation_);
    v.cells = view(cells_);
    v.coarse_order = view(coarse_order_);
    v.key_map = view(tables_.map);
    v.key_scale = view(tables_.scale);
    v.lambda = view(tables_.lambda);
    v.error_shares = view(error_shares_);
    v.fine_shrink = fine_shrink_;
    v.quantiser = {&AllGaussianTables(), 1};
    v.fine_steps = view(fine_steps_.steps);
    v.coarse_steps = view(fine_steps_.coarse);
    v.mixed_from = view(fine_steps_.mixed_from);
    v.plain_from = view(fine_steps_.plain_from);
    return t;
  }

  CodecTransform Transform() const override {
    const size_t dim = layout_.head_dim;
    CodecTransform t{
        std::vector<float>(dim * dim), query_map_, tables_.lambda, tables_.coarse, tables_.total, tables_.scale};
    for (size_t i = 0; i < dim; ++i) {
      for (size_t j = 0; j < dim; ++j) t.key_map[j * dim + i] = tables_.map[i * dim + j];
    }
    return t;
  }

  void Encode(const ConstRows& keys, int num_keys, const SharedCentre* shared, const CodePlanes& out) const override {
    const int dim = layout_.head_dim, step = layout_.centre_window;
    assert(num_keys % step == 0 && shared == nullptr);
    static thread_local std::vector<float> rows, centre;
    rows.resize(static_cast<size_t>(step) * dim);
    centre.resize(dim);
    for (int first = 0; first < num_keys; first += step) {
      cpu::ToFloat({keys.row(first), keys.stride_bytes, keys.dtype}, step, dim, rows.data());
      cpu::MeanRow(rows.data(), step, dim, centre.data());
      int8_t* values = out.centre + static_cast<size_t>(first / step) * dim;
      const float scale = Quantise8(centre.data(), dim, values);
      out.centre_scale[first / step] = scale;
      for (int j = 0; j < dim; ++j) centre[j] = static_cast<float>(values[j]) * scale;
      cpu::SubtractRow(rows.data(), step, dim, centre.data());
      for (int w = 0; w < step; w += kWindowTokens) {
        EncodeWindow(rows.data() + static_cast<size_t>(w) * dim, first + w, out);
      }
    }
  }

  SharedCentre MakeSharedCentre(const ConstRows& keys, int num_keys) const override {
    assert(false && "balanced codes have a centre a window");
    return {};
  }

  void PrepareQueries(const float* queries, int count, PreparedQuery* const* out) const override {
    const int dim = layout_.head_dim;
    assert(count <= kMaxGroup);
    float transformed[kMaxGroup * kMaxHeadDim];
    cpu::MatMul({queries, dim, 1}, query_map_.data(), dim, count, dim, dim, false, transformed, dim);
    for (int g = 0; g < count; ++g) {
      PrepareTransformed(queries + static_cast<size_t>(g) * dim, transformed + static_cast<size_t>(g) * dim, out[g]);
    }
  }

  void FetchAhead(int part, int parts) const override {
    const size_t size = query_map_.size();
    for (size_t i = size * part / parts; i < size * (part + 1) / parts; i += 16) cpu::PrefetchFar(&query_map_[i]);
  }

  // The zone's best lie ever further out the longer it is: from kUsualKeys on, candidates grow with the root of its
  // length, and recall still rises (docs/decisions/codecs/0032-share-falls-with-length.md). Two bits mistake few keys.
  double DefaultCandidateFraction(int64_t num_keys) const override {
    return (layout_.two_bits() ? kTwoBitShare : kDefaultCandidateFraction) *
           std::sqrt(std::min(1.0, kUsualKeys / static_cast<double>(num_keys)));
  }

  // sum_i lambda_i q'_i^2 rho_i: what the leading bits leave of each coordinate, all of it where there are none. The
  // factor stands for the key's own scale, of which it is a little more.
  float CoarseNoise(const PreparedQuery& query) const override {
    if (!(query.coarse_step > 0)) return 0;
    float lanes[16] = {0};
    for (int i = 0; i < layout_.head_dim; ++i) {
      const int total = tables_.total[i];
      const float distortion = total > 0 ? GaussianQuantiserOf(total).distortion[tables_.coarse[i]] : 1.0f;
      lanes[i % 16] = lanes[i % 16] + NoiseTerm(query.transformed[i], deviation_[i], distortion);
    }
    return std::sqrt(TreeOf(lanes)) / query.coarse_step;
  }

  PredictedErrors PredictErrors(const PreparedQuery& query) const override {
    if (!(query.coarse_step > 0)) return {};
    float added[16] = {0}, unseen[16] = {0}, fine[16] = {0};
    for (int first = 0; first < layout_.head_dim; first += 16) {
      for (int i = 0; i < 16; ++i) {
        const float t = query.transformed[first + i], d = deviation_[first + i];
        const ErrorShare share = error_shares_[first + i];
        added[i] = added[i] + NoiseTerm(t, d, share.added);
        unseen[i] = unseen[i] + NoiseTerm(t, d, share.unseen);
        fine[i] = fine[i] + NoiseTerm(t, d, share.fine);
      }
    }
    const auto deviation = [&](const float* lanes) { return std::sqrt(TreeOf(lanes)) / query.coarse_step; };
    return {deviation(added), deviation(unseen), fine_shrink_, deviation(fine)};
  }

  void Rerank(const PreparedQuery& query, const Candidates& candidates, const uint32_t* chosen, size_t count,
              const ConstCodePlanes* segments, int segment_keys, float* out) const override {
    const float unit = query.fine8_step * (largest_level_ / kLargestLevel8);
    const auto use = [&](const RecordBatch& batch, const uint32_t* bases, size_t first) {
      cpu::RerankBalanced(batch.rows, batch.records, bases, batch.size, reader_, query.fine8.data(), out + first);
      for (int i = 0; i < batch.size; ++i) {
        out[first + i] = batch.base[i] * query.coarse_step + out[first + i] * unit;
      }
    };
    ForEachRecordBatch(layout_, candidates, chosen, count, segments, segment_keys, use);
  }

 private:
  void PrepareTransformed(const float* query, const float* transformed, PreparedQuery* out) const {
    const int dim = layout_.head_dim;
    out->query8.resize(dim);
    out->query8_step = Quantise8(query, dim, out->query8.data());
    out->transformed.assign(transformed, transformed + dim);
    float weights[kMaxHeadDim];  // of the levels: sqrt(lambda_i) q'_i where coordinate i is coded
    for (int i = 0; i < dim; ++i) weights[i] = tables_.total[i] > 0 ? transformed[i] * deviation_[i] : 0.0f;
    out->fine8.assign(static_cast<size_t>(reader_.groups) * 64, 0);
    out->fine8_step = Quantise8(weights, dim, out->fine8.data());
    cpu::MakeNibbleTables(nibble_parts_, weights, nibbles_, layout_.coarse_bytes, out);
  }

  // Columns of key_map / sqrt(lambda) in 16 bits. The largest entry may not exceed them, the norm not the product's
  // range.
  void MakeTables(const BalancedOptions& o) {
    const int dim = o.head_dim;
    tables_.dim = dim;
    tables_.lambda = o.lambda;
    tables_.coarse = o.coarse_bits;
    tables_.total = o.total_bits;
    tables_.map.resize(static_cast<size_t>(dim) * dim);
    tables_.scale.resize(dim);
    deviation_.resize(dim);
    for (int i = 0; i < dim; ++i) {
      deviation_[i] = std::sqrt(o.lambda[i]);
      if (!o.key_scale.empty()) {
        tables_.scale[i] = o.key_scale[i];
        for (int j = 0; j < dim; ++j) {
          tables_.map[static_cast<size_t>(i) * dim + j] =
              static_cast<int16_t>(o.key_map[static_cast<size_t>(j) * dim + i]);
        }
        continue;
      }
      double squares = 0, largest = 0;
      for (int j = 0; j < dim; ++j) {
        const double w = o.key_map[static_cast<size_t>(j) * dim + i] / static_cast<double>(deviation_[i]);
        squares += w * w;
        largest = std::max(largest, std::fabs(w));
      }
      const double forth =
          largest > 0 ? std::min(static_cast<double>(kBalancedColumnNorm) / std::sqrt(squares), 32766.0 / largest) : 0;
      for (int j = 0; j < dim; ++j) {
        const double w = o.key_map[static_cast<size_t>(j) * dim + i] / static_cast<double>(deviation_[i]);
        tables_.map[static_cast<size_t>(i) * dim + j] = static_cast<int16_t>(std::lround(w * forth));
      }
      tables_.scale[i] = forth > 0 ? static_cast<float>(1.0 / forth) : 0.0f;
    }
  }

  void MakeCells() {
    cells_.resize(layout_.head_dim);
    for (size_t i = 0; i < cells_.size(); ++i) {
      cells_[i].coarse_bits = tables_.coarse[i];
      cells_[i].total_bits = tables_.total[i];
    }
    for (const BitPlace& p : coarse_places_) {
      cells_[p.coordinate].coarse_at = static_cast<uint16_t>(p.at);
      coarse_order_.push_back(static_cast<uint16_t>(p.coordinate));
      nibble_parts_.push_back({p.at / 4, p.coordinate, LevelsOf(tables_.total[p.coordinate], p)});
    }
    for (const BitPlace& p : fine_places_) cells_[p.coordinate].fine_at = static_cast<uint16_t>(p.at);
    fine_steps_ = MakeFineSteps(cells_);
  }

  void EncodeWindow(const float* rows, int first, const CodePlanes& out) const {
    alignas(64) uint8_t cells[kMaxHeadDim * kWindowTokens];
    alignas(64) uint32_t words[(kMaxBalancedBytes + 3) / 4 * kWindowTokens];
    float coarse_factors[kWindowTokens], fine_factors[kWindowTokens];
    cpu::EncodeBalancedWindow(rows, tables_, cells, coarse_factors, fine_factors);
    cpu::PackBalancedWindow(cells, coarse_places_, layout_.coarse_bytes, words);
    uint8_t* coarse = out.coarse + static_cast<size_t>(first) * layout_.coarse_bytes;
    for (int w = 0; w < layout_.coarse_bytes / 4; ++w) {
      for (int k = 0; k < kWindowTokens; k += kTileTokens) {
        memcpy(coarse + (k / kTileTokens * layout_.coarse_bytes + w * 4) * kTileTokens, words + w * kWindowTokens + k,
               4 * kTileTokens);
      }
    }
    const int record_bytes = layout_.fine_bytes - 1;
    cpu::PackBalancedWindow(cells, fine_places_, record_bytes, words);
    uint8_t* fine = out.fine + static_cast<size_t>(first) * layout_.fine_bytes;
    for (int k = 0; k < kWindowTokens; ++k) {
      uint8_t* record = fine + k * layout_.fine_bytes;
      const uint32_t* from = words + k;
      int b = 0;
      for (; b + 4 <= record_bytes; b += 4, from += kWindowTokens) memcpy(record + b, from, 4);
      memcpy(record + b, from, record_bytes - b);
    }
    const uint32_t coarse_base = WindowFactorBase(coarse_factors), fine_base = WindowFactorBase(fine_factors);
    out.factor_base[first / kWindowTokens] = coarse_base;
    out.fine_base[first / kWindowTokens] = fine_base;
    for (int k = 0; k < kWindowTokens; ++k) {
      out.factor[first + k] = EncodeFactor(coarse_factors[k], coarse_base);
      fine[k * layout_.fine_bytes + record_bytes] = EncodeFactor(fine_factors[k], fine_base);
    }
  }

  CodeLayout layout_;
  int nibbles_ = 0;
  const std::vector<float> query_map_;
  const std::vector<BitPlace> coarse_places_, fine_places_;
  std::vector<float> deviation_;  // sqrt(lambda)
  std::vector<ErrorShare> error_shares_;
  float fine_shrink_ = 1;
  std::vector<BalancedCell> cells_;            // the places by coordinate
  std::vector<uint16_t> coarse_order_;         // coordinates of coarse_places_
  std::vector<cpu::NibblePart> nibble_parts_;  // what they add to a query's tables
  FineSteps fine_steps_;
  cpu::BalancedTables tables_;
  cpu::BalancedReader reader_;
  float largest_level_ = 0;
};

}  // namespace

CodeLayout BalancedLayout(int head_dim, int coarse_bits, int total_bits, int centre_window) {
  CodeLayout layout;
  layout.head_dim = head_dim;
  layout.coarse_bytes = RoundUp4((coarse_bits + 7) / 8);
  layout.fine_bytes = (total_bits - coarse_bits + 7) / 8 + 1;
  layout.centre_window = centre_window;
  return layout;
}

std::shared_ptr<const Codec> MakeBalancedCodec(const BalancedOptions& options) {
  return std::make_shared<BalancedCodec>(options);
}

constinit const CodecTraits kBalancedTraits = {
    .name = "balanced",
    .needs_profile = true,
    .predicts_noise = true,
    .centres = {Centre::kWindow},
    .coarse_modes = {Coarse::kSignIp},
    .most_code_bytes = kMaxBalancedBytes,
    .options = {"coarse_bits", "total_bits"},
    .check = &BalancedFault,
    .layout =
        [](const CodecSpec& spec) {
          const auto bits = [&](double each) { return static_cast<int>(std::lround(each * spec.head_dim)); };
          return BalancedLayout(spec.head_dim, bits(spec.coarse_bits), bits(spec.total_bits), spec.centre_window);
        },
    .make =
        [](const CodecSpec& spec, const CodecTransform* transform) {
          assert(transform != nullptr);
          const CodecTransform& t = *transform;
          return MakeBalancedCodec({spec.head_dim, t.key_map, t.query_map, t.lambda, t.coarse_bits, t.total_bits,
                                    spec.centre_window, t.key_scale});
        },
    .accepts = &Accepts,
    .distortion = [](int total, int kept) { return double{GaussianQuantiserOf(total).distortion[kept]}; },
    .query_table_bytes = [](int head_dim) { return 1.0 * head_dim * head_dim * sizeof(float); },
};

}  // namespace seine
