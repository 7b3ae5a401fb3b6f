// The encode kernels' bodies, run on the host in shuffled orders, give the CPU's codes byte for byte.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/kernels/cuda/host_launcher.h"
#include "tests/kernels/test_util.h"

namespace seine {
namespace {

// `dim` numbers a row in `dtype`, rows `stride` bytes apart.
std::vector<uint8_t> Stored(const std::vector<float>& values, int dim, DType dtype, size_t stride) {
  std::vector<uint8_t> out(values.size() / dim * stride, 0xEE);
  for (size_t i = 0; i < values.size(); ++i) {
    uint8_t* at = out.data() + i / dim * stride + i % dim * SizeOf(dtype);
    const _Float16 half = static_cast<_Float16>(values[i]);
    const uint16_t bf16 = FloatToBf16(values[i]);
    if (dtype == DType::kFloat32) memcpy(at, &values[i], 4);
    if (dtype == DType::kFloat16) memcpy(at, &half, 2);
    if (dtype == DType::kBFloat16) memcpy(at, &bf16, 2);
  }
  return out;
}

struct Codes {
  Codes(const CodeLayout& layout, int keys) : bytes(CodeBytes(layout, keys) + 64, 0xAA) {
    uint8_t* aligned = bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
    planes = PlanesAt(layout, keys, aligned);
    begin = aligned;
    size = CodeBytes(layout, keys);
  }
  bool operator==(const Codes& o) const { return memcmp(begin, o.begin, size) == 0; }
  std::vector<uint8_t> bytes;
  CodePlanes planes;
  uint8_t* begin;
  size_t size;
};

void ExpectSameCodes(const Codec& codec, const std::vector<float>& values, DType dtype) {
  const CodeLayout& layout = codec.layout();
  const int dim = layout.head_dim, keys = static_cast<int>(values.size()) / dim;
  const size_t stride = dim * SizeOf(dtype) + (dtype == DType::kFloat16 ? 32 : 0);
  const std::vector<uint8_t> rows = Stored(values, dim, dtype, stride);
  const ConstRows view = {rows.data(), stride, dtype};
  SharedCentre shared;
  if (codec.centre() == Centre::kGlobal) shared = codec.MakeSharedCentre(view, kWindowTokens);
  Codes expected(layout, keys);
  codec.Encode(view, keys, codec.centre() == Centre::kGlobal ? &shared : nullptr, expected.planes);
  const CodecTables tables = codec.Tables();
  for (const uint64_t seed : {1, 2}) {
    Codes found(layout, keys);
    cuda::EncodeItem item;
    item.codec = &tables;
    item.rows = rows.data();
    item.stride_bytes = stride;
    item.dtype = dtype;
    if (codec.centre() == Centre::kGlobal) item.shared_centre = shared.values.data(), item.shared_scale = shared.scale;
    item.out = found.planes;
    std::vector<cuda::EncodeUnit> units;
    for (int first = 0; first < keys; first += cuda::UnitKeys(layout)) units.push_back({0, first});
    cuda::RunOnHost(cuda::EncodeArgs{&item, units.data(), static_cast<int>(units.size()), dim, tables.kind}, seed);
    EXPECT_TRUE(found == expected) << "seed " << seed;
  }
}

// Among ordinary keys: a zero row, equal rows, one element, and values near the ends of fp16.
std::vector<float> EdgeKeys(int keys, int dim, uint64_t seed) {
  std::vector<float> values = Keys(keys, dim, seed);
  const auto row = [&](int i) { return values.begin() + static_cast<size_t>(i) * dim; };
  std::fill_n(row(3), dim, 0.0f);
  std::copy_n(row(5), dim, row(6));
  std::fill_n(row(9), dim, 0.0f);
  row(9)[dim / 3] = -2.0f;
  for (int j = 0; j < dim; ++j) row(11)[j] = j % 2 != 0 ? 60000.0f : -60000.0f;
  for (int j = 0; j < dim; ++j) row(13)[j] = 6e-8f;
  return values;
}

class EncodeTest : public ::testing::TestWithParam<int> {};

TEST_P(EncodeTest, RsqEqualsTheCpu) {
  const int dim = GetParam();
  for (const Centre centre : {Centre::kNone, Centre::kGlobal, Centre::kWindow}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(centre)) + " " + std::to_string(static_cast<int>(dtype)));
      const auto codec = MakeRsqCodec({.head_dim = dim, .seed = 5, .centre = centre, .centre_window = 64});
      ExpectSameCodes(*codec, EdgeKeys(128, dim, dim), dtype);
    }
  }
}

TEST_P(EncodeTest, BalancedEqualsTheCpu) {
  const int dim = GetParam();
  for (const bool half_bit : {false, true}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      SCOPED_TRACE(std::to_string(half_bit) + " " + std::to_string(static_cast<int>(dtype)));
      ExpectSameCodes(*MakeBalancedCodec(RandomBalanced(dim, dim, half_bit)), EdgeKeys(128, dim, dim), dtype);
    }
  }
}

// Whole windows of keys so large that factors reach infinity, beside one ordinary window.
TEST_P(EncodeTest, HugeKeysEqualTheCpu) {
  const int dim = GetParam();
  for (const float scale : {1e15f, 1e18f, 1e20f, 1e30f}) {
    SCOPED_TRACE(scale);
    std::vector<float> values = Keys(128, dim, dim);
    for (size_t i = 0; i < values.size() / 2; ++i) values[i] *= scale;
    ExpectSameCodes(*MakeRsqCodec({.head_dim = dim, .seed = 5}), values, DType::kFloat32);
    ExpectSameCodes(*MakeBalancedCodec(RandomBalanced(dim, dim, false)), values, DType::kFloat32);
  }
}

TEST_P(EncodeTest, WiderCentresEqualTheCpu) {
  const int dim = GetParam();
  const auto rsq = MakeRsqCodec({.head_dim = dim, .seed = 5, .centre = Centre::kWindow, .centre_window = 192});
  ExpectSameCodes(*rsq, EdgeKeys(384, dim, dim), DType::kFloat16);
  BalancedOptions balanced = RandomBalanced(dim, dim, false);
  balanced.centre_window = 128;
  ExpectSameCodes(*MakeBalancedCodec(balanced), EdgeKeys(256, dim, dim), DType::kFloat16);
}

TEST_P(EncodeTest, ZeroWindowsEqualTheCpu) {
  const int dim = GetParam();
  const std::vector<float> zeros(static_cast<size_t>(64) * dim, 0.0f);
  ExpectSameCodes(*MakeRsqCodec({.head_dim = dim}), zeros, DType::kFloat16);
  ExpectSameCodes(*MakeBalancedCodec(RandomBalanced(dim, dim, false)), zeros, DType::kFloat16);
}

INSTANTIATE_TEST_SUITE_P(HeadDims, EncodeTest, ::testing::ValuesIn(kTestHeadDims));

// The largest sums that the fixed point allows: a row along a column, at the ends of 16 bits.
TEST(EncodeBalancedProduct, WholeRangeOfTheFixedPoint) {
  constexpr int kDim = 64;
  BalancedOptions o = RandomBalanced(kDim, 7, false);
  std::fill(o.key_map.begin(), o.key_map.end(), 0.0f);
  for (int i = 0; i < kDim; ++i) o.key_map[static_cast<size_t>(i % 3) * kDim + i] = i % 2 != 0 ? -1.0f : 1.0f;
  std::vector<float> values(static_cast<size_t>(kWindowTokens) * kDim, 0.0f);
  for (int k = 0; k < kWindowTokens; ++k) values[static_cast<size_t>(k) * kDim + k % 3] = k % 5 == 0 ? -1.0f : 1.0f;
  ExpectSameCodes(*MakeBalancedCodec(o), values, DType::kFloat32);
}

// Two items of unlike strides in one launch.
TEST(EncodeBatch, ItemsOfOneLaunch) {
  constexpr int kDim = 96;
  const auto codec = MakeBalancedCodec(RandomBalanced(kDim, 3, true));
  const CodecTables tables = codec->Tables();
  const std::vector<float> a = Keys(192, kDim, 1), b = Keys(64, kDim, 2);
  const size_t row = kDim * sizeof(float);
  Codes codes[] = {{codec->layout(), 192}, {codec->layout(), 64}},
        expected[] = {{codec->layout(), 192}, {codec->layout(), 64}};
  codec->Encode({a.data(), row, DType::kFloat32}, 192, nullptr, expected[0].planes);
  codec->Encode({b.data(), row, DType::kFloat32}, 64, nullptr, expected[1].planes);
  cuda::EncodeItem items[2];
  for (int i = 0; i < 2; ++i) {
    items[i].codec = &tables;
    items[i].rows = reinterpret_cast<const uint8_t*>((i == 0 ? a : b).data());
    items[i].stride_bytes = row;
    items[i].out = codes[i].planes;
  }
  const cuda::EncodeUnit units[] = {{1, 0}, {0, 128}, {0, 0}, {0, 64}};
  cuda::RunOnHost(cuda::EncodeArgs{items, units, 4, kDim, tables.kind}, 9);
  EXPECT_TRUE(codes[0] == expected[0]);
  EXPECT_TRUE(codes[1] == expected[1]);
}

}  // namespace
}  // namespace seine
