// Fields and bytes; tensors are in spoil_tensors.cc.
#include "tests/service/contract/spoil.h"

#include <google/protobuf/descriptor.h>

#include <cfloat>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "seine/v1/common.pb.h"

namespace seine::test {
namespace {

using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kMany = 300;
constexpr size_t kCopied = 2048;  // bytes of an element at most, of which many copies are made

// The messages of a tree, each with its path; tensors are not entered.
void ForEachOwner(Message* message, const std::string& path,
                  const std::function<void(const std::string&, Message*)>& visit) {
  visit(path, message);
  const Reflection* r = message->GetReflection();
  std::vector<const Descriptor*> fields;
  r->ListFields(*message, &fields);
  for (const Descriptor* field : fields) {
    if (field->cpp_type() != Descriptor::CPPTYPE_MESSAGE || field->message_type() == v1::Tensor::descriptor()) continue;
    if (!field->is_repeated()) {
      ForEachOwner(r->MutableMessage(message, field), absl::StrCat(path, ".", field->name()), visit);
    } else if (r->FieldSize(*message, field) > 0) {
      ForEachOwner(r->MutableRepeatedMessage(message, field, 0), absl::StrCat(path, ".", field->name(), "[0]"), visit);
    }
  }
}

class FieldSpoiler {
 public:
  FieldSpoiler(const Message& right, const SpoiltRequest& visit) : right_(right), visit_(visit) {}

  void Scalars() {
    for (const FieldPlace& place : ScalarsOf(right_)) Scalar(place);
  }

  // Parts below every message: absent, empty, doubled, many.
  void Parts() {
    std::unique_ptr<Message> copy = Copy();
    std::vector<std::string> paths;
    ForEachOwner(copy.get(), "", [&](const std::string& path, Message*) { paths.push_back(path); });
    for (const std::string& path : paths) PartsBelow(path);
  }

 private:
  std::unique_ptr<Message> Copy() const {
    std::unique_ptr<Message> copy(right_.New());
    copy->CopyFrom(right_);
    return copy;
  }
  template <typename Change>
  void With(const std::string& what, const Change& change) {
    const std::unique_ptr<Message> request = Copy();
    change(request.get());
    visit_(what, *request);
  }

  void Scalar(const FieldPlace& place) {
    const Descriptor* field = place.field();
    const std::string path = place.path();
    if (IsInteger(field)) {
      for (const Integer value : AwkwardIntegers()) {
        const std::unique_ptr<Message> request = Copy();
        if (SetInteger(place, value, request.get())) visit_(absl::StrCat(path, " = ", Text(value)), *request);
      }
    } else if (IsFloat(field)) {
      for (const double value : AwkwardFloats()) {
        With(absl::StrCat(path, " = ", value), [&](Message* m) { SetFloat(place, value, m); });
      }
    } else if (field->cpp_type() == Descriptor::CPPTYPE_ENUM) {
      for (int value = -1; value <= field->enum_type()->value_count(); ++value) Enum(place, value);
      for (const int value : {INT32_MIN, 1000, INT32_MAX}) Enum(place, value);
    } else if (field->cpp_type() == Descriptor::CPPTYPE_BOOL) {
      for (const bool value : {false, true}) {
        With(absl::StrCat(path, " = ", value), [&](Message* m) { SetBool(place, value, m); });
      }
    } else if (field->cpp_type() == Descriptor::CPPTYPE_STRING) {
      int number = 0;
      for (const std::string& value : AwkwardTexts()) {
        With(absl::StrCat(path, " = text ", number++), [&](Message* m) { SetString(place, value, m); });
      }
    }
  }
  void Enum(const FieldPlace& place, int value) {
    With(absl::StrCat(place.path(), " = ", value), [&](Message* m) { SetEnum(place, value, m); });
  }
  static std::string Text(Integer value) {
    return value < 0 ? absl::StrCat(static_cast<int64_t>(value)) : absl::StrCat(static_cast<uint64_t>(value));
  }

  // Changes the message at the path of a copy.
  template <typename Change>
  void At(const std::string& path, const std::string& what, const Change& change) {
    With(absl::StrCat(path, what), [&](Message* request) {
      ForEachOwner(request, "", [&](const std::string& here, Message* owner) {
        if (here == path && !done_) {
          done_ = true;
          change(owner);
        }
      });
      done_ = false;
    });
  }

  void PartsBelow(const std::string& path) {
    const google::protobuf::Descriptor* type = nullptr;
    const std::unique_ptr<Message> copy = Copy();
    ForEachOwner(copy.get(), "", [&](const std::string& here, Message* owner) {
      if (here == path) type = owner->GetDescriptor();
    });
    for (int i = 0; i < type->field_count(); ++i) {
      const Descriptor* field = type->field(i);
      At(path, absl::StrCat(".", field->name(), " is absent"),
         [&](Message* owner) { owner->GetReflection()->ClearField(owner, field); });
      if (field->cpp_type() != Descriptor::CPPTYPE_MESSAGE) continue;
      At(path, absl::StrCat(".", field->name(), " is empty"), [&](Message* owner) { MakeEmpty(owner, field); });
      if (!field->is_repeated()) continue;
      for (const int copies : {1, kMany}) {
        At(path, absl::StrCat(".", field->name(), ": ", copies, " more"),
           [&](Message* owner) { Repeat(owner, field, copies); });
      }
    }
  }
  static void MakeEmpty(Message* owner, const Descriptor* field) {
    const Reflection* r = owner->GetReflection();
    if (field->is_repeated()) {
      r->AddMessage(owner, field);
    } else {
      r->MutableMessage(owner, field)->Clear();
    }
  }
  static void Repeat(Message* owner, const Descriptor* field, int copies) {
    const Reflection* r = owner->GetReflection();
    if (r->FieldSize(*owner, field) == 0) return;
    const std::unique_ptr<Message> first(r->GetRepeatedMessage(*owner, field, 0).New());
    first->CopyFrom(r->GetRepeatedMessage(*owner, field, 0));
    if (copies > 1 && first->ByteSizeLong() > kCopied) return;
    for (int i = 0; i < copies; ++i) r->AddMessage(owner, field)->CopyFrom(*first);
  }

  const Message& right_;
  const SpoiltRequest& visit_;
  bool done_ = false;
};

std::string Tag(int field, int wire_type) {
  std::string out;
  auto value = static_cast<uint64_t>(static_cast<uint32_t>(field) << 3 | static_cast<uint32_t>(wire_type));
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}

}  // namespace

const std::vector<Integer>& AwkwardIntegers() {
  static const auto* const values = [] {
    auto* out = new std::vector<Integer>{0, 1, -1, 2, 3, 63, 64, 65, 127, 128, 129, 199, 200, 201};
    for (const int power : {8, 16, 24, 31, 32, 33, 48, 62, 63, 64}) {
      for (const int off : {-1, 0, 1}) out->push_back((Integer{1} << power) + off);
    }
    for (const int power : {31, 32, 63}) out->push_back(-(Integer{1} << power));
    return out;
  }();
  return *values;
}

const std::vector<double>& AwkwardFloats() {
  static const auto* const values = new std::vector<double>{0,
                                                            -0.0,
                                                            1,
                                                            -1,
                                                            .5,
                                                            1 + FLT_EPSILON,
                                                            1e-30,
                                                            1e30,
                                                            FLT_MIN,
                                                            FLT_MAX,
                                                            -FLT_MAX,
                                                            DBL_MIN,
                                                            DBL_MAX,
                                                            std::numeric_limits<float>::denorm_min(),
                                                            std::numeric_limits<double>::denorm_min(),
                                                            std::numeric_limits<double>::infinity(),
                                                            -std::numeric_limits<double>::infinity(),
                                                            std::numeric_limits<double>::quiet_NaN()};
  return *values;
}

const std::vector<std::string>& AwkwardTexts() {
  static const auto* const values = new std::vector<std::string>{"",
                                                                 "x",
                                                                 "..",
                                                                 "../../etc/passwd",
                                                                 "a b",
                                                                 "a\nb",
                                                                 std::string("a\0b", 3),
                                                                 "\xff",
                                                                 "\xc3\xa9",
                                                                 "%s%n",
                                                                 "{\"a\": [1]}",
                                                                 "null",
                                                                 "-1",
                                                                 "/",
                                                                 ".",
                                                                 "~",
                                                                 "'\"\\",
                                                                 "\x1b[31m",
                                                                 "nan",
                                                                 "\xed\xa0\x80",
                                                                 "a/b:c",
                                                                 "plain ",
                                                                 "PLAIN",
                                                                 "doomed2",
                                                                 std::string(64, 'x'),
                                                                 std::string(65, 'x'),
                                                                 std::string(128, 'x'),
                                                                 std::string(129, 'x'),
                                                                 std::string(4096, '['),
                                                                 std::string(70'000, 'x')};
  return *values;
}

void SpoilFields(const Message& right, const SpoiltRequest& visit) {
  FieldSpoiler spoiler(right, visit);
  spoiler.Scalars();
  spoiler.Parts();
}

void SpoilBytes(const Message& right, const SpoiltBytes& visit) {
  const std::string bytes = right.SerializeAsString();
  const size_t step = bytes.size() / 100 + 1;
  for (size_t i = 0; i < bytes.size(); i += step) {
    visit(absl::StrCat("cut at ", i), bytes.substr(0, i));
    for (const int flip : {1, 0x80, 0xff}) {
      std::string altered = bytes;
      altered[i] = static_cast<char>(altered[i] ^ flip);
      visit(absl::StrCat("byte ", i, " ^ ", flip), altered);
    }
  }
  const std::string payloads[] = {
      "", std::string(1, '\0'), "\x01x", std::string(10, '\xff'), "\xff\xff\xff\xff\x0f", std::string(8, '\x7f')};
  for (const int field : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 40, 41, 100, 18'999, 19'000, 536'870'911}) {
    for (int type = 0; type < 8; ++type) {
      for (size_t p = 0; p < std::size(payloads); ++p) {
        visit(absl::StrCat("field ", field, " of type ", type, ", payload ", p),
              bytes + Tag(field, type) + payloads[p]);
      }
    }
  }
  std::string nested;
  for (int depth = 0; depth < 1000; ++depth) nested += Tag(77, 3);
  visit("groups a thousand deep", bytes + nested);
}

}  // namespace seine::test
