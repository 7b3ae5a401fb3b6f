#include "service/config/yaml_message.h"

#include <map>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "profile/spelling.h"
#include "proto/fields/find_field.h"

namespace seine {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

absl::Status Wrong(absl::string_view path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// "CENTRE_" of CENTRE_UNSPECIFIED, the zero value that every enum of ours has.
std::string Prefix(const EnumDescriptor& type) {
  const std::string& zero = type.value(0)->name();
  return zero.substr(0, zero.rfind("UNSPECIFIED"));
}

// By any of its spellings, or the wire's whole name.
const EnumValueDescriptor* FindEnumValue(const EnumDescriptor& type, const std::string& text) {
  if (const int number = FindValue(type.name(), text); number != 0) return type.FindValueByNumber(number);
  const std::string upper = absl::AsciiStrToUpper(text);
  const EnumValueDescriptor* value = type.FindValueByName(upper);
  return value != nullptr ? value : type.FindValueByName(Prefix(type) + upper);
}

std::string ShortName(const EnumValueDescriptor& value) {
  return absl::AsciiStrToLower(value.name().substr(Prefix(*value.type()).size()));
}

absl::Status NoSuchValue(absl::string_view path, const EnumDescriptor& type, const YAML::Node& node) {
  return Wrong(path, absl::StrCat("no such ", type.name(), node.IsScalar() ? ": '" + node.Scalar() + "'" : "",
                                  "; there are ", ListValues(type.name())));
}

template <typename T, typename Set>
absl::Status Scalar(const YAML::Node& node, absl::string_view path, const char* what, Set set) {
  T value;
  if (!node.IsScalar() || !YAML::convert<T>::decode(node, value)) return Wrong(path, absl::StrCat("expected ", what));
  set(value);
  return absl::OkStatus();
}

absl::Status SetField(const YAML::Node& node, const FieldDescriptor& field, const std::string& path, Message* message) {
  const auto* reflection = message->GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return FromYaml(node, path, reflection->MutableMessage(message, &field));
    case FieldDescriptor::CPPTYPE_INT32:
      return Scalar<int32_t>(node, path, "a number", [&](int32_t v) { reflection->SetInt32(message, &field, v); });
    case FieldDescriptor::CPPTYPE_INT64:
      return Scalar<int64_t>(node, path, "a number", [&](int64_t v) { reflection->SetInt64(message, &field, v); });
    case FieldDescriptor::CPPTYPE_UINT64:
      return Scalar<uint64_t>(node, path, "a number", [&](uint64_t v) { reflection->SetUInt64(message, &field, v); });
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Scalar<double>(node, path, "a number", [&](double v) { reflection->SetDouble(message, &field, v); });
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Scalar<float>(node, path, "a number", [&](float v) { reflection->SetFloat(message, &field, v); });
    case FieldDescriptor::CPPTYPE_BOOL:
      return Scalar<bool>(node, path, "true or false", [&](bool v) { reflection->SetBool(message, &field, v); });
    case FieldDescriptor::CPPTYPE_STRING:
      return Scalar<std::string>(node, path, "text",
                                 [&](const std::string& v) { reflection->SetString(message, &field, v); });
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto* value = node.IsScalar() ? FindEnumValue(*field.enum_type(), node.Scalar()) : nullptr;
      if (value == nullptr) return NoSuchValue(path, *field.enum_type(), node);
      reflection->SetEnum(message, &field, value);
      return absl::OkStatus();
    }
    default:
      return Wrong(path, "cannot be set in a file");
  }
}

// The only lists that settings have.
absl::Status SetNumbers(const YAML::Node& node, const FieldDescriptor& field, const std::string& path,
                        Message* message) {
  if (!node.IsSequence()) return Wrong(path, "expected a list of numbers");
  for (size_t i = 0; i < node.size(); ++i) {
    const std::string at = absl::StrCat(path, "[", i, "]");
    const auto whole = [&](int32_t v) { message->GetReflection()->AddInt32(message, &field, v); };
    const auto number = [&](double v) { message->GetReflection()->AddDouble(message, &field, v); };
    const absl::Status set = field.cpp_type() == FieldDescriptor::CPPTYPE_INT32
                                 ? Scalar<int32_t>(node[i], at, "a whole number", whole)
                                 : Scalar<double>(node[i], at, "a number", number);
    if (!set.ok()) return set;
  }
  return absl::OkStatus();
}

void EmitNumbers(const Message& message, const FieldDescriptor& field, YAML::Emitter* out) {
  const auto* reflection = message.GetReflection();
  *out << YAML::Flow << YAML::BeginSeq;
  for (int i = 0; i < reflection->FieldSize(message, &field); ++i) {
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
      *out << reflection->GetRepeatedInt32(message, &field, i);
    } else {
      *out << reflection->GetRepeatedDouble(message, &field, i);
    }
  }
  *out << YAML::EndSeq;
}

void EmitField(const Message& message, const FieldDescriptor& field, YAML::Emitter* out) {
  const auto* reflection = message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      ToYaml(reflection->GetMessage(message, &field), out);
      break;
    case FieldDescriptor::CPPTYPE_INT32:
      *out << reflection->GetInt32(message, &field);
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      *out << reflection->GetInt64(message, &field);
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      *out << reflection->GetUInt64(message, &field);
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      *out << reflection->GetDouble(message, &field);
      break;
    case FieldDescriptor::CPPTYPE_FLOAT:
      *out << reflection->GetFloat(message, &field);
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      *out << reflection->GetBool(message, &field);
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      *out << reflection->GetString(message, &field);
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      *out << ShortName(*reflection->GetEnum(message, &field));
      break;
    default:
      *out << YAML::Null;
  }
}

}  // namespace

absl::Status FromYaml(const YAML::Node& node, absl::string_view path, Message* message) {
  if (!node.IsMap()) return Wrong(path, "expected keys and values");
  std::map<const FieldDescriptor*, std::string> given;
  for (const auto& entry : node) {
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "?";
    const std::string child = absl::StrCat(path, ".", key);
    const FieldDescriptor* field = FindField(*message->GetDescriptor(), key);
    if (field == nullptr) return Wrong(child, "unknown key");
    if (const auto [other, is_new] = given.emplace(field, key); !is_new) {
      return Wrong(child, absl::StrCat("the same setting as ", other->second, ", which is given as well"));
    }
    const auto set = field->is_repeated() ? SetNumbers : SetField;
    if (auto s = set(entry.second, *field, child, message); !s.ok()) return s;
  }
  return absl::OkStatus();
}

void ToYaml(const Message& message, YAML::Emitter* out) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  *out << YAML::BeginMap;
  for (const FieldDescriptor* field : fields) {
    *out << YAML::Key << field->name() << YAML::Value;
    (field->is_repeated() ? EmitNumbers : EmitField)(message, *field, out);
  }
  *out << YAML::EndMap;
}

}  // namespace seine
