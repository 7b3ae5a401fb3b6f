// Hashes of rows: the same on every target, and different for rows that differ.
#include "kernels/ops/hash/hash_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "tests/kernels/same_bits.h"
#include "tests/kernels/test_util.h"

namespace seine {
namespace {

constexpr int kDim = 64, kRowBytes = kDim * 2;

uint32_t HashOf(const std::vector<uint8_t>& row, DType dtype = DType::kFloat16) {
  uint32_t hash;
  cpu::HashRows({row.data(), row.size(), dtype}, nullptr, 1, kDim, &hash);
  return hash;
}

std::vector<uint8_t> RandomRow(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> row(kRowBytes);
  for (uint8_t& byte : row) byte = static_cast<uint8_t>(random());
  return row;
}

TEST(HashRows, TheSameOnEveryTarget) {
  for (const int dim : {4, 20, 32, 64, 96, 128, 256}) {
    for (const DType dtype : RowTypesOf(dim)) {
      const Typed rows(Gaussian(static_cast<size_t>(dim) * 9, dim), dim, dtype);
      const int32_t places[] = {8, 0, 3, 3, 5};
      ExpectSameBits([&] {
        uint32_t all[9], some[5];
        cpu::HashRows(rows.rows, nullptr, 9, dim, all);
        cpu::HashRows(rows.rows, places, 5, dim, some);
        for (int i = 0; i < 5; ++i) EXPECT_EQ(some[i], all[places[i]]);
        std::vector<uint8_t> bytes;
        Put(&bytes, all, 9);
        return bytes;
      });
    }
  }
}

TEST(HashRows, EveryBitAndEveryPlaceCounts) {
  for (const std::vector<uint8_t>& row : {RandomRow(1), std::vector<uint8_t>(kRowBytes, 0)}) {
    std::set<uint32_t> seen = {HashOf(row)};
    for (int bit = 0; bit < kRowBytes * 8; ++bit) {
      std::vector<uint8_t> other = row;
      other[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      EXPECT_TRUE(seen.insert(HashOf(other)).second) << "bit " << bit;
    }
  }
  const std::vector<uint8_t> row = RandomRow(2);
  for (int a = 0; a < kRowBytes / 4; ++a) {
    for (int b = 0; b < a; ++b) {
      std::vector<uint8_t> other = row;
      std::swap_ranges(other.begin() + a * 4, other.begin() + a * 4 + 4, other.begin() + b * 4);
      EXPECT_NE(HashOf(other), HashOf(row)) << a << " and " << b;
    }
  }
}

// 68 and 36 bytes: no whole number of words.
TEST(HashRows, EveryBitOfAQuantisedRowCounts) {
  for (const DType dtype : {DType::kQ8, DType::kQ4}) {
    std::vector<uint8_t> row = RandomRow(5);
    row.resize(BytesOf(dtype, kDim));
    std::set<uint32_t> seen = {HashOf(row, dtype)};
    for (size_t bit = 0; bit < row.size() * 8; ++bit) {
      std::vector<uint8_t> other = row;
      other[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      EXPECT_TRUE(seen.insert(HashOf(other, dtype)).second) << "bit " << bit;
    }
  }
}

// By chance, 4.7 pairs of 200,000 hashes of 32 bits agree.
TEST(HashRows, RowsThatDifferInAFewBitsSpreadAsChanceWould) {
  std::mt19937 random(3);
  std::vector<uint32_t> hashes;
  const std::vector<uint8_t> first = RandomRow(4);
  std::set<std::vector<uint8_t>> rows;
  while (hashes.size() < 200000) {
    std::vector<uint8_t> row = first;
    for (int i = 0; i < 3; ++i) row[random() % kRowBytes] ^= static_cast<uint8_t>(1 << random() % 8);
    if (rows.insert(row).second) hashes.push_back(HashOf(row));
  }
  std::sort(hashes.begin(), hashes.end());
  const auto alike = hashes.end() - std::unique(hashes.begin(), hashes.end());
  EXPECT_LE(alike, 20);
}

}  // namespace
}  // namespace seine
