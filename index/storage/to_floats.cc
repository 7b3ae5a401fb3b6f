#include "index/storage/to_floats.h"

#include <cstdint>
#include <cstring>

#include "kernels/host.h"
#include "kernels/math.h"

namespace seine {
namespace {

constexpr size_t kRow = 16;  // what host::ToFloat takes at least

float FloatOf(DType dtype, const uint8_t* raw) {
  uint16_t bits;
  memcpy(&bits, raw, sizeof(bits));
  return dtype == DType::kFloat16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
}

// Returns true if an infinity or NaN is among fp16 elements. Instruction sets without a conversion of their own take
// these for large numbers (Highway's below AVX2), and what asks here wants to refuse them.
bool AnyNotFinite(const uint8_t* raw, size_t count) {
  constexpr uint16_t kExponent = 0x7C00;
  uint16_t any = 0;
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits;
    memcpy(&bits, raw + i * sizeof(bits), sizeof(bits));
    any |= static_cast<uint16_t>((bits & kExponent) == kExponent);
  }
  return any != 0;
}

}  // namespace

void ToFloats(DType dtype, const void* raw, size_t count, float* out) {
  const auto* bytes = static_cast<const uint8_t*>(raw);
  if (dtype == DType::kFloat32) {
    memcpy(out, bytes, count * sizeof(float));
    return;
  }
  const bool aligned = reinterpret_cast<uintptr_t>(raw) % sizeof(uint16_t) == 0;
  const bool by_vectors = aligned && (dtype != DType::kFloat16 || !AnyNotFinite(bytes, count));
  const size_t rows = by_vectors ? count / kRow : 0;
  host::ToFloat({bytes, kRow * SizeOf(dtype), dtype}, static_cast<int>(rows), kRow, out);
  for (size_t i = rows * kRow; i < count; ++i) out[i] = FloatOf(dtype, bytes + i * SizeOf(dtype));
}

}  // namespace seine
