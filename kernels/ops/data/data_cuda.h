// Bodies of the kernels of data_items.h.
#ifndef SEINE_KERNELS_OPS_DATA_DATA_CUDA_H_
#define SEINE_KERNELS_OPS_DATA_DATA_CUDA_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/ops/data/data_items.h"

namespace seine::cuda {

struct NothingShared {
  uint32_t unused;
};

struct CountBody {
  using Shared = NothingShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared&, const CountArgs& args) {
    const CountItem& item = args.items[block.index().x];
    const int bytes = item.head_dim / 8, total = (item.end - item.begin) * bytes;
    block.Lanes([&](int lane) {
      for (int i = lane; i < total; i += block.num_lanes()) {
        const int key = item.begin + i / bytes, b = i % bytes;
        const uint8_t* tile = item.coarse + static_cast<int64_t>(key / kTileTokens) * kTileTokens * item.coarse_bytes;
        const uint8_t byte = tile[b / 4 * 64 + key % kTileTokens * 4 + b % 4];
        block.AtomicAdd(item.counts + b * 256 + byte, static_cast<uint32_t>(item.sign));
      }
    });
  }
};

struct alignas(16) Bytes16 {
  uint32_t word[4];
};

struct GatherBody {
  using Shared = NothingShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared&, const GatherArgs& args) {
    const GatherItem& item = args.items[block.index().y];
    const int each = item.row_bytes / 16, total = item.count * each;
    block.Lanes([&](int lane) {
      for (int i = block.index().x * block.num_lanes() + lane; i < total; i += kGatherParts * block.num_lanes()) {
        const int position = item.positions[i / each];
        const uint8_t* row = item.chunks[position / item.chunk_tokens] +
                             static_cast<int64_t>(position % item.chunk_tokens) * item.row_bytes;
        reinterpret_cast<Bytes16*>(item.out)[i] = reinterpret_cast<const Bytes16*>(row)[i % each];
      }
    });
  }
};

struct CopyBody {
  using Shared = NothingShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared&, const CopyArgs& args) {
    const CopyItem& item = args.items[block.index().x];
    const auto unit = reinterpret_cast<uintptr_t>(item.to) | reinterpret_cast<uintptr_t>(item.from);
    const int64_t wide = unit % sizeof(Bytes16) == 0 ? item.bytes / static_cast<int64_t>(sizeof(Bytes16)) : 0;
    block.Lanes([&](int lane) {
      for (int64_t i = lane; i < wide; i += block.num_lanes()) {
        reinterpret_cast<Bytes16*>(item.to)[i] = reinterpret_cast<const Bytes16*>(item.from)[i];
      }
      for (int64_t i = wide * static_cast<int64_t>(sizeof(Bytes16)) + lane; i < item.bytes; i += block.num_lanes()) {
        item.to[i] = item.from[i];
      }
    });
  }
};

// Kernels of data_items.h (device/launcher.h).
template <typename Run>
void ForEachKernel(const CountArgs& args, Run run) {
  run(CountBody(), BlockIndex{args.num_items, 1}, Lanes<kDataLanes>());
}
template <typename Run>
void ForEachKernel(const CopyArgs& args, Run run) {
  run(CopyBody(), BlockIndex{args.num_items, 1}, Lanes<kDataLanes>());
}
template <typename Run>
void ForEachKernel(const GatherArgs& args, Run run) {
  run(GatherBody(), BlockIndex{kGatherParts, args.num_items}, Lanes<kDataLanes>());
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_DATA_DATA_CUDA_H_
