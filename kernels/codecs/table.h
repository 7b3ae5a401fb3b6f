// A plain view of one of a codec's tables, in its own memory or on a device.
#ifndef SEINE_KERNELS_CODECS_TABLE_H_
#define SEINE_KERNELS_CODECS_TABLE_H_

#include <cstdint>

namespace seine {

template <typename T>
struct Table {
  const T* data = nullptr;
  uint32_t size = 0;  // elements
};
template <typename T>
Table(const T*, uint32_t) -> Table<T>;  // implied, but for clang 14

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_TABLE_H_
