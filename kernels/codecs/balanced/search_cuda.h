// The balanced code's part of a search on a device: its queries, and fine sums of its records.
#ifndef SEINE_KERNELS_CODECS_BALANCED_SEARCH_CUDA_H_
#define SEINE_KERNELS_CODECS_BALANCED_SEARCH_CUDA_H_

#include <cmath>
#include <cstdint>

#include "kernels/codecs/balanced/gaussian_quantiser.h"
#include "kernels/codecs/kinds/balanced.h"
#include "kernels/cuda/block.h"
#include "kernels/math.h"
#include "kernels/ops/query/query_cuda.h"
#include "kernels/ops/query/recall_target.h"

namespace seine::cuda {

// Sum of nibble `nibble` where its bits are v.
SEINE_BODY inline float BalancedNibbleSum(const CodecTables& codec, const PrepareShared& s, int nibble, int v) {
  float sum = 0;
  for (uint32_t place = s.first_place[nibble]; place < codec.balanced.coarse_order.size; ++place) {
    const int i = codec.balanced.coarse_order.data[place];
    const BalancedCell cell = codec.balanced.cells.data[i];
    if (cell.coarse_at / 4 != nibble) break;
    const int half = 1 << (cell.coarse_bits - 1), index = (v >> (cell.coarse_at % 4)) & (2 * half - 1);
    const float* levels = codec.balanced.quantiser.data->merged[cell.total_bits][cell.coarse_bits];
    sum += s.weights[i] * (index >= half ? levels[index - half] : -levels[half - 1 - index]);
  }
  return sum;
}

// balanced/ops.h, RerankBalanced, of one key.
SEINE_BODY inline float BalancedSum(const RerankShared& s, const CodeLayout& layout, const Code& code, uint32_t base) {
  const int record = layout.coarse_bytes / 4, words = (layout.fine_bytes + 3) / 4;
  int32_t sum = 0;
  uint32_t high = code.Word(record);
  for (int w = 0; w < words; ++w) {
    const uint32_t low = high;
    high = code.Word(record + w + 1);
    for (uint32_t i = s.plain_from[w]; i < s.plain_from[w + 1]; ++i) {
      const WeightedStep step = s.steps()[i];
      sum += s.levels[step.levels + (Across(low, high, step.shift) & step.mask)] * step.weight;
    }
    for (uint32_t i = s.mixed_from[w]; i < s.mixed_from[w + 1]; ++i) {
      const WeightedStep step = s.steps()[i];
      const CoarseStep coarse = s.coarse()[i];
      const uint32_t leading = code.Word(static_cast<int>(coarse.word)) >> coarse.shift & coarse.mask;
      const uint32_t index = leading * coarse.times + (Across(low, high, step.shift) & step.mask);
      sum += s.levels[step.levels + index] * step.weight;
    }
  }
  return DecodeFactor(static_cast<uint8_t>(code.Byte(layout.coarse_bytes + layout.fine_bytes - 1)), base) *
         static_cast<float>(sum);
}

// codec_bodies.h, VisitCodec, says what each of these does.
struct BalancedSearch {
  static constexpr bool kFineWeights = true;

  template <typename Block>
  SEINE_BODY static void Transform(Block& block, PrepareShared& s, const CodecTables& codec, int dim) {
    const BalancedViews& v = codec.balanced;
    block.Lanes([&](int lane) {  // ops/matrix/matrix.h
      if (lane >= dim) return;
      float sum = 0;
      for (int j = 0; j < dim; ++j) sum = sum + s.query[j] * v.query_map.data[static_cast<size_t>(j) * dim + lane];
      s.transformed[lane] = sum;
      s.weights[lane] = v.cells.data[lane].total_bits > 0 ? sum * v.deviation.data[lane] : 0.0f;
      RaiseTo(block, &s.largest[1], s.weights[lane]);
      RaiseTo(block, &s.largest[0], s.query[lane]);
    });
  }
  SEINE_BODY static const float* Int8Source(const PrepareShared& s) { return s.query; }

  template <typename Block>
  SEINE_BODY static void BeginNibbles(Block& block, PrepareShared& s, const CodecTables& codec) {
    const BalancedViews& v = codec.balanced;
    block.Lanes([&](int lane) {
      if (lane < kMaxNibbles) s.first_place[lane] = static_cast<uint16_t>(v.coarse_order.size);
    });
    block.Lanes([&](int lane) {
      if (lane >= static_cast<int>(v.coarse_order.size)) return;
      const auto nibble_of = [&](int place) { return v.cells.data[v.coarse_order.data[place]].coarse_at / 4; };
      const int nibble = nibble_of(lane);
      if (lane == 0 || nibble_of(lane - 1) != nibble) s.first_place[nibble] = static_cast<uint16_t>(lane);
    });
  }
  SEINE_BODY static float NibbleSum(const PrepareShared& s, const CodecTables& codec, int nibble, int v) {
    return BalancedNibbleSum(codec, s, nibble, v);
  }

  SEINE_BODY static float NoiseOf(const PrepareShared& s, const CodecTables& codec, int i) {
    const BalancedViews& v = codec.balanced;
    const BalancedCell cell = v.cells.data[i];
    const float left = cell.total_bits > 0 ? v.quantiser.data->distortion[cell.total_bits][cell.coarse_bits] : 1.0f;
    return NoiseTerm(s.transformed[i], v.deviation.data[i], left);
  }
  SEINE_BODY static void AddErrors(const PrepareShared& s, const CodecTables& codec, int i, float (&sums)[3]) {
    const float t = s.transformed[i], deviation = codec.balanced.deviation.data[i];
    const ErrorShare share = codec.balanced.error_shares.data[i];
    sums[0] = sums[0] + NoiseTerm(t, deviation, share.added);
    sums[1] = sums[1] + NoiseTerm(t, deviation, share.unseen);
    sums[2] = sums[2] + NoiseTerm(t, deviation, share.fine);
  }
  SEINE_BODY static PredictedErrors ErrorsOf(const CodecTables& codec, const float (&deviations)[3]) {
    return {deviations[0], deviations[1], codec.balanced.fine_shrink, deviations[2]};
  }

  SEINE_BODY static void LoadSteps(RerankShared& s, const CodecTables& codec, const QueryPlan& q, int lane, int lanes) {
    const BalancedViews& v = codec.balanced;
    for (uint32_t i = lane; i < v.fine_steps.size; i += lanes) {
      const FineStep step = v.fine_steps.data[i];
      s.steps()[i] = {step.shift, step.mask, step.levels, q.fine8[step.coordinate]};
    }
    for (uint32_t i = lane; i < v.coarse_steps.size; i += lanes) s.coarse()[i] = v.coarse_steps.data[i];
    if (lane <= kRecordWords) {
      s.mixed_from[lane] = v.mixed_from.data[lane];
      s.plain_from[lane] = v.plain_from.data[lane];
    }
    if (lane < 2 || lane >= static_cast<int>(sizeof(s.levels))) return;
    int bits = 1;
    while (lane >> (bits + 1) != 0) ++bits;
    const int half = 1 << (bits - 1), index = lane - 2 * half;
    const uint8_t* levels = v.quantiser.data->levels8 + half - 1;
    s.levels[lane] = static_cast<int8_t>(index >= half ? levels[index - half] : -levels[half - 1 - index]);
  }
  SEINE_BODY static float FineUnit(const CodecTables& codec, const QueryState& state) {
    return state.fine8_step * (codec.balanced.quantiser.data->levels[kMaxGaussianBits][31] / 127.0f);
  }
  SEINE_BODY static float FineSum(const RerankShared& s, const CodeLayout& layout, const Code& code, uint32_t base) {
    return BalancedSum(s, layout, code, base);
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_CODECS_BALANCED_SEARCH_CUDA_H_
