#include "engines/python/values/arrays.h"

#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace seine::python {

// The buffer of an object that has one, while this lives. Only what Python's stable ABI holds is used.
class BufferView {
 public:
  BufferView(nb::handle object, int flags) : taken_(PyObject_GetBuffer(object.ptr(), &buffer_, flags) == 0) {}
  BufferView(const BufferView&) = delete;
  ~BufferView() {
    if (taken_) PyBuffer_Release(&buffer_);
  }

  bool taken() const { return taken_; }  // else Python's error is set
  const Py_buffer& buffer() const {
    if (!taken_) nb::raise_python_error();
    return buffer_;
  }

 private:
  Py_buffer buffer_;
  const bool taken_;
};

namespace {

// What of numpy is used; made once and never freed, as the module is never unloaded.
struct Numpy {
  nb::object asarray, empty, ndarray, unique, uint16, int32;
  nb::object dtypes[5];  // by client::DType
};
Numpy* numpy = nullptr;

std::optional<client::DType> DTypeOfFormat(const char* format) {
  if (format == nullptr || format[0] == '\0') return std::nullopt;
  if (format[0] == '<' || format[0] == '=') ++format;
  if (format[1] != '\0') return std::nullopt;
  switch (format[0]) {
    case 'f':
      return client::DType::kFloat32;
    case 'e':
      return client::DType::kFloat16;
    case 'i':
      return client::DType::kInt32;
    default:
      return std::nullopt;
  }
}

std::optional<client::DType> DTypeOfDlpack(const nb::dlpack::dtype& dtype) {
  if (dtype.lanes != 1) return std::nullopt;
  const auto code = static_cast<nb::dlpack::dtype_code>(dtype.code);
  if (code == nb::dlpack::dtype_code::Float && dtype.bits == 32) return client::DType::kFloat32;
  if (code == nb::dlpack::dtype_code::Float && dtype.bits == 16) return client::DType::kFloat16;
  if (code == nb::dlpack::dtype_code::Bfloat && dtype.bits == 16) return client::DType::kBFloat16;
  if (code == nb::dlpack::dtype_code::Int && dtype.bits == 32) return client::DType::kInt32;
  return std::nullopt;
}

bool IsCuda(int device_type) {
  constexpr int kManaged = 13;  // kDLCUDAManaged
  return device_type == nb::device::cuda::value || device_type == kManaged;
}

// Writes the elements of dimensions [dim, end) to `out`, which moves on.
void CopyStrided(const char* data, absl::Span<const int64_t> shape, absl::Span<const int64_t> strides, size_t size,
                 char** out) {
  if (shape.empty()) {
    std::memcpy(*out, data, size);
    *out += size;
    return;
  }
  for (int64_t i = 0; i < shape[0]; ++i) {
    CopyStrided(data + i * strides[0] * static_cast<int64_t>(size), shape.subspan(1), strides.subspan(1), size, out);
  }
}

bool IsDense(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides) {
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

// An object of Python that owns elements, and lends them to an array by the buffer protocol.
struct Elements {
  using Values = std::variant<std::vector<float>, std::vector<int32_t>>;

  static nb::object Of(Values values) {
    nb::object out = nb::steal(PyType_GenericAlloc(type, 0));
    if (!out.is_valid()) nb::raise_python_error();
    new (&reinterpret_cast<Elements*>(out.ptr())->values) Values(std::move(values));
    return out;
  }

  static int Lend(PyObject* self, Py_buffer* view, int flags) {
    return std::visit(
        [&](auto& values) {
          const auto bytes = static_cast<Py_ssize_t>(values.size() * sizeof(values[0]));
          return PyBuffer_FillInfo(view, self, values.data(), bytes, /*readonly=*/0, flags);
        },
        reinterpret_cast<Elements*>(self)->values);
  }

  static void Free(PyObject* self) {
    reinterpret_cast<Elements*>(self)->values.~Values();
    PyObject_Free(self);
    Py_DECREF(type);
  }

  static void MakeType() {
    static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(&Free)},
                                  {Py_bf_getbuffer, reinterpret_cast<void*>(&Lend)},
                                  {0, nullptr}};
    static PyType_Spec spec = {"seine_kv._native.Elements", sizeof(Elements), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    if (type == nullptr) nb::raise_python_error();
  }

  static PyTypeObject* type;  // made once and never freed

  PyObject_HEAD Values values;
};
PyTypeObject* Elements::type = nullptr;

nb::object TupleOf(absl::Span<const int64_t> shape) {
  nb::object dims = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  for (size_t i = 0; i < shape.size(); ++i) {
    if (PyTuple_SetItem(dims.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(shape[i])) != 0)
      nb::raise_python_error();
  }
  return dims;
}

std::string StrOf(nb::handle object) { return nb::cast<std::string>(nb::str(object)); }

}  // namespace

void ImportNumpy() {
  if (numpy != nullptr) return;
  const nb::module_ module = nb::module_::import_("numpy");
  auto* made = new Numpy{module.attr("asarray"),
                         module.attr("empty"),
                         module.attr("ndarray"),
                         module.attr("unique"),
                         module.attr("uint16"),
                         module.attr("int32"),
                         {}};
  const nb::object dtype = module.attr("dtype");
  made->dtypes[static_cast<int>(client::DType::kFloat32)] = dtype("<f4");
  made->dtypes[static_cast<int>(client::DType::kFloat16)] = dtype("<f2");
  made->dtypes[static_cast<int>(client::DType::kBFloat16)] = dtype("<u2");
  made->dtypes[static_cast<int>(client::DType::kInt32)] = dtype("<i4");
  Elements::MakeType();
  numpy = made;
}

ArrayView::ArrayView(ArrayView&&) noexcept = default;
ArrayView::~ArrayView() = default;

ArrayView::ArrayView(nb::handle array, absl::string_view name, Where where) {
  const bool taken = PyObject_CheckBuffer(array.ptr()) != 0 ? TakeBuffer(array) : TakeDlpack(array, name, where);
  if (!taken) TakeNumpy(array, name);
}

bool ArrayView::TakeBuffer(nb::handle array) {
  buffer_ = std::make_unique<BufferView>(array, PyBUF_FULL_RO);
  if (!buffer_->taken()) {  // a dtype that the protocol has no letter for
    PyErr_Clear();
    return false;
  }
  const Py_buffer& buffer = buffer_->buffer();
  const std::optional<client::DType> dtype = DTypeOfFormat(buffer.format);
  if (!dtype) return false;
  shape_.assign(buffer.shape, buffer.shape + buffer.ndim);
  std::vector<int64_t> strides(buffer.ndim);
  for (int i = 0; i < buffer.ndim; ++i) {
    if (buffer.strides[i] % buffer.itemsize != 0) return false;
    strides[i] = buffer.strides[i] / buffer.itemsize;
  }
  Take(buffer.buf, *dtype, strides);
  return true;
}

bool ArrayView::TakeDlpack(nb::handle array, absl::string_view name, Where where) {
  if (!nb::hasattr(array, "__dlpack__") || !nb::try_cast(array, tensor_)) return false;
  on_device_ = where == Where::kAny && IsCuda(tensor_.device_type());
  if (on_device_) {
    // Once more, with the stream that we read on: CUDA's legacy default stream, which DLPack knows as 1.
    const nb::object capsule = array.attr("__dlpack__")(nb::arg("stream") = 1);
    if (!nb::try_cast(capsule, tensor_)) throw nb::value_error(absl::StrCat(name, ": is no tensor").c_str());
  } else if (tensor_.device_type() != nb::device::cpu::value) {
    return false;
  }
  const std::optional<client::DType> dtype = DTypeOfDlpack(tensor_.dtype());
  if (!dtype && on_device_) {
    throw nb::value_error(absl::StrCat(name, ": dtype must be float32, float16 or bfloat16 on a device").c_str());
  }
  if (!dtype) return false;
  dtype_ = *dtype;
  shape_.resize(tensor_.ndim());
  std::vector<int64_t> strides(tensor_.ndim());
  for (size_t i = 0; i < tensor_.ndim(); ++i) {
    shape_[i] = static_cast<int64_t>(tensor_.shape(i));
    strides[i] = tensor_.stride(i);
  }
  if (on_device_ && bytes() > 0 && !IsDense(shape_, strides)) {
    throw nb::value_error(absl::StrCat(name, ": must be contiguous on a device").c_str());
  }
  Take(tensor_.data(), *dtype, strides);
  return true;
}

void ArrayView::TakeNumpy(nb::handle array, absl::string_view name) {
  nb::object dense = numpy->asarray(array);
  const std::string dtype = StrOf(dense.attr("dtype").attr("name"));
  const bool bfloat16 = dtype == "bfloat16";
  if (bfloat16) {
    dense = dense.attr("view")(numpy->uint16);
  } else if (dtype != "float32" && dtype != "float16" && dtype != "int32") {
    const std::string text = absl::StrCat(name, ": dtype must be float32, float16 or bfloat16, not ", dtype);
    throw nb::value_error(text.c_str());
  } else {
    dense = dense.attr("astype")(dense.attr("dtype").attr("newbyteorder")("<"));
  }
  dense = dense.attr("copy")("C");
  buffer_ = std::make_unique<BufferView>(dense, PyBUF_FULL_RO);
  const Py_buffer& buffer = buffer_->buffer();
  shape_.assign(buffer.shape, buffer.shape + buffer.ndim);
  data_ = buffer.buf;
  dtype_ = bfloat16 ? client::DType::kBFloat16 : *DTypeOfFormat(buffer.format);
}

void ArrayView::Take(const void* data, client::DType dtype, absl::Span<const int64_t> strides) {
  dtype_ = dtype;
  data_ = data;
  if (IsDense(shape_, strides) || bytes() == 0) return;
  copy_ = std::make_unique<char[]>(bytes());
  char* out = copy_.get();
  CopyStrided(static_cast<const char*>(data), shape_, strides, client::SizeOf(dtype), &out);
  data_ = copy_.get();
}

size_t ArrayView::bytes() const {
  size_t bytes = client::SizeOf(dtype_);
  for (const int64_t dim : shape_) bytes *= static_cast<size_t>(dim);
  return bytes;
}

client::ConstTensor ArrayView::tensor(absl::string_view name) const {
  client::ConstTensor tensor{data_, dtype_, {}, on_device_};
  switch (shape_.size()) {
    case 0:
      break;
    case 1:
      tensor.shape = {shape_[0]};
      break;
    case 2:
      tensor.shape = {shape_[0], shape_[1]};
      break;
    case 3:
      tensor.shape = {shape_[0], shape_[1], shape_[2]};
      break;
    default: {
      const std::string text = absl::StrCat(name, ": at most three dimensions, not ", ShapeText());
      throw nb::value_error(text.c_str());
    }
  }
  return tensor;
}

std::string ArrayView::ShapeText() const { return absl::StrCat("[", absl::StrJoin(shape_, ", "), "]"); }

nb::object NewArray(client::DType dtype, absl::Span<const int64_t> shape, const void* data) {
  nb::object array = numpy->empty(TupleOf(shape), numpy->dtypes[static_cast<int>(dtype)]);
  size_t bytes = client::SizeOf(dtype);
  for (const int64_t dim : shape) bytes *= static_cast<size_t>(dim);
  if (bytes == 0) return array;
  std::memcpy(BufferView(array, PyBUF_WRITABLE).buffer().buf, data, bytes);
  return array;
}

template <typename T>
nb::object ArrayOf(std::vector<T> data, absl::Span<const int64_t> shape) {
  const nb::object& dtype =
      numpy->dtypes[static_cast<int>(std::is_same_v<T, float> ? client::DType::kFloat32 : client::DType::kInt32)];
  if (data.empty()) return numpy->empty(TupleOf(shape), dtype);
  return numpy->ndarray(TupleOf(shape), dtype, Elements::Of(std::move(data)));
}
template nb::object ArrayOf(std::vector<float>, absl::Span<const int64_t>);
template nb::object ArrayOf(std::vector<int32_t>, absl::Span<const int64_t>);

nb::object PositionsOf(nb::handle positions, absl::string_view name, bool each_once) {
  nb::object array = numpy->asarray(positions);
  const std::string kind = StrOf(array.attr("dtype").attr("kind"));
  const bool empty = nb::cast<int64_t>(array.attr("size")) == 0;
  if (nb::cast<int>(array.attr("ndim")) != 1 || (!empty && kind != "i" && kind != "u")) {
    const std::string text =
        absl::StrCat(name, ": must be positions, one array of integers, not ", StrOf(array.attr("dtype")), " ",
                     StrOf(nb::steal(PySequence_List(nb::object(array.attr("shape")).ptr()))));
    throw nb::type_error(text.c_str());
  }
  if (!empty) {
    const nb::object least = array.attr("min")(), most = array.attr("max")();
    const nb::int_ zero(0), limit(int64_t{1} << 31);
    if (least < zero || most >= limit) {
      const std::string text =
          absl::StrCat(name, ": positions must lie in [0, 2^31), not ", StrOf(least), " to ", StrOf(most));
      throw nb::value_error(text.c_str());
    }
  }
  if (each_once) array = numpy->unique(array);
  return array.attr("astype")(numpy->int32);
}

}  // namespace seine::python
