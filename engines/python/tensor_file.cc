#include "engines/python/tensor_file.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>  // in every unit alike: without it a str is no std::string

#include <memory>
#include <string>
#include <utility>

#include "profile/io/tensor_file.h"

namespace seine::python {
namespace {

namespace nb = nanobind;

// A text of a file, which may be no UTF-8.
nb::object TextOf(absl::string_view text) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

class Tensors {
 public:
  Tensors(nb::handle path, bool mapped) {
    const std::string text = FileName(path);
    absl::StatusOr<TensorFile> file = absl::InternalError("");
    {
      const nb::gil_scoped_release release;
      file = mapped ? TensorFile::Open(text) : TensorFile::Read(text);
    }
    RaiseIfWrongFile(file.status());
    file_ = std::make_shared<const TensorFile>(*std::move(file));
  }

  nb::list Names() const {
    nb::list names;
    for (const std::string& name : file_->names()) {
      if (file_->Get(name).ok()) names.append(TextOf(name));
    }
    return names;
  }
  nb::dict Metadata() const {
    nb::dict metadata;
    for (const auto& [key, value] : file_->metadata()) metadata[TextOf(key)] = TextOf(value);
    return metadata;
  }
  nb::tuple Get(const std::string& name) const {
    const absl::StatusOr<TensorFile::Tensor> tensor = file_->Get(name);
    if (absl::IsNotFound(tensor.status())) throw nb::key_error(name.c_str());
    RaiseIfWrongFile(tensor.status());
    nb::list shape;
    for (const int64_t size : tensor->shape) shape.append(size);
    // The file's bytes live as long as an array of them does.
    using Kept = std::shared_ptr<const TensorFile>;
    const nb::capsule owner(new Kept(file_), [](void* kept) noexcept { delete static_cast<Kept*>(kept); });
    const size_t bytes = tensor->bytes;
    nb::ndarray<nb::numpy, const uint8_t> array(tensor->data, 1, &bytes, owner);
    return nb::make_tuple(TextOf(TensorFile::NameOf(tensor->type)), shape, array.cast());
  }

 private:
  std::shared_ptr<const TensorFile> file_;
};

}  // namespace

std::string FileName(nb::handle path) {
  const nb::bytes name(nb::module_::import_("os").attr("fsencode")(path));
  return {name.c_str(), name.size()};
}

void RaiseIfWrongFile(const absl::Status& status) {
  if (status.ok()) return;
  PyObject* type = PyExc_OSError;
  if (absl::IsNotFound(status)) type = PyExc_FileNotFoundError;
  if (absl::IsPermissionDenied(status)) type = PyExc_PermissionError;
  if (absl::IsInvalidArgument(status) || absl::IsDataLoss(status)) type = PyExc_ValueError;
  PyErr_SetObject(type, TextOf(status.message()).ptr());
  nb::raise_python_error();
}

void AddTensorFile(nb::module_& module) {
  using nb::arg;
  nb::class_<Tensors>(module, "TensorFile")
      .def(nb::init<nb::handle, bool>(), arg("path"), arg("mapped") = false)
      .def_prop_ro("names", &Tensors::Names)
      .def_prop_ro("metadata", &Tensors::Metadata)
      .def("get", &Tensors::Get, arg("name"));
}

}  // namespace seine::python
