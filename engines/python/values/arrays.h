// Arrays between Python and C++: any array of Python read where it lies, and numpy's made out of bytes. All needs the
// GIL.
#ifndef SEINE_ENGINES_PYTHON_VALUES_ARRAYS_H_
#define SEINE_ENGINES_PYTHON_VALUES_ARRAYS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>  // in every unit alike: without it a str is no std::string

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/types.h"

namespace seine::python {

namespace nb = nanobind;

// Imports numpy; called once, when the module is loaded.
void ImportNumpy();

class BufferView;  // of arrays.cc

// A dense row-major array of float32, float16, bfloat16 or int32, kept alive. In the host's memory, arrays that are
// none are copied into one: strided ones, big-endian ones, lists. Those in a CUDA device's memory are never copied.
class ArrayView {
 public:
  enum class Where : uint8_t { kHost, kAny };
  // Takes what has the buffer protocol or DLPack (numpy's arrays, torch's tensors) and what numpy.asarray takes. Where
  // kAny, also what DLPack says lies on a CUDA device, once its default stream waits for what has been enqueued there.
  // ValueError for another dtype, "name: dtype must be ...", and for a strided one on a device; what numpy raises for
  // what is no array.
  ArrayView(nb::handle array, absl::string_view name, Where where = Where::kHost);
  ArrayView(ArrayView&&) noexcept;
  ~ArrayView();

  client::DType dtype() const { return dtype_; }
  absl::Span<const int64_t> shape() const { return shape_; }
  const void* data() const { return data_; }
  bool on_device() const { return on_device_; }
  size_t bytes() const;
  // ValueError, "name: ...", beyond three dimensions.
  client::ConstTensor tensor(absl::string_view name) const;
  std::string ShapeText() const;  // "[2, 64]"

 private:
  bool TakeBuffer(nb::handle array);
  bool TakeDlpack(nb::handle array, absl::string_view name, Where where);
  void TakeNumpy(nb::handle array, absl::string_view name);
  // `strides` in elements.
  void Take(const void* data, client::DType dtype, absl::Span<const int64_t> strides);

  client::DType dtype_ = client::DType::kFloat32;
  std::vector<int64_t> shape_;
  const void* data_ = nullptr;
  bool on_device_ = false;
  // Who has the memory: the array itself, or a copy.
  std::unique_ptr<BufferView> buffer_;
  nb::ndarray<nb::ro> tensor_;
  std::unique_ptr<char[]> copy_;
};

// A new numpy array of `data`, which it takes over: no element is copied.
template <typename T>  // float, int32_t
nb::object ArrayOf(std::vector<T> data, absl::Span<const int64_t> shape);

// A new numpy array of a copy of `data`. bfloat16 comes as its bits, uint16, for .view(ml_dtypes.bfloat16).
nb::object NewArray(client::DType dtype, absl::Span<const int64_t> shape, const void* data);

// Positions as the wire wants them, an int32 array: `each_once`: ascending, each once. TypeError and ValueError open
// with `name`.
nb::object PositionsOf(nb::handle positions, absl::string_view name, bool each_once);

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_VALUES_ARRAYS_H_
