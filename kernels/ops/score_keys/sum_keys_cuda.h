// The sums' kernels. The first gives each group of keys (score_keys.h) a slot of a block: the slots' rows come to
// shared memory a tile at a time, 16 bytes a lane, so that each is read once wherever it lies; for norms a half-warp
// takes a row, as scores do (score_keys_cuda.h); then a lane a coordinate adds its slot's rows in order. The second
// kernel adds a window's groups in order, a lane a coordinate.
#ifndef SEINE_KERNELS_OPS_SCORE_KEYS_SUM_KEYS_CUDA_H_
#define SEINE_KERNELS_OPS_SCORE_KEYS_SUM_KEYS_CUDA_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/load.h"
#include "kernels/math.h"
#include "kernels/ops/score_keys/evict_items.h"
#include "kernels/ops/score_keys/score_keys_cuda.h"

namespace seine::cuda {

struct SumShared {
  // Rows lie two quads further apart than they are long, so that two that a warp reads at once meet no bank twice. At
  // head_dim 64, whose four slots take the most: 128 rows of 8 + 2 quads in 16 bits, 64 of 16 + 2 in 32. A wide head's
  // slot has half as many rows as a narrow one's.
  Quad tile[1280];
  float squares[128][17];
  float scales[128];
  int begin[kSumSlots], count[kSumSlots];  // of each slot's group
};

// Grid: (blocks of SumSlots groups, items).
struct SumBody {
  using Shared = SumShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SumArgs& args) {
    const SumItem& item = args.items[block.index().y];
    if (block.index().x * SumSlots(item.head_dim) >= item.groups) return;
    if (item.head_dim > kNarrowHeadDim) return RunOf<true>(block, s, item);
    RunOf<false>(block, s, item);
  }

 private:
  template <bool kWide, typename Block>
  SEINE_BODY static void RunOf(Block& block, SumShared& s, const SumItem& item) {
    switch (item.dtype) {
      case DType::kFloat32:
        return Run<DType::kFloat32, kWide>(block, s, item);
      case DType::kFloat16:
        return Run<DType::kFloat16, kWide>(block, s, item);
      case DType::kBFloat16:
        return Run<DType::kBFloat16, kWide>(block, s, item);
      case DType::kQ8:
      case DType::kQ4:
        break;
    }
  }

  // Rows of a slot in a tile.
  template <DType kType, bool kWide>
  static constexpr int kRows = (kWide ? 32 : 64) / static_cast<int>(SizeOf(kType));

  struct Sums {
    double of[kSumShare];
  };
  // use(slot, j, i) for each coordinate j of a slot that is the lane's, its i-th.
  template <bool kWide, typename Use>
  SEINE_BODY static void EachOf(int dim, int slots, int lane, Use use) {
    const int slot = lane / dim, j = lane - slot * dim;
    if (slot >= slots) return;
    use(slot, j, 0);
    if constexpr (kWide) {
      SEINE_UNROLL
      for (int i = 1; i < kSumShare; ++i) {
        if (j + i * kSumLanes < dim) use(slot, j + i * kSumLanes, i);
      }
    }
  }

  template <DType kType>
  SEINE_BODY static int Quads(const SumItem& item) {
    return item.head_dim * static_cast<int>(SizeOf(kType)) / 16;
  }
  template <DType kType>
  SEINE_BODY static float At(const Quad* row, int j) {
    const int byte = j * static_cast<int>(SizeOf(kType));
    const uint32_t word = row[byte / 16].word[byte / 4 % 4];
    if constexpr (kType == DType::kFloat32) return BitsFloat(word);
    return Widen<kType>(static_cast<uint16_t>(word >> (j % 2 * 16)));
  }

  template <DType kType, bool kWide, typename Block>
  SEINE_BODY static void Run(Block& block, SumShared& s, const SumItem& item) {
    const int dim = item.head_dim, slots = SumSlots(dim), stride = Quads<kType>(item) + 2;
    const int first_group = block.index().x * slots;
    constexpr int kHeld = kRows<kType, kWide>;
    typename Block::template Local<Sums> sums(block);
    block.Lanes([&](int lane) {
      sums[lane] = {};
      if (lane < slots) PlaceGroup(item, first_group + lane, &s.begin[lane], &s.count[lane]);
    });
    for (int first = 0; first < item.longest; first += kHeld) {
      block.Lanes([&](int lane) { LoadRows<kType, kWide>(item, first, lane, &s); });
      if (item.unit) FindScales<kType, kWide>(block, s, item, first);
      block.Lanes([&](int lane) {
        EachOf<kWide>(dim, slots, lane, [&](int slot, int j, int i) {
          const int begin = slot * kHeld, count = Least(kHeld, s.count[slot] - first);
          double sum = sums[lane].of[i];
          for (int r = begin; r < begin + count; ++r) {
            const float x = At<kType>(s.tile + r * stride, j);
            sum += static_cast<double>(item.unit ? x * s.scales[r] : x);
          }
          sums[lane].of[i] = sum;
        });
      });
    }
    block.Lanes([&](int lane) {
      EachOf<kWide>(dim, slots, lane, [&](int slot, int j, int i) {
        const int group = first_group + slot;
        if (group < item.groups) item.partial[static_cast<int64_t>(group) * dim + j] = sums[lane].of[i];
      });
    });
  }

  SEINE_BODY static void PlaceGroup(const SumItem& item, int group, int* begin, int* count) {
    const bool there = group < item.groups;
    *begin = there ? item.key_begins[group] : 0;
    *count = there ? item.key_begins[group + 1] - *begin : 0;
  }

  template <DType kType, bool kWide>
  SEINE_BODY static void LoadRows(const SumItem& item, int first, int lane, SumShared* s) {
    const int quads = Quads<kType>(item), slots = SumSlots(item.head_dim);
    constexpr int kHeld = kRows<kType, kWide>;
    for (int r = lane / 16; r < slots * kHeld; r += kSumLanes / 16) {
      const int slot = r / kHeld, i = first + r % kHeld;
      if (i >= s->count[slot]) continue;
      const int key = s->begin[slot] + i, chunk = key / item.chunk_tokens;
      const uint8_t* row = item.chunks[chunk] + static_cast<int64_t>(key - chunk * item.chunk_tokens) * quads * 16;
      for (int q = lane % 16; q < quads; q += 16) s->tile[r * (quads + 2) + q] = LoadQuad(row + q * 16);
    }
  }

  // 1 / |k| of the tile's rows.
  template <DType kType, bool kWide, typename Block>
  SEINE_BODY static void FindScales(Block& block, SumShared& s, const SumItem& item, int first) {
    constexpr int kHeld = kRows<kType, kWide>;
    const int rows = SumSlots(item.head_dim) * kHeld, stride = Quads<kType>(item) + 2;
    const auto held = [&](int r) { return first + r % kHeld < s.count[r / kHeld]; };
    block.Lanes([&](int lane) {
      for (int r = lane / 16; r < rows; r += kSumLanes / 16) {
        if (!held(r)) continue;
        float squares = 0;
        for (int j = lane % 16; j < item.head_dim; j += 16) {
          const float x = At<kType>(s.tile + r * stride, j);
          squares = squares + x * x;
        }
        s.squares[r][lane % 16] = squares;
      }
    });
    block.Lanes([&](int lane) {
      if (lane < rows && held(lane)) s.scales[lane] = InverseNorm(ReduceRow<false>(s.squares[lane]));
    });
  }
};

struct FoldShared {};

// Grid: (windows, items). Loads run ahead of the additions that wait for one another.
struct FoldBody {
  using Shared = FoldShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared&, const SumArgs& args) {
    constexpr int kAhead = 32;
    const SumItem& item = args.items[block.index().y];
    const int window = block.index().x, dim = item.head_dim;
    if (window >= item.windows) return;
    const int first = item.group_begins[window], groups = item.group_begins[window + 1] - first;
    block.Lanes([&](int lane) {
      SEINE_ROLLED for (int j = lane; j < dim; j += kSumLanes) {
        const double* partial = item.partial + static_cast<int64_t>(first) * dim + j;
        double sum = 0;
        int g = 0;
        for (; g + kAhead <= groups; g += kAhead) {
          double ahead[kAhead];
          for (int i = 0; i < kAhead; ++i) ahead[i] = partial[static_cast<int64_t>(g + i) * dim];
          for (int i = 0; i < kAhead; ++i) sum += ahead[i];
        }
        for (; g < groups; ++g) sum += partial[static_cast<int64_t>(g) * dim];
        item.sums[static_cast<int64_t>(window) * dim + j] = sum;
      }
    });
  }
};

template <typename Run>
void ForEachKernel(const SumArgs& args, Run run) {
  run(SumBody(), BlockIndex{args.most_blocks, args.num_items}, Lanes<kSumLanes>());
  run(FoldBody(), BlockIndex{args.most_windows, args.num_items}, Lanes<kSumLanes>());
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SCORE_KEYS_SUM_KEYS_CUDA_H_
