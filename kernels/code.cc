// Lays the planes of a run of codes out in one buffer.
#include "kernels/code.h"

namespace seine {
namespace {

size_t Align(size_t bytes) { return (bytes + 63) & ~size_t{63}; }

// Walks the planes in order; `place` gets each plane's size and returns nothing of interest to a pure size count.
template <typename Place>
void ForEachPlane(const CodeLayout& layout, int num_keys, Place place) {
  const size_t n = num_keys;
  const size_t centres = layout.centre_tokens > 0 ? n / layout.centre_tokens : 0;
  place(0, n * layout.coarse_bytes);
  place(1, n);
  place(2, n / kWindowTokens * sizeof(uint32_t));
  place(3, centres * layout.head_dim);
  place(4, centres * sizeof(float));
  place(5, n * layout.fine_bytes);
  place(6, n / kWindowTokens * sizeof(uint32_t));
}

}  // namespace

size_t CodeBytes(const CodeLayout& layout, int num_keys) {
  size_t total = 0;
  ForEachPlane(layout, num_keys, [&](int, size_t bytes) { total += Align(bytes); });
  return total;
}

CodePlanes PlanesAt(const CodeLayout& layout, int num_keys, uint8_t* buffer) {
  uint8_t* at[7];
  ForEachPlane(layout, num_keys, [&](int plane, size_t bytes) {
    at[plane] = bytes > 0 ? buffer : nullptr;
    buffer += Align(bytes);
  });
  return {at[0],
          at[1],
          reinterpret_cast<uint32_t*>(at[2]),
          reinterpret_cast<int8_t*>(at[3]),
          reinterpret_cast<float*>(at[4]),
          at[5],
          reinterpret_cast<uint32_t*>(at[6])};
}

}  // namespace seine
