// Softmax attention of many query rows of one KV head's group over many of its keys: a prompt's. Keys and values are
// read and widened once for all rows, 64 at a time, and the softmax goes along with them (FlashAttention, arXiv
// 2205.14135):
//   s = scale <q, k>, or softcap tanh(scale <q, k> / softcap),  output = sum_k e^(s - m) v / sum_k e^(s - m),
//   log_sum_exp = m + log sum_k e^(s - m)
// A row's maximum m is raised only where a logit exceeds it by 8 powers of two, so that sums are seldom scaled anew.
// A row's numbers do not depend on the rows beside it. Sums are fused multiply-adds, one after another: the bits are
// the same on every target that fuses (AVX2 and wider, NEON, SCALAR). But heads whose dimension is a multiple of 32 are
// attended by tiles of AMX where AVX3_DL has them (block_parts-inl.h): as near, but sums have another order.
#ifndef SEINE_KERNELS_OPS_ATTEND_BLOCK_ATTENTION_H_
#define SEINE_KERNELS_OPS_ATTEND_BLOCK_ATTENTION_H_

#include <cstdint>

#include "kernels/types.h"

namespace seine::cpu {

inline constexpr int kRunKeys = 8;  // neighbours, of which a tile is made
inline constexpr int kTileRuns = 8;
inline constexpr int kTileKeys = kRunKeys * kTileRuns;

// Keys that are attended together.
struct KeyTile {
  int32_t runs[kTileRuns];  // the first place of each run; negative: there is none
  // Bit 8 i + j of word t: token t sees key j of run i. nullptr: every token sees all keys of all runs.
  const uint64_t* seen = nullptr;
};

struct BlockTask {
  // Rows [num_rows], each [head_dim]; row r is of token r / group.
  const float* const* queries = nullptr;
  int num_rows = 0;
  int group = 1;
  float scale = 1;
  float softcap = 0;         // of logits; 0: none
  ChunkedRows keys, values;  // by place; head_dim a multiple of 16
  int64_t num_places = 0;    // what lies behind is not read, and seen by no token
  const KeyTile* tiles = nullptr;
  int64_t num_tiles = 0;
};

// outputs: [num_rows] rows, each [head_dim]; log_sum_exp: [num_rows], or nullptr. Over nothing they are 0 and
// -infinity. What a stopped call (stop.h) gets is of no use.
void AttendBlock(const BlockTask& task, float* const* outputs, float* log_sum_exp);

// masses [num_tiles][kTileRuns][num_rows]: the share of a row's e^s that lies in a run; 0 of a row that sees nothing.
void RunMasses(const BlockTask& task, float* masses);

namespace scalar {
void AttendBlock(const BlockTask& task, float* const* outputs, float* log_sum_exp);
void RunMasses(const BlockTask& task, float* masses);
}  // namespace scalar

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_ATTEND_BLOCK_ATTENTION_H_
