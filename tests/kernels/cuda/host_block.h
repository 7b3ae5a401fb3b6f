// The block concept of kernels/cuda/block.h on one host thread: a proof of kernels' bodies where there is no device.
#ifndef SEINE_TESTS_KERNELS_CUDA_HOST_BLOCK_H_
#define SEINE_TESTS_KERNELS_CUDA_HOST_BLOCK_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/cuda/block.h"
#include "kernels/math.h"

namespace seine::cuda {

class HostBlock {
 public:
  template <typename T>
  class Local {
   public:
    explicit Local(const HostBlock& block) : values_(block.num_lanes()) {
      for (T& v : values_) memset(&v, 0xA5, sizeof(T));
    }
    T& operator[](int lane) { return values_[lane]; }

   private:
    std::vector<T> values_;
  };

  HostBlock(BlockIndex index, int num_lanes, uint64_t seed) : index_(index), seed_(seed), order_(num_lanes) {
    std::iota(order_.begin(), order_.end(), 0);
  }
  int num_lanes() const { return static_cast<int>(order_.size()); }
  BlockIndex index() const { return index_; }

  template <typename Fn>
  void Lanes(Fn fn) {
    Shuffle(&order_, &seed_);
    for (const int lane : order_) fn(lane);
  }
  template <typename Fn>
  void Warps(Fn fn) {
    Lanes(fn);
  }
  template <typename T>
  T Read(const T& shared) {
    return shared;
  }
  bool IsLast(uint32_t* at, uint32_t of) { return AtomicAdd(at, 1u) == of - 1; }
  template <typename T>
  static T AtomicAdd(T* at, T value) {
    const T old = *at;
    *at = static_cast<T>(old + value);
    return old;
  }
  static void AtomicOr(uint32_t* at, uint32_t bits) { *at |= bits; }
  static void AtomicAnd(uint32_t* at, uint32_t bits) { *at &= bits; }
  static void AtomicMax(uint32_t* at, uint32_t value) { *at = *at < value ? value : *at; }
  static void AtomicMin(uint32_t* at, uint32_t value) { *at = value < *at ? value : *at; }

  template <int kWidth, int kCount, typename Op>
  void Butterfly(Local<FloatsOf<kCount>>& values, int count, Op op) {
    std::vector<float> before(num_lanes());
    for (int i = 0; i < count; ++i) {
      for (int h = kWidth / 2; h >= 1; h /= 2) {
        for (int lane = 0; lane < num_lanes(); ++lane) before[lane] = values[lane].of[i];
        for (int lane = 0; lane < num_lanes(); ++lane) values[lane].of[i] = op(before[lane], before[lane ^ h]);
      }
    }
  }

  template <bool kUnsigned>
  void Mma(Local<MmaD>& d, Local<MmaA>& a, Local<MmaB>& b) {
    for (int warp = 0; warp < num_lanes(); warp += kWarp) {
      for (int column = 0; column < 8; ++column) {
        for (int half = 0; half < 2; ++half) {
          for (int j = 0; j < 4; ++j) {
            const uint32_t y = b[warp + column * 4 + j].word[half];
            if (y == 0) continue;  // as most of a selector is
            for (int row = 0; row < 16; ++row) {
              const uint32_t x = a[warp + row % 8 * 4 + j].word[row / 8 + 2 * half];
              d[warp + row % 8 * 4 + column / 2].sum[row / 8 * 2 + column % 2] += DotOfBytes<kUnsigned>(x, y);
            }
          }
        }
      }
    }
  }

  // Fisher and Yates, from SplitMix64.
  static void Shuffle(std::vector<int>* order, uint64_t* seed) {
    for (size_t i = order->size(); i > 1; --i) std::swap((*order)[i - 1], (*order)[SplitMix64(++*seed, i) % i]);
  }

 private:
  template <bool kUnsigned>
  static int32_t DotOfBytes(uint32_t x, uint32_t y) {
    int32_t sum = 0;
    for (int shift = 0; shift < 32; shift += 8) {
      const int left = kUnsigned ? static_cast<uint8_t>(x >> shift) : static_cast<int8_t>(x >> shift);
      sum += left * static_cast<int8_t>(y >> shift);
    }
    return sum;
  }

  BlockIndex index_;
  uint64_t seed_;
  std::vector<int> order_;
};

// What a block finds in its shared memory: any byte, or every second time +inf in each word.
inline void FillStale(void* shared, size_t bytes, uint64_t drawn) {
  constexpr uint32_t kInfinity = 0x7F800000u;
  memset(shared, static_cast<int>(drawn & 255), bytes);
  for (size_t i = 0; drawn & 256 && i + sizeof(kInfinity) <= bytes; i += sizeof(kInfinity)) {
    memcpy(static_cast<uint8_t*>(shared) + i, &kInfinity, sizeof(kInfinity));
  }
}

// Every block of a grid on the calling thread, in a seeded order. Shared must be trivially copyable.
template <typename Shared, typename Args, typename Body>
void RunGridOnHost(BlockIndex grid, int num_lanes, uint64_t seed, const Args& args, Body body) {
  std::vector<int> order(static_cast<size_t>(grid.x) * grid.y);
  std::iota(order.begin(), order.end(), 0);
  HostBlock::Shuffle(&order, &seed);
  const auto shared = std::make_unique<Shared>();
  for (const int i : order) {
    FillStale(shared.get(), sizeof(Shared), SplitMix64(seed, i));
    HostBlock block({i % grid.x, i / grid.x}, num_lanes, seed + i);
    body(block, *shared, args);
  }
}

}  // namespace seine::cuda

#endif  // SEINE_TESTS_KERNELS_CUDA_HOST_BLOCK_H_
