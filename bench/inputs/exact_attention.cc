// See exact_attention.h. Blocks of keys and values pass through the nearest caches once, with a running softmax
// (FlashAttention, arXiv 2205.14135, on a CPU). Multiply-adds are fused and sums have no fixed order: it is built to be
// fast, not to give the same bits on every target.
#include "bench/inputs/exact_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/inputs/exact_attention.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <algorithm>
#include <cmath>

#include "kernels/cpu/prefetch.h"

HWY_BEFORE_NAMESPACE();
namespace seine::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace simd = seine::cpu::HWY_NAMESPACE;
using simd::F16;

constexpr int kBlock = 64;                           // rows
constexpr int kTogether = 4;                         // query heads that share a row's conversion
constexpr int kRowsAtOnce = simd::kN == 16 ? 4 : 1;  // whose sums the registers hold
constexpr int kColumns = simd::kN == 16 ? 4 : 1;     // of 16 values, likewise

HWY_INLINE F16 MulAdd(const F16& a, const F16& b, const F16& c) {
  return simd::Map([&](size_t i) HWY_ATTR { return hn::MulAdd(a.v[i], b.v[i], c.v[i]); });
}

HWY_INLINE void PrefetchRow(const uint16_t* row, int dim) {
  for (int b = 0; b < dim; b += 32) cpu::Prefetch(row + b);
}

// out[g][i + r] = the sum of sums[g][r]'s lanes.
template <int kQueries>
HWY_INLINE void StoreSums(const F16 (&sums)[kQueries][4], float (*out)[kBlock], int i) {
  if constexpr (kQueries == 4) {
    simd::StoreSums16(sums, out[0] + i, kBlock);
  } else {
    for (int g = 0; g < kQueries; ++g) simd::StoreSums4(sums[g], out[g] + i);
  }
}

// logits[g][i] = <query_g, row_i> for i < kBlock; the block's last row stands in for those beyond `count`.
template <int kQueries>
HWY_INLINE void Dot(const uint16_t* rows, const uint16_t* ahead, int count, int dim, const float* queries,
                    float (*logits)[kBlock]) {
  for (int i = 0; i < count; i += 4) {
    const uint16_t* row[4];
    for (int r = 0; r < 4; ++r) row[r] = rows + static_cast<size_t>(std::min(i + r, count - 1)) * dim;
    if (ahead != nullptr) {
      for (int r = 0; r < 4; ++r) PrefetchRow(ahead + static_cast<size_t>(i + r) * dim, dim);
    }
    F16 sums[kQueries][4];
    for (int first = 0; first < 4; first += kRowsAtOnce) {
      F16 part[kQueries][kRowsAtOnce];
      for (auto& of_query : part) {
        for (F16& sum : of_query) sum = simd::Set16(0);
      }
      for (int j = 0; j < dim; j += 16) {
        F16 x[kRowsAtOnce];
        for (int r = 0; r < kRowsAtOnce; ++r) x[r] = simd::Load16Typed(row[first + r], DType::kFloat16, j);
        for (int g = 0; g < kQueries; ++g) {
          const F16 q = simd::Load16(queries + static_cast<size_t>(g) * dim + j);
          for (int r = 0; r < kRowsAtOnce; ++r) part[g][r] = MulAdd(x[r], q, part[g][r]);
        }
      }
      for (int g = 0; g < kQueries; ++g) {
        for (int r = 0; r < kRowsAtOnce; ++r) sums[g][first + r] = part[g][r];
      }
    }
    StoreSums<kQueries>(sums, logits, i);
  }
}

// Turns the first `count` logits into weights e^(logit - most) and adds them to `sum`, `most` being the largest logit
// so far. Returns the factor that earlier weights and sums shrink by.
HWY_INLINE float Weigh(float* logits, int count, float* most, float* sum) {
  for (int i = count; i < kBlock; ++i) logits[i] = -INFINITY;
  F16 largest = simd::Load16(logits);
  for (int i = 16; i < kBlock; i += 16) {
    const F16 x = simd::Load16(logits + i);
    largest = simd::Map([&](size_t p) HWY_ATTR { return hn::Max(largest.v[p], x.v[p]); });
  }
  float now = *most;
  for (const auto& part : largest.v) now = std::max(now, hn::GetLane(hn::MaxOfLanes(simd::DF(), part)));
  const F16 shift = simd::Set16(now);
  F16 total = simd::Set16(0);
  for (int i = 0; i < kBlock; i += 16) {
    const F16 x = simd::Sub(simd::Load16(logits + i), shift);
    const F16 e = simd::Map([&](size_t p) HWY_ATTR {
      return hn::IfThenElseZero(hn::Gt(x.v[p], hn::Set(simd::DF(), -87.f)), hn::Exp(simd::DF(), x.v[p]));
    });
    simd::Store16(e, logits + i);
    total = simd::Add(total, e);
  }
  const float keep = std::exp(*most - now);
  *sum = *sum * keep + simd::Sum16(total);
  *most = now;
  return keep;
}

// out[g] = keep[g] out[g] + the rows' weighted sum, in columns [j, j + 16 kWide).
template <int kQueries, int kWide>
HWY_INLINE void AddColumns(const uint16_t* rows, const uint16_t* ahead, int count, int dim, int j,
                           const float (*weights)[kBlock], const float* keep, float* out) {
  F16 sums[kQueries][kWide];
  for (int g = 0; g < kQueries; ++g) {
    const F16 share = simd::Set16(keep[g]);
    for (int c = 0; c < kWide; ++c) sums[g][c] = simd::Mul(share, simd::Load16(out + g * dim + j + 16 * c));
  }
  for (int i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(i) * dim + j;
    if (ahead != nullptr) PrefetchRow(ahead + at, 16 * kWide);
    F16 x[kWide];
    for (int c = 0; c < kWide; ++c) x[c] = simd::Load16Typed(rows + at, DType::kFloat16, 16 * c);
    for (int g = 0; g < kQueries; ++g) {
      const F16 weight = simd::Set16(weights[g][i]);
      for (int c = 0; c < kWide; ++c) sums[g][c] = MulAdd(x[c], weight, sums[g][c]);
    }
  }
  for (int g = 0; g < kQueries; ++g) {
    for (int c = 0; c < kWide; ++c) simd::Store16(sums[g][c], out + g * dim + j + 16 * c);
  }
}

// The rows of a block, and of the one after it, which is fetched meanwhile (nullptr: none).
struct Block {
  const uint16_t *keys, *values, *next_keys, *next_values;
  int count;
};

template <int kQueries>
void AttendBlock(const Block& b, int dim, const float* queries, float* output, float* most, float* sums) {
  alignas(64) float weights[kQueries][kBlock];
  float keep[kQueries];
  Dot<kQueries>(b.keys, b.next_keys, b.count, dim, queries, weights);
  for (int g = 0; g < kQueries; ++g) keep[g] = Weigh(weights[g], b.count, &most[g], &sums[g]);
  int j = 0;
  for (; j + 16 * kColumns <= dim; j += 16 * kColumns) {
    AddColumns<kQueries, kColumns>(b.values, b.next_values, b.count, dim, j, weights, keep, output);
  }
  for (; j < dim; j += 16) {
    AddColumns<kQueries, 1>(b.values, b.next_values, b.count, dim, j, weights, keep, output);
  }
}

void AttendRowsImpl(const uint16_t* keys, const uint16_t* values, int64_t num_tokens, int dim, const float* queries,
                    int group, float* output, float* most, float* sums) {
  for (int64_t first = 0; first < num_tokens; first += kBlock) {
    Block b{keys + first * dim, values + first * dim, nullptr, nullptr, 0};
    b.count = static_cast<int>(std::min<int64_t>(kBlock, num_tokens - first));
    if (first + kBlock < num_tokens) {  // a block ahead: measured faster than the scan's 2 KiB
      b.next_keys = b.keys + kBlock * dim;
      b.next_values = b.values + kBlock * dim;
    }
    for (int g = 0; g < group; g += kTogether) {
      const float* q = queries + static_cast<size_t>(g) * dim;
      float* out = output + static_cast<size_t>(g) * dim;
      const int now = std::min(kTogether, group - g);
      if (now == 4) AttendBlock<4>(b, dim, q, out, most + g, sums + g);
      if (now == 3) AttendBlock<3>(b, dim, q, out, most + g, sums + g);
      if (now == 2) AttendBlock<2>(b, dim, q, out, most + g, sums + g);
      if (now == 1) AttendBlock<1>(b, dim, q, out, most + g, sums + g);
      b.next_keys = b.next_values = nullptr;
    }
  }
}

}  // namespace seine::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::bench {
namespace {

HWY_EXPORT(AttendRowsImpl);

void AttendHead(const LayerRows& rows, int kv_head, const float* queries, int group, float* output,
                float* log_sum_exp) {
  const int dim = rows.head_dim;
  const int64_t begin = kv_head * rows.num_tokens * dim;
  std::vector<float> scaled(queries, queries + static_cast<size_t>(group) * dim), sums(group);
  for (float& q : scaled) q /= std::sqrt(static_cast<float>(dim));
  std::fill_n(log_sum_exp, group, -INFINITY);
  std::fill_n(output, static_cast<int64_t>(group) * dim, 0.f);
  HWY_DYNAMIC_DISPATCH(AttendRowsImpl)
  (reinterpret_cast<const uint16_t*>(rows.keys.data()) + begin,
   reinterpret_cast<const uint16_t*>(rows.values.data()) + begin, rows.num_tokens, dim, scaled.data(), group, output,
   log_sum_exp, sums.data());
  for (int g = 0; g < group; ++g) {
    for (int j = 0; j < dim; ++j) output[static_cast<size_t>(g) * dim + j] /= sums[g];
    log_sum_exp[g] += std::log(sums[g]);
  }
}

}  // namespace

void AttendExactly(const LayerRows& rows, const float* queries, int group, Backend* backend, std::vector<float>* output,
                   std::vector<float>* log_sum_exp) {
  const int64_t stride = static_cast<int64_t>(group) * rows.head_dim;
  output->resize(rows.num_kv_heads * stride);
  log_sum_exp->resize(static_cast<size_t>(rows.num_kv_heads) * group);
  backend->Run(rows.num_kv_heads, [&](int h) {
    AttendHead(rows, h, queries + h * stride, group, output->data() + h * stride,
               log_sum_exp->data() + static_cast<size_t>(h) * group);
  });
}

}  // namespace seine::bench
#endif  // HWY_ONCE
