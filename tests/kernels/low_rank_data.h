// A head's rows kept low-rank, synthetic: several runs and bases, and tokens kept full-rank among them. Without a test
// framework.
#ifndef SEINE_TESTS_KERNELS_LOW_RANK_DATA_H_
#define SEINE_TESTS_KERNELS_LOW_RANK_DATA_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/ops/low_rank/low_rank_cpu.h"
#include "kernels/ops/matrix/matrix.h"
#include "tests/kernels/random_data.h"

namespace seine {

// U [dim][rank rounded up to 16] of entries as large as those of an orthonormal basis.
inline std::vector<float> RandomBasis(int dim, int rank, uint64_t seed) {
  const int stride = cpu::PaddedColumns(rank);
  std::vector<float> u = Gaussian(static_cast<size_t>(dim) * stride, seed, 1 / std::sqrt(static_cast<float>(dim)));
  for (size_t i = 0; i < u.size(); ++i) u[i] = static_cast<int>(i % stride) < rank ? u[i] : 0.0f;
  return u;
}

// An orthonormal one, for learning.
inline std::vector<float> OrthonormalBasis(int dim, int rank, uint64_t seed) {
  const int stride = cpu::PaddedColumns(rank);
  std::vector<float> u = RandomBasis(dim, rank, seed);
  for (int c = 0; c < rank; ++c) {
    for (int pass = 0; pass < 2; ++pass) {
      for (int before = 0; before < c; ++before) {
        double dot = 0;
        for (int j = 0; j < dim; ++j) dot += double{u[j * stride + before]} * u[j * stride + c];
        for (int j = 0; j < dim; ++j) u[j * stride + c] -= static_cast<float>(dot * u[j * stride + before]);
      }
    }
    double square = 0;
    for (int j = 0; j < dim; ++j) square += double{u[j * stride + c]} * u[j * stride + c];
    for (int j = 0; j < dim; ++j) u[j * stride + c] = static_cast<float>(u[j * stride + c] / std::sqrt(square));
  }
  return u;
}

// Frequencies as a model has them.
inline std::vector<double> Frequencies(int dim) {
  std::vector<double> out(dim / 2);
  for (size_t i = 0; i < out.size(); ++i) out[i] = std::pow(10000.0, -2.0 * static_cast<double>(i) / dim);
  return out;
}

// Runs of the lengths given, two of them to a basis, every fifth token kept full-rank; the fourth run has no basis.
// Rows lie in the backend's store, bases where its codes do.
struct LowRankHead {
  LowRankHead(Backend* backend, int dim, int rank, DType dtype, const std::vector<int>& lengths, int64_t begin,
              uint64_t seed) {
    const size_t size = SizeOf(dtype);
    int64_t place = begin;
    for (size_t i = 0; i < lengths.size(); ++i) {
      const bool plain = i == 3;
      const int n = lengths[i], kept = plain ? n : n / 5;
      if (i % 2 == 0)
        bases.push_back(InCodes(backend, Halves(Gaussian(static_cast<size_t>(rank) * dim, seed + i, .1f))));
      blocks.push_back(backend->Allocate(n * rank * size + kept * (dim * size + 2) + 2, MemorySpace::kStore));
      done = done && bases.back() && blocks.back();
      if (!done) return;
      uint8_t* at = blocks.back().data();
      LowRankRun run;
      run.begin = place;
      run.codes = at;
      if (!plain) run.basis = reinterpret_cast<const uint16_t*>(bases.back().data());
      cpu::Narrow(Gaussian(static_cast<size_t>(n) * rank, seed + 100 + i).data(), int64_t{n} * rank, dtype, at);
      at += n * rank * size;
      run.full = at;
      cpu::Narrow(Gaussian(static_cast<size_t>(kept) * dim, seed + 200 + i).data(), int64_t{kept} * dim, dtype, at);
      at += kept * dim * size;
      run.full_places = reinterpret_cast<const uint16_t*>(at);
      for (int k = 0; k < kept; ++k) {
        const auto in_run = static_cast<uint16_t>(5 * k + 1);
        memcpy(at + k * 2, &in_run, 2);
      }
      if (!plain) run.num_full = kept;
      runs.push_back(run);
      place += n;
    }
    end = place;
    rows.runs = runs.data();
    rows.num_runs = static_cast<int32_t>(runs.size());
    rows.head_dim = dim;
    rows.rank = rank;
    rows.dtype = dtype;
  }
  LowRankHead(const LowRankHead&) = delete;

  static std::vector<uint8_t> Halves(const std::vector<float>& x) {
    std::vector<uint8_t> out(x.size() * 2);
    cpu::Narrow(x.data(), static_cast<int64_t>(x.size()), DType::kFloat16, out.data());
    return out;
  }
  static Buffer InStore(Backend* backend, const std::vector<uint8_t>& bytes) {
    Buffer store = backend->Allocate(bytes.size(), MemorySpace::kStore);
    if (store) memcpy(store.data(), bytes.data(), bytes.size());
    return store;
  }
  static Buffer InCodes(Backend* backend, const std::vector<uint8_t>& bytes) {
    const Buffer store = InStore(backend, bytes);
    Buffer codes = backend->Allocate(bytes.size(), MemorySpace::kCodes);
    if (!store || !codes) return Buffer();
    const CopyTask copy = {codes.data(), store.data(), bytes.size()};
    return backend->Copy(&copy, 1) == Outcome::kDone ? std::move(codes) : Buffer();
  }

  bool done = true;  // false: no memory
  std::vector<Buffer> bases, blocks;
  std::vector<LowRankRun> runs;
  LowRankRows rows;
  int64_t end = 0;
};

// The keys of a search, in place of those stored. Place p has position 3 p + 1.
struct LowRankZone {
  static constexpr int kChunk = 100;
  LowRankZone(Backend* owner, int dim, int rank, DType dtype, int num_keys, const RopeTurns& rope, uint64_t seed)
      : backend(owner),
        head(owner, dim, rank, dtype, {num_keys / 2, num_keys / 4, 1, 7, num_keys - num_keys / 2 - num_keys / 4 - 8}, 0,
             seed) {
    head.rows.rope = rope;
    const int chunks = (num_keys + kChunk - 1) / kChunk;
    positions = owner->Allocate(static_cast<size_t>(chunks) * kChunk * sizeof(int32_t), MemorySpace::kStore);
    if (!positions) return;
    auto* const at = reinterpret_cast<int32_t*>(positions.data());
    for (int p = 0; p < num_keys; ++p) at[p] = 3 * p + 1;
    for (int c = 0; c < chunks; ++c) position_chunks.push_back(positions.data() + c * kChunk * sizeof(int32_t));
  }
  void AddTo(SearchTask* task) const {
    auto keys = std::make_shared<LowRankTokens>();
    keys->runs = head.runs;
    keys->rows = head.rows;
    keys->position_chunks = position_chunks.data();
    keys->position_chunk_tokens = kChunk;
    task->low_rank = std::move(keys);
  }

  Backend* backend;
  LowRankHead head;
  Buffer positions;
  std::vector<const uint8_t*> position_chunks;
};

}  // namespace seine

#endif  // SEINE_TESTS_KERNELS_LOW_RANK_DATA_H_
