#include "tests/service/contract/fields.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "seine/v1/common.pb.h"

namespace seine::test {
namespace {

using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kMostElements = 2;

void Visit(const Message& message, FieldPlace* at, std::vector<FieldPlace>* out) {
  const Reflection* r = message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const Descriptor* field = message.GetDescriptor()->field(i);
    const bool nested = field->cpp_type() == Descriptor::CPPTYPE_MESSAGE;
    const auto* oneof = field->real_containing_oneof();
    if (oneof != nullptr && r->HasOneof(message, oneof) && !r->HasField(message, field)) continue;
    const int size = field->is_repeated() ? std::min(r->FieldSize(message, field), kMostElements) : 1;
    for (int e = 0; e < size; ++e) {
      at->steps.emplace_back(field, field->is_repeated() ? e : -1);
      if (!nested) {
        out->push_back(*at);
      } else if (field->is_repeated()) {
        Visit(r->GetRepeatedMessage(message, field, e), at, out);
      } else if (r->HasField(message, field)) {
        Visit(r->GetMessage(message, field), at, out);
      }
      at->steps.pop_back();
    }
  }
}

Message* OwnerOf(const FieldPlace& place, Message* message) {
  for (size_t i = 0; i + 1 < place.steps.size(); ++i) {
    const auto& [field, element] = place.steps[i];
    const Reflection* r = message->GetReflection();
    message = element < 0 ? r->MutableMessage(message, field) : r->MutableRepeatedMessage(message, field, element);
  }
  return message;
}

const Message* OwnerOf(const FieldPlace& place, const Message& message) {
  const Message* owner = &message;
  for (size_t i = 0; i + 1 < place.steps.size(); ++i) {
    const auto& [field, element] = place.steps[i];
    const Reflection* r = owner->GetReflection();
    owner = element < 0 ? &r->GetMessage(*owner, field) : &r->GetRepeatedMessage(*owner, field, element);
  }
  return owner;
}

// Sets by the two setters of a type.
template <typename T, typename Set, typename SetRepeated>
void Put(const FieldPlace& place, T value, Set set, SetRepeated set_repeated, Message* message) {
  Message* owner = OwnerOf(place, message);
  const Reflection* r = owner->GetReflection();
  const auto& [field, element] = place.steps.back();
  element < 0 ? (r->*set)(owner, field, value) : (r->*set_repeated)(owner, field, element, value);
}

template <typename T>
bool Fits(Integer value) {
  return value >= std::numeric_limits<T>::min() && value <= std::numeric_limits<T>::max();
}

void Collect(const google::protobuf::Descriptor* type, std::set<const google::protobuf::Descriptor*>* seen,
             std::set<std::string>* out) {
  if (!seen->insert(type).second) return;
  for (int i = 0; i < type->field_count(); ++i) {
    if (IsInteger(type->field(i))) out->insert(type->field(i)->full_name());
    if (type->field(i)->message_type() != nullptr) Collect(type->field(i)->message_type(), seen, out);
  }
}

bool TensorIsFinite(const v1::Tensor& tensor) {
  for (size_t i = 0; tensor.dtype() == v1::D_TYPE_FLOAT32 && i + 4 <= tensor.raw().size(); i += 4) {
    float value;
    memcpy(&value, tensor.raw().data() + i, 4);
    if (!std::isfinite(value)) return false;
  }
  for (size_t i = 0; tensor.dtype() == v1::D_TYPE_FLOAT16 && i + 2 <= tensor.raw().size(); i += 2) {
    uint16_t half;
    memcpy(&half, tensor.raw().data() + i, 2);
    if ((half & 0x7C00) == 0x7C00) return false;
  }
  return true;
}

}  // namespace

std::string FieldPlace::path() const {
  std::string out;
  for (const auto& [field, element] : steps) {
    absl::StrAppend(&out, out.empty() ? "" : ".", field->name());
    if (element >= 0) absl::StrAppend(&out, "[", element, "]");
  }
  return out;
}

std::string FieldPlace::rule() const {
  std::string out;
  for (const auto& [field, element] : steps) absl::StrAppend(&out, out.empty() ? "" : ".", field->name());
  return out;
}

std::vector<FieldPlace> ScalarsOf(const Message& message) {
  std::vector<FieldPlace> out;
  FieldPlace at;
  Visit(message, &at, &out);
  return out;
}

bool IsInteger(const Descriptor* field) {
  switch (field->cpp_type()) {
    case Descriptor::CPPTYPE_INT32:
    case Descriptor::CPPTYPE_INT64:
    case Descriptor::CPPTYPE_UINT32:
    case Descriptor::CPPTYPE_UINT64:
      return true;
    default:
      return false;
  }
}

bool IsFloat(const Descriptor* field) {
  return field->cpp_type() == Descriptor::CPPTYPE_FLOAT || field->cpp_type() == Descriptor::CPPTYPE_DOUBLE;
}

Integer IntegerAt(const FieldPlace& place, const Message& message) {
  const Message* owner = OwnerOf(place, message);
  const Reflection* r = owner->GetReflection();
  const auto& [field, element] = place.steps.back();
  switch (field->cpp_type()) {
    case Descriptor::CPPTYPE_INT32:
      return element < 0 ? r->GetInt32(*owner, field) : r->GetRepeatedInt32(*owner, field, element);
    case Descriptor::CPPTYPE_INT64:
      return element < 0 ? r->GetInt64(*owner, field) : r->GetRepeatedInt64(*owner, field, element);
    default:
      return element < 0 ? r->GetUInt64(*owner, field) : r->GetRepeatedUInt64(*owner, field, element);
  }
}

bool IsGiven(const FieldPlace& place, const Message& message) {
  if (!place.field()->has_presence()) return place.field()->is_repeated() || IntegerAt(place, message) != 0;
  const Message* owner = OwnerOf(place, message);
  return owner->GetReflection()->HasField(*owner, place.field());
}

bool SetInteger(const FieldPlace& place, Integer value, Message* message) {
  switch (place.field()->cpp_type()) {
    case Descriptor::CPPTYPE_INT32:
      if (!Fits<int32_t>(value)) return false;
      Put(place, static_cast<int32_t>(value), &Reflection::SetInt32, &Reflection::SetRepeatedInt32, message);
      return true;
    case Descriptor::CPPTYPE_INT64:
      if (!Fits<int64_t>(value)) return false;
      Put(place, static_cast<int64_t>(value), &Reflection::SetInt64, &Reflection::SetRepeatedInt64, message);
      return true;
    case Descriptor::CPPTYPE_UINT64:
      if (!Fits<uint64_t>(value)) return false;
      Put(place, static_cast<uint64_t>(value), &Reflection::SetUInt64, &Reflection::SetRepeatedUInt64, message);
      return true;
    default:
      return false;
  }
}

void SetFloat(const FieldPlace& place, double value, Message* message) {
  if (place.field()->cpp_type() == Descriptor::CPPTYPE_DOUBLE) {
    return Put(place, value, &Reflection::SetDouble, &Reflection::SetRepeatedDouble, message);
  }
  Put(place, static_cast<float>(value), &Reflection::SetFloat, &Reflection::SetRepeatedFloat, message);
}

void SetEnum(const FieldPlace& place, int value, Message* message) {
  Put(place, value, &Reflection::SetEnumValue, &Reflection::SetRepeatedEnumValue, message);
}

void SetBool(const FieldPlace& place, bool value, Message* message) {
  Put(place, value, &Reflection::SetBool, &Reflection::SetRepeatedBool, message);
}

void SetString(const FieldPlace& place, const std::string& value, Message* message) {
  Message* owner = OwnerOf(place, message);
  const Reflection* r = owner->GetReflection();
  const auto& [field, element] = place.steps.back();
  element < 0 ? r->SetString(owner, field, value) : r->SetRepeatedString(owner, field, element, value);
}

std::set<std::string> IntegersBelow(const google::protobuf::Descriptor* type) {
  std::set<const google::protobuf::Descriptor*> seen;
  std::set<std::string> out;
  Collect(type, &seen, &out);
  return out;
}

bool PathExists(const google::protobuf::Descriptor* type, const std::string& path) {
  const std::vector<std::string> parts = absl::StrSplit(path, '.');
  for (const std::string& part : parts) {
    if (type == nullptr) return false;
    const size_t bracket = part.find('[');
    const Descriptor* field = type->FindFieldByName(part.substr(0, bracket));
    if (field == nullptr) return false;
    type = field->message_type();
    const bool tensor = type == v1::Tensor::descriptor();
    if (bracket != std::string::npos && !field->is_repeated() && !tensor) return false;
  }
  return true;
}

const v1::Status* FirstFailure(const Message& answer) {
  if (answer.GetDescriptor() == v1::Status::descriptor()) {
    const auto* status = static_cast<const v1::Status*>(&answer);
    return status->code() != 0 ? status : nullptr;
  }
  const Reflection* r = answer.GetReflection();
  std::vector<const Descriptor*> fields;
  r->ListFields(answer, &fields);
  for (const Descriptor* field : fields) {
    if (field->cpp_type() != Descriptor::CPPTYPE_MESSAGE) continue;
    const int size = field->is_repeated() ? r->FieldSize(answer, field) : 1;
    for (int e = 0; e < size; ++e) {
      const Message& below =
          field->is_repeated() ? r->GetRepeatedMessage(answer, field, e) : r->GetMessage(answer, field);
      if (const v1::Status* found = FirstFailure(below); found != nullptr) return found;
    }
  }
  return nullptr;
}

bool IsFinite(const Message& answer) {
  if (answer.GetDescriptor() == v1::Tensor::descriptor()) {
    return TensorIsFinite(*static_cast<const v1::Tensor*>(&answer));
  }
  const Reflection* r = answer.GetReflection();
  std::vector<const Descriptor*> fields;
  r->ListFields(answer, &fields);
  for (const Descriptor* field : fields) {
    if (field->name() == "log_sum_exp") continue;
    const int size = field->is_repeated() ? r->FieldSize(answer, field) : 1;
    for (int e = 0; e < size; ++e) {
      const bool many = field->is_repeated();
      bool finite = true;
      if (field->cpp_type() == Descriptor::CPPTYPE_MESSAGE) {
        finite = IsFinite(many ? r->GetRepeatedMessage(answer, field, e) : r->GetMessage(answer, field));
      } else if (field->cpp_type() == Descriptor::CPPTYPE_DOUBLE) {
        finite = std::isfinite(many ? r->GetRepeatedDouble(answer, field, e) : r->GetDouble(answer, field));
      } else if (field->cpp_type() == Descriptor::CPPTYPE_FLOAT) {
        finite = std::isfinite(many ? r->GetRepeatedFloat(answer, field, e) : r->GetFloat(answer, field));
      }
      if (!finite) return false;
    }
  }
  return true;
}

}  // namespace seine::test
