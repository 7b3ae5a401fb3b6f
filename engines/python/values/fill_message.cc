// From dicts to messages: FillMessage of message_dict.h.
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engines/python/values/arrays.h"
#include "engines/python/values/enum_words.h"
#include "engines/python/values/message_dict.h"
#include "proto/fields/find_field.h"
#include "seine/v1/common.pb.h"
#include "seine/v1/eviction.pb.h"
#include "seine/v1/retrieval_service.pb.h"

namespace seine::python {
namespace {

namespace pb = google::protobuf;

[[noreturn]] void ThrowValue(const std::string& text) { throw nb::value_error(text.c_str()); }
[[noreturn]] void ThrowType(const std::string& text) { throw nb::type_error(text.c_str()); }

std::string Repr(nb::handle value) { return nb::cast<std::string>(nb::repr(value)); }
std::string TypeOf(nb::handle value) { return nb::cast<std::string>(nb::handle(value.type()).attr("__name__")); }

[[noreturn]] void DoesNotFit(const std::string& path, nb::handle value, absl::string_view wanted) {
  ThrowType(absl::StrCat(path, ": ", Repr(value), " does not fit: ", wanted));
}

// numpy's numbers are ints too; a float is none, whole or not.
template <typename Int>
Int IntOf(nb::handle value, const std::string& path) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    DoesNotFit(path, value, "must be an int");
  }
  Int out = 0;
  if (!nb::try_cast(index, out)) {
    DoesNotFit(
        path, value,
        absl::StrCat("must be in [", std::numeric_limits<Int>::min(), ", ", std::numeric_limits<Int>::max(), "]"));
  }
  return out;
}

double FloatOf(nb::handle value, const std::string& path) {
  const double out = PyFloat_AsDouble(value.ptr());
  if (out == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    DoesNotFit(path, value, "must be a number");
  }
  return out;
}

bool BoolOf(nb::handle value, const std::string& path) {
  const std::string type = TypeOf(value);
  const bool is_bool = PyBool_Check(value.ptr()) || type == "bool_" || type == "bool";  // numpy's
  if (!is_bool) {
    const auto number = IntOf<int64_t>(value, path);
    if (number != 0 && number != 1) DoesNotFit(path, value, "must be True or False");
  }
  return PyObject_IsTrue(value.ptr()) == 1;
}

std::string TextOf(nb::handle value, const std::string& path) {
  std::string out;
  if (!nb::isinstance<nb::str>(value) || !nb::try_cast(value, out)) DoesNotFit(path, value, "must be a str");
  return out;
}

std::string BytesOf(nb::handle value, const std::string& path) {
  if (!nb::isinstance<nb::bytes>(value)) DoesNotFit(path, value, "must be bytes");
  const auto bytes = nb::borrow<nb::bytes>(value);
  return {bytes.c_str(), bytes.size()};
}

int EnumOf(const pb::EnumDescriptor& type, nb::handle value, const std::string& path) {
  std::string word;
  std::optional<int> number;
  if (nb::isinstance<nb::str>(value) && nb::try_cast(value, word)) number = NumberOf(type, word);
  if (!number)
    ThrowValue(absl::StrCat(path, ": must be one of ", absl::StrJoin(WordsOf(type), ", "), ", not ", Repr(value)));
  return *number;
}

// Positions may be of any integer type; what Keep names is a set.
void FillTensor(nb::handle value, const std::string& path, const pb::FieldDescriptor& field, v1::Tensor* out) {
  nb::object array = nb::borrow(value);
  if (field.name() == "positions") {
    array = PositionsOf(value, path, field.containing_type() == v1::Keep::descriptor());
  }
  const ArrayView view(array, path);
  out->set_dtype(static_cast<v1::DType>(view.dtype()));
  out->mutable_shape()->Assign(view.shape().begin(), view.shape().end());
  out->mutable_raw()->assign(static_cast<const char*>(view.data()), view.bytes());
}

void FillHandle(nb::handle value, const std::string& path, v1::SequenceHandle* out) {
  out->set_index(TextOf(value.attr("index"), path + ".index"));
  out->set_id(TextOf(value.attr("id"), path + ".id"));
  out->set_generation(IntOf<uint64_t>(value.attr("generation"), path + ".generation"));
}

nb::object* mapping = nullptr;  // collections.abc.Mapping; made once and never freed

bool IsMapping(nb::handle value) {
  return PyDict_Check(value.ptr()) || PyObject_IsInstance(value.ptr(), mapping->ptr()) == 1;
}

// The short forms, of what is no dict. False: `type` has none.
bool FillShort(nb::handle value, const std::string& path, pb::Message* message) {
  const pb::Descriptor* type = message->GetDescriptor();
  if (type == v1::ScorerSettings::descriptor() && nb::isinstance<nb::str>(value)) {
    static_cast<v1::ScorerSettings*>(message)->set_name(nb::cast<std::string>(value));
    return true;
  }
  if (type == v1::Budget::descriptor()) {
    if (!PyIndex_Check(value.ptr())) {
      ThrowType(absl::StrCat(path, ": must be tokens a head (an int), or a dict such as {\"ratio\": 0.75}, the share ",
                             "that goes, not ", Repr(value)));
    }
    static_cast<v1::Budget*>(message)->set_tokens(IntOf<int64_t>(value, path + ".tokens"));
    return true;
  }
  if (type == v1::MassP::descriptor()) {
    if (!PySequence_Check(value.ptr()) || PySequence_Size(value.ptr()) != 3) {
      PyErr_Clear();
      ThrowType(absl::StrCat(path, ": must be (p, floor, cap), as (0.9, 1, 1000), not ", Repr(value)));
    }
    auto* mass_p = static_cast<v1::MassP*>(message);
    mass_p->set_p(static_cast<float>(FloatOf(value[0], path + ".p")));
    mass_p->set_floor(IntOf<int32_t>(value[1], path + ".floor"));
    mass_p->set_cap(IntOf<int32_t>(value[2], path + ".cap"));
    return true;
  }
  if (type == v1::SequenceHandle::descriptor() && nb::hasattr(value, "generation") && nb::hasattr(value, "id")) {
    FillHandle(value, path, static_cast<v1::SequenceHandle*>(message));
    return true;
  }
  return false;
}

// Sets a field that is not repeated, or, `add`, one more element of one that is.
void SetField(nb::handle value, const std::string& path, const pb::FieldDescriptor* field, bool add,
              pb::Message* message) {
  const pb::Reflection* r = message->GetReflection();
  using Type = pb::FieldDescriptor::CppType;
  switch (field->cpp_type()) {
#define SEINE_SET(type, name, read) \
  case Type::CPPTYPE_##type:        \
    return add ? r->Add##name(message, field, read) : r->Set##name(message, field, read)
    SEINE_SET(INT32, Int32, IntOf<int32_t>(value, path));
    SEINE_SET(INT64, Int64, IntOf<int64_t>(value, path));
    SEINE_SET(UINT32, UInt32, IntOf<uint32_t>(value, path));
    SEINE_SET(UINT64, UInt64, IntOf<uint64_t>(value, path));
    SEINE_SET(DOUBLE, Double, FloatOf(value, path));
    SEINE_SET(FLOAT, Float, static_cast<float>(FloatOf(value, path)));
    SEINE_SET(BOOL, Bool, BoolOf(value, path));
    SEINE_SET(ENUM, EnumValue, EnumOf(*field->enum_type(), value, path));
    SEINE_SET(STRING, String,
              field->type() == pb::FieldDescriptor::TYPE_BYTES ? BytesOf(value, path) : TextOf(value, path));
#undef SEINE_SET
    case Type::CPPTYPE_MESSAGE: {
      pb::Message* part = add ? r->AddMessage(message, field) : r->MutableMessage(message, field);
      if (field->message_type() == v1::Tensor::descriptor()) {
        return FillTensor(value, path, *field, static_cast<v1::Tensor*>(part));
      }
      return FillMessage(value, path, "", part);
    }
  }
}

void SetRepeated(nb::handle values, const std::string& path, const pb::FieldDescriptor* field, pb::Message* message) {
  if (nb::isinstance<nb::str>(values) || IsMapping(values) || !nb::hasattr(values, "__iter__")) {
    DoesNotFit(path, values, "must be a list");
  }
  int64_t i = 0;
  for (nb::handle value : nb::iter(values)) SetField(value, absl::StrCat(path, "[", i++, "]"), field, true, message);
}

}  // namespace

void ImportMapping() {
  if (mapping == nullptr) mapping = new nb::object(nb::module_::import_("collections.abc").attr("Mapping"));
}

void FillMessage(nb::handle settings, const std::string& path, const char* what, pb::Message* message) {
  if (settings.is_none()) return;
  const std::string named = path.empty() ? what : path;
  if (!IsMapping(settings)) {
    if (FillShort(settings, path, message)) return;
    ThrowType(absl::StrCat(named, ": must be a dict of settings, not the ", TypeOf(settings), " ", Repr(settings)));
  }
  const pb::Descriptor& type = *message->GetDescriptor();
  std::map<const pb::OneofDescriptor*, std::string> taken;
  std::map<const pb::FieldDescriptor*, std::string> given;
  for (nb::handle item : nb::iter(settings.attr("items")())) {
    const nb::handle value = item[1];
    const std::string name = nb::cast<std::string>(nb::str(item[0]));
    const pb::FieldDescriptor* field = FindField(type, name);
    if (field == nullptr) {
      std::vector<std::string> known;
      for (int i = 0; i < type.field_count(); ++i) known.push_back(type.field(i)->name());
      ThrowValue(absl::StrCat(named, ": unknown setting ", name, "; there are ", absl::StrJoin(known, ", ")));
    }
    if (value.is_none()) continue;
    if (const auto [other, only] = given.emplace(field, name); !only) {
      ThrowValue(absl::StrCat(named, ": ", other->second, " and ", name, " are one setting"));
    }
    if (field->containing_oneof() != nullptr) {
      const auto [first, only] = taken.emplace(field->containing_oneof(), name);
      if (!only) ThrowValue(absl::StrCat(named, ": ", first->second, " and ", name, " exclude each other"));
    }
    const std::string inner = path.empty() ? name : absl::StrCat(path, ".", name);
    field->is_repeated() ? SetRepeated(value, inner, field, message) : SetField(value, inner, field, false, message);
  }
}

}  // namespace seine::python
