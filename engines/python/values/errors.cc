#include "engines/python/values/errors.h"

#include "absl/strings/ascii.h"
#include "client/client.h"
#include "client/convert/convert.h"
#include "service/fields/error.h"

namespace seine::python {
namespace {

nb::object* native_error = nullptr;  // the exception's class; made once and never freed

// Dtypes in the words that callers use: D_TYPE_FLOAT16 becomes float16.
std::string InWords(absl::string_view message) {
  constexpr absl::string_view kPrefix = "D_TYPE_";
  std::string out;
  for (size_t at = message.find(kPrefix); at != absl::string_view::npos; at = message.find(kPrefix)) {
    out.append(message.data(), at);
    message.remove_prefix(at + kPrefix.size());
    size_t end = 0;
    while (end < message.size() && absl::ascii_isalnum(message[end])) out += absl::ascii_tolower(message[end++]);
    message.remove_prefix(end);
  }
  return out.append(message.data(), message.size());
}

}  // namespace

void AddNativeError(nb::module_& module) {
  static constexpr char kDoc[] =
      "What a call of Seine ended with. code: a gRPC code's name, such as \"NOT_FOUND\"; field: the request's field "
      "that "
      "is wrong, or \"\"; reason: a word for programs, such as \"SHAPE_MISMATCH\", or \"\"; retry_delay: seconds that "
      "the server asks to wait before the call is made again, or 0.";
  native_error = new nb::object(
      nb::steal(PyErr_NewExceptionWithDoc("seine_kv._native.NativeError", kDoc, PyExc_Exception, nullptr)));
  module.attr("NativeError") = *native_error;
}

nb::object ErrorTuple(const absl::Status& status) {
  if (status.ok()) return nb::none();
  return nb::make_tuple(absl::StatusCodeToString(status.code()).c_str(), InWords(status.message()).c_str(),
                        client::FieldOf(status).c_str(), client::ReasonOf(status).c_str(),
                        absl::ToDoubleSeconds(client::RetryDelayOf(status)));
}

void ThrowValueError(const std::string& text) { throw nb::value_error(text.c_str()); }

void RaiseIfWrong(const absl::Status& status) {
  if (status.ok()) return;
  const nb::object error = (*native_error)(InWords(status.message()).c_str());
  error.attr("code") = absl::StatusCodeToString(status.code()).c_str();
  error.attr("field") = client::FieldOf(status).c_str();
  error.attr("reason") = client::ReasonOf(status).c_str();
  error.attr("retry_delay") = absl::ToDoubleSeconds(client::RetryDelayOf(status));
  PyErr_SetObject(native_error->ptr(), error.ptr());
  nb::raise_python_error();
}

absl::Status AsClientHasIt(const absl::Status& status) {
  if (status.ok()) return status;
  v1::Status wire;
  seine::ToProto(status, &wire);
  return client::FromProto(wire);
}

}  // namespace seine::python
