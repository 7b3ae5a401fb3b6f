// From messages to dicts, and what messages have.
#include "engines/python/values/message_dict.h"

#include <google/protobuf/descriptor.h>

#include "absl/strings/str_cat.h"
#include "client/convert/convert.h"
#include "engines/python/values/arrays.h"
#include "engines/python/values/enum_words.h"
#include "engines/python/values/errors.h"
#include "seine/v1/common.pb.h"
#include "seine/v1/status.pb.h"

namespace seine::python {
namespace {

namespace pb = google::protobuf;

nb::object StatusOf(const v1::Status& status) {
  if (status.code() == 0) return nb::none();
  const nb::object parts = ErrorTuple(client::FromProto(status));
  nb::dict out;
  out["code"] = parts[0];
  out["message"] = parts[1];
  out["field"] = parts[2];
  out["reason"] = parts[3];
  return out;
}

nb::object TensorArray(const v1::Tensor& tensor, const std::string& name) {
  const auto dtype = static_cast<client::DType>(tensor.dtype());
  const bool known = tensor.dtype() != v1::D_TYPE_UNSPECIFIED && v1::DType_IsValid(tensor.dtype());
  uint64_t bytes = known ? client::SizeOf(dtype) : 0;
  bool fits = known;
  for (const int64_t dim : tensor.shape()) {
    fits = fits && dim >= 0 && !__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes);
  }
  if (!fits || bytes != tensor.raw().size()) {
    RaiseIfWrong(absl::InternalError(absl::StrCat("the answer is malformed: ", name, " is no tensor")));
  }
  return NewArray(dtype, {tensor.shape().data(), static_cast<size_t>(tensor.shape_size())}, tensor.raw().data());
}

nb::object PartOf(const pb::Message& part, const pb::FieldDescriptor& field) {
  if (field.message_type() == v1::Tensor::descriptor()) {
    return TensorArray(static_cast<const v1::Tensor&>(part), field.name());
  }
  if (field.message_type() == v1::Status::descriptor()) return StatusOf(static_cast<const v1::Status&>(part));
  return DictOf(part);
}

nb::object StringOf(const std::string& text, const pb::FieldDescriptor& field) {
  if (field.type() == pb::FieldDescriptor::TYPE_BYTES) return nb::bytes(text.data(), text.size());
  return nb::str(text.data(), text.size());
}

nb::object EnumWord(const pb::EnumDescriptor& type, int number) {
  const std::string word = WordOf(type, number);
  return word.empty() ? nb::none() : nb::object(nb::str(word.data(), word.size()));
}

// A field that is not repeated, or element `i` of one that is.
nb::object ValueOf(const pb::Message& message, const pb::FieldDescriptor* field, int i) {
  const pb::Reflection* r = message.GetReflection();
  const bool repeated = field->is_repeated();
  std::string scratch;
  using Type = pb::FieldDescriptor::CppType;
  switch (field->cpp_type()) {
#define SEINE_GET(type, name) \
  case Type::CPPTYPE_##type:  \
    return nb::cast(repeated ? r->GetRepeated##name(message, field, i) : r->Get##name(message, field))
    SEINE_GET(INT32, Int32);
    SEINE_GET(INT64, Int64);
    SEINE_GET(UINT32, UInt32);
    SEINE_GET(UINT64, UInt64);
    SEINE_GET(DOUBLE, Double);
    SEINE_GET(FLOAT, Float);
    SEINE_GET(BOOL, Bool);
#undef SEINE_GET
    case Type::CPPTYPE_ENUM:
      return EnumWord(*field->enum_type(),
                      repeated ? r->GetRepeatedEnumValue(message, field, i) : r->GetEnumValue(message, field));
    case Type::CPPTYPE_STRING:
      return StringOf(repeated ? r->GetRepeatedStringReference(message, field, i, &scratch)
                               : r->GetStringReference(message, field, &scratch),
                      *field);
    case Type::CPPTYPE_MESSAGE:
      return PartOf(repeated ? r->GetRepeatedMessage(message, field, i) : r->GetMessage(message, field), *field);
  }
  return nb::none();
}

nb::object FieldValue(const pb::Message& message, const pb::FieldDescriptor* field) {
  const pb::Reflection* r = message.GetReflection();
  if (field->is_repeated()) {
    nb::list out;
    for (int i = 0; i < r->FieldSize(message, field); ++i) out.append(ValueOf(message, field, i));
    return out;
  }
  if (field->has_presence() && !r->HasField(message, field)) return nb::none();
  return ValueOf(message, field, 0);
}

std::string FieldType(const pb::FieldDescriptor& field) {
  if (field.enum_type() != nullptr) return "word";
  if (field.message_type() != nullptr) return field.message_type() == v1::Tensor::descriptor() ? "array" : "dict";
  switch (field.cpp_type()) {
    case pb::FieldDescriptor::CPPTYPE_DOUBLE:
    case pb::FieldDescriptor::CPPTYPE_FLOAT:
      return "float";
    case pb::FieldDescriptor::CPPTYPE_BOOL:
      return "bool";
    case pb::FieldDescriptor::CPPTYPE_STRING:
      return field.type() == pb::FieldDescriptor::TYPE_BYTES ? "bytes" : "str";
    default:
      return "int";
  }
}

}  // namespace

nb::dict DictOf(const pb::Message& message) {
  nb::dict out;
  const pb::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    out[type.field(i)->name().c_str()] = FieldValue(message, type.field(i));
  }
  return out;
}

nb::dict SchemaOf(const pb::Descriptor& type) {
  nb::dict out;
  for (int i = 0; i < type.field_count(); ++i) {
    const pb::FieldDescriptor& field = *type.field(i);
    nb::dict entry;
    entry["type"] = FieldType(field);
    entry["repeated"] = field.is_repeated();
    entry["optional"] = !field.is_repeated() && field.has_presence();
    if (field.enum_type() != nullptr) {
      nb::list words;
      for (const std::string& word : WordsOf(*field.enum_type())) words.append(nb::str(word.c_str()));
      entry["enum"] = words;
    }
    if (FieldType(field) == "dict") entry["message"] = field.message_type()->name();
    out[field.name().c_str()] = entry;
  }
  return out;
}

}  // namespace seine::python
