// The rsq code's part of a search on a device: its queries, and fine sums of its records.
#ifndef SEINE_KERNELS_CODECS_RSQ_SEARCH_CUDA_H_
#define SEINE_KERNELS_CODECS_RSQ_SEARCH_CUDA_H_

#include <cmath>
#include <cstdint>

#include "kernels/codecs/kinds/rsq.h"
#include "kernels/codecs/rsq/errors.h"
#include "kernels/cuda/block.h"
#include "kernels/math.h"
#include "kernels/ops/query/query_cuda.h"

namespace seine::cuda {

// rows.h, Rotate, on one row in shared memory: a lane a butterfly.
template <typename Block>
SEINE_BODY void RotateRow(Block& block, float* row, int dim, const float* signs) {
  int p = 32;
  while (p * 2 <= dim) p *= 2;
  for (int part = 0; part < (p < dim ? 2 : 1); ++part) {
    float* x = part == 0 ? row : row + dim - p;
    block.Lanes([&](int lane) {
      if (lane < p) x[lane] = x[lane] * signs[part * p + lane];
    });
    for (int h = 1; h < p; h *= 2) {
      block.Lanes([&](int lane) {
        if (lane >= p / 2) return;
        const int i = lane / h * 2 * h + lane % h;
        const float a = x[i], b = x[i + h];
        x[i] = a + b;
        x[i + h] = a - b;
      });
    }
  }
}

// Sum of nibble `nibble` where its bits are v.
SEINE_BODY inline float RsqNibbleSum(const float* transformed, int nibble, int v) {
  float sum = 0;
  for (int j = 0; j < 4; ++j) sum += (v >> j) & 1 ? transformed[nibble * 4 + j] : -transformed[nibble * 4 + j];
  return sum;
}
// The fine sum of subvector b of an rsq code, weighted.
SEINE_BODY inline float RsqSubvector(const RerankShared& s, const CodeLayout& layout, const Code& code, uint32_t base,
                                     int b) {
  const int subvectors = layout.head_dim / 8, record = layout.coarse_bytes;
  const uint32_t signs = code.Byte(b), low = code.Byte(record + b), middle = code.Byte(record + subvectors + b),
                 high = code.Byte(record + 2 * subvectors + b);
  int32_t sum = 0;
  for (int j = 0; j < 8; ++j) {
    const uint32_t bin = (low >> j & 1) | (middle >> j & 1) << 1 | (high >> j & 1) << 2;
    const int32_t product = s.levels[bin] * s.query8[b * 8 + j];
    sum += signs >> j & 1 ? product : -product;
  }
  return DecodeFactor(static_cast<uint8_t>(code.Byte(record + 3 * subvectors + b)), base) * static_cast<float>(sum);
}

// Lane `lane` of 16 in which subvectors are added, and the tree over them: lanes l and l + 8, then 4, 2 and 1 apart.
template <int kApart>
SEINE_BODY inline float RsqTree(const RerankShared& s, const CodeLayout& layout, const Code& code, uint32_t base,
                                int lane) {
  if constexpr (kApart < 16) {
    return RsqTree<kApart * 2>(s, layout, code, base, lane) + RsqTree<kApart * 2>(s, layout, code, base, lane + kApart);
  } else {
    float sum = 0;
    for (int b = lane; b < layout.head_dim / 8; b += 16) sum = sum + RsqSubvector(s, layout, code, base, b);
    return sum;
  }
}

// codec_bodies.h, VisitCodec, says what each of these does.
struct RsqSearch {
  static constexpr bool kFineWeights = false;

  template <typename Block>
  SEINE_BODY static void Transform(Block& block, PrepareShared& s, const CodecTables& codec, int dim) {
    RotateRow(block, s.transformed, dim, codec.rsq.signs.data);
    block.Lanes([&](int lane) {
      if (lane < dim) RaiseTo(block, &s.largest[0], s.transformed[lane]);
    });
  }
  SEINE_BODY static const float* Int8Source(const PrepareShared& s) { return s.transformed; }

  template <typename Block>
  SEINE_BODY static void BeginNibbles(Block&, PrepareShared&, const CodecTables&) {}
  SEINE_BODY static float NibbleSum(const PrepareShared& s, const CodecTables& codec, int nibble, int v) {
    return nibble < codec.layout.head_dim / 4 ? RsqNibbleSum(s.transformed, nibble, v) : 0.0f;
  }

  SEINE_BODY static float NoiseOf(const PrepareShared&, const CodecTables&, int) { return 0; }
  SEINE_BODY static void AddErrors(const PrepareShared& s, const CodecTables&, int i, float (&sums)[3]) {
    sums[0] = sums[0] + s.transformed[i] * s.transformed[i];
  }
  SEINE_BODY static PredictedErrors ErrorsOf(const CodecTables&, const float (&deviations)[3]) {
    return RsqErrors(deviations[0]);
  }

  SEINE_BODY static void LoadSteps(RerankShared& s, const CodecTables& codec, const QueryPlan& q, int lane, int lanes) {
    for (int i = lane; i < codec.layout.head_dim; i += lanes) s.query8[i] = q.query8[i];
    if (lane < 8) s.levels[lane] = static_cast<int8_t>(codec.rsq.magnitudes.levels8[lane]);
  }
  SEINE_BODY static float FineUnit(const CodecTables& codec, const QueryState& state) {
    return state.query8_step * (codec.rsq.magnitudes.levels[7] / 127.0f);
  }
  SEINE_BODY static float FineSum(const RerankShared& s, const CodeLayout& layout, const Code& code, uint32_t base) {
    return RsqTree<1>(s, layout, code, base, 0);
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_CODECS_RSQ_SEARCH_CUDA_H_
