// Lays the planes of a run of codes out in buffers.
#include "kernels/codecs/code.h"

namespace seine {
namespace {

// Hands out 64-byte aligned pieces of a buffer.
struct Cursor {
  uint8_t* at;
  size_t used = 0;
  template <typename T>
  void Take(size_t bytes, T** plane) {
    *plane = bytes > 0 && at != nullptr ? reinterpret_cast<T*>(at + used) : nullptr;
    used += (bytes + 63) & ~size_t{63};
  }
};

size_t PlacePart(const CodeLayout& layout, int num_keys, CodePart part, uint8_t* buffer, CodePlanes* p) {
  const size_t n = num_keys, windows = n / kWindowTokens;
  const size_t centres = layout.centre_window > 0 ? n / layout.centre_window : 0;
  Cursor cursor{buffer};
  if (part == CodePart::kScan) {
    cursor.Take(n * layout.coarse_bytes, &p->coarse);
    cursor.Take(n, &p->factor);
    cursor.Take(windows * sizeof(uint32_t), &p->factor_base);
    cursor.Take(centres * layout.head_dim, &p->centre);
    cursor.Take(centres * sizeof(float), &p->centre_scale);
  } else {
    cursor.Take(n * layout.fine_bytes, &p->fine);
    cursor.Take(windows * sizeof(uint32_t), &p->fine_base);
  }
  return cursor.used;
}

}  // namespace

size_t CodeBytes(const CodeLayout& layout, int num_keys, CodePart part) {
  CodePlanes unused;
  return PlacePart(layout, num_keys, part, nullptr, &unused);
}

CodePlanes PlanesFrom(const CodeLayout& layout, CodePlanes planes, int64_t first) {
  planes.coarse += first * layout.coarse_bytes;
  planes.factor += first;
  planes.factor_base += first / kWindowTokens;
  if (planes.centre != nullptr) {
    planes.centre += first / layout.centre_window * layout.head_dim;
    planes.centre_scale += first / layout.centre_window;
  }
  planes.fine += first * layout.fine_bytes;
  planes.fine_base += first / kWindowTokens;
  return planes;
}

void PlacePlanes(const CodeLayout& layout, int num_keys, CodePart part, uint8_t* buffer, CodePlanes* planes) {
  PlacePart(layout, num_keys, part, buffer, planes);
}

}  // namespace seine
