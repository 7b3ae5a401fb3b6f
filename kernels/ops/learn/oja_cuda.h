// Body of the kernel that learns (low_rank_items.h): a block a basis, which takes the steps of oja_rule.h with its
// lanes. Matrices lie in the device's memory and stay in its caches: they are some hundred KiB.
#ifndef SEINE_KERNELS_OPS_LEARN_OJA_CUDA_H_
#define SEINE_KERNELS_OPS_LEARN_OJA_CUDA_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/ops/learn/oja_items.h"
#include "kernels/ops/learn/oja_rule.h"

namespace seine::cuda {

struct LearnShared {
  OjaScratch scratch;
  double lanes[16];
  double sum;
};

// A lane's share of a product: four rows of a column at a time, so that an entry of b is read once for four products.
SEINE_BODY inline void MatMulLane(int lane, OjaMatrix a, const float* b, int b_stride, int m, int columns, int k,
                                  bool add, float* c, int c_stride) {
  constexpr int kRows = 4;
  const int tiles = (m + kRows - 1) / kRows * columns;
  SEINE_ROLLED for (int t = lane; t < tiles; t += kOjaLanes) {
    const int row = t / columns * kRows, column = t % columns, rows = Least(kRows, m - row);
    const float* left = a.data + row * a.row_stride;
    float* out = c + row * c_stride + column;
    float sums[kRows];
    for (int i = 0; i < kRows; ++i) sums[i] = add && i < rows ? out[i * c_stride] : 0.0f;
    for (int l = 0; l < k; ++l) {
      const float right = b[l * b_stride + column];
      for (int i = 0; i < kRows; ++i) {
        if (i < rows) sums[i] = sums[i] + left[i * a.row_stride + l * a.column_stride] * right;
      }
    }
    for (int i = 0; i < kRows; ++i) {
      if (i < rows) out[i * c_stride] = sums[i];
    }
  }
}

// oja_rule.h, by the lanes of a block.
template <typename Block>
class BlockEngine {
 public:
  SEINE_BODY BlockEngine(Block* block, LearnShared* shared) : block_(*block), s_(*shared) {}

  SEINE_BODY void MatMul(const OjaMatrix& a, const float* b, int b_stride, int m, int n, int k, bool add, float* c,
                         int c_stride) {
    block_.Lanes([&](int lane) { MatMulLane(lane, a, b, b_stride, m, OjaColumns(n), k, add, c, c_stride); });
  }

  template <typename Fn>
  SEINE_BODY void Each(int m, int n, Fn fn) {
    block_.Lanes([&](int lane) { SEINE_ROLLED for (int i = lane; i < m * n; i += kOjaLanes) fn(i / n, i % n); });
  }

  template <typename Fn>
  SEINE_BODY void Once(Fn fn) {
    block_.Lanes([](int) {});
    block_.Lanes([&](int lane) {
      if (lane == 0) fn();
    });
  }

  template <typename Term>
  SEINE_BODY double Sum(int n, Term term) {
    block_.Lanes([&](int lane) {
      if (lane >= 16) return;
      double sum = 0;
      SEINE_ROLLED for (int i = lane; i < n; i += 16) sum = sum + term(i);
      s_.lanes[lane] = sum;
    });
    block_.Lanes([&](int lane) {
      if (lane != 0) return;
      for (int h = 8; h >= 1; h /= 2) {
        for (int l = 0; l < h; ++l) s_.lanes[l] = s_.lanes[l] + s_.lanes[l + h];
      }
      s_.sum = s_.lanes[0];
    });
    return block_.Read(s_.sum);
  }

 private:
  Block& block_;
  LearnShared& s_;
};

// Grid: (items).
struct LearnBody {
  using Shared = LearnShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const LearnArgs& args) {
    const LearnItem& item = args.items[block.index().x];
    const LearnTask& task = item.task;
    block.Lanes([&](int lane) {
      if (lane == 0) s.scratch = OjaScratch(item.scratch, task.head_dim, task.rank, task.options.interval);
    });
    BlockEngine<Block> engine(&block, &s);
    OjaRule<BlockEngine<Block>> rule(&engine, task, s.scratch);
    for (int64_t first = 0; first < task.count; first += task.options.interval) {
      rule.EndInterval(task.rows + first * task.head_dim, task.stats);
    }
  }
};

template <typename Run>
void ForEachKernel(const LearnArgs& args, Run run) {
  run(LearnBody(), BlockIndex{args.num_items, 1}, Lanes<kOjaLanes>());
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_LEARN_OJA_CUDA_H_
