#include "client/cli/flags/field_flags.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/base/names.h"
#include "profile/spelling.h"
#include "proto/fields/find_field.h"
#include "seine/v1/flag.pb.h"

namespace seine::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

bool HasFlag(const FieldDescriptor& field) { return field.options().HasExtension(v1::flag); }
const v1::Flag& FlagOf(const FieldDescriptor& field) { return field.options().GetExtension(v1::flag); }

std::string NameOf(const FieldDescriptor& field) {
  const std::string& own = FlagOf(field).name();
  return own.empty() ? absl::StrReplaceAll(field.name(), {{"_", "-"}}) : own;
}

// Flags of a field: its own, and that of its older name.
std::string FlagsOf(const FlagGroup& group, const FieldDescriptor& field) {
  const std::string older = OlderName(field), name = group.prefix + NameOf(field);
  return older.empty() ? name : absl::StrCat(name, ",", group.prefix, absl::StrReplaceAll(older, {{"_", "-"}}));
}

std::string HelpOf(const FieldDescriptor& field) {
  const v1::Flag& flag = FlagOf(field);
  std::string help = flag.help();
  if (help.empty()) help = OneOf(std::string(field.enum_type()->name()));
  return flag.usual().empty() ? help : absl::StrCat(help, " (default: ", flag.usual(), ")");
}

// Adds a flag of a type, whose value `set` takes with the message, its reflection and the field.
template <typename Value, typename Set>
CLI::Option* Add(const FlagGroup& group, const FieldDescriptor* field, const std::function<Message*()>& message,
                 const std::string& help, Set set) {
  return group.command->add_option_function<Value>(
      FlagsOf(group, *field),
      [=](const Value& value) {
        Message* const to = message();
        set(to->GetReflection(), to, field, value);
      },
      help);
}

CLI::Option* AddNumbers(const FlagGroup& group, const FieldDescriptor* field, const std::function<Message*()>& message,
                        const std::string& help) {
  return Add<std::vector<int32_t>>(group, field, message, help,
                                   [](const Reflection* r, Message* to, const FieldDescriptor* f, const auto& values) {
                                     r->ClearField(to, f);
                                     for (const int32_t value : values) r->AddInt32(to, f, value);
                                   })
      ->delimiter(',');
}

CLI::Option* AddEnum(const FlagGroup& group, const FieldDescriptor* field, const std::function<Message*()>& message,
                     const std::string& help) {
  return Add<int>(group, field, message, help,
                  [](const Reflection* r, Message* to, const FieldDescriptor* f, int v) { r->SetEnumValue(to, f, v); })
      ->transform(Names(std::string(field->enum_type()->name())))
      ->type_name("ENUM");
}

// One that may be given as false.
CLI::Option* AddBool(const FlagGroup& group, const FieldDescriptor* field, const std::function<Message*()>& message,
                     const std::string& help) {
  return Add<bool>(group, field, message, help,
                   [](const Reflection* r, Message* to, const FieldDescriptor* f, bool v) { r->SetBool(to, f, v); });
}

// CLI11 reads -1 as the largest number there is.
CLI::Option* AddUnsigned(const FlagGroup& group, const FieldDescriptor* field, const std::function<Message*()>& message,
                         const std::string& help) {
  const auto no_sign = [](const std::string& text) -> std::string {
    return text.find('-') == std::string::npos ? "" : "must be 0 or more, not " + text;
  };
  return Add<uint64_t>(
             group, field, message, help,
             [](const Reflection* r, Message* to, const FieldDescriptor* f, uint64_t v) { r->SetUInt64(to, f, v); })
      ->check(CLI::Validator(no_sign, ""));
}

CLI::Option* AddFlag(const FlagGroup& group, const FieldDescriptor* field, const std::function<Message*()>& message,
                     const std::string& help) {
  if (field->is_repeated()) return AddNumbers(group, field, message, help);
  switch (field->cpp_type()) {
#define SEINE_NUMBER_FLAG(CASE, Value, Set) \
  case FieldDescriptor::CPPTYPE_##CASE:     \
    return Add<Value>(                      \
        group, field, message, help,        \
        [](const Reflection* r, Message* to, const FieldDescriptor* f, const Value& v) { r->Set(to, f, v); })
    SEINE_NUMBER_FLAG(INT32, int32_t, SetInt32);
    SEINE_NUMBER_FLAG(INT64, int64_t, SetInt64);
    SEINE_NUMBER_FLAG(DOUBLE, double, SetDouble);
    SEINE_NUMBER_FLAG(FLOAT, float, SetFloat);
    SEINE_NUMBER_FLAG(STRING, std::string, SetString);
#undef SEINE_NUMBER_FLAG
    case FieldDescriptor::CPPTYPE_UINT64:
      return AddUnsigned(group, field, message, help);
    case FieldDescriptor::CPPTYPE_ENUM:
      return AddEnum(group, field, message, help);
    default:  // bool, the only one that is left
      if (field->has_presence()) return AddBool(group, field, message, help);
      return group.command->add_flag_callback(
          FlagsOf(group, *field),
          [=] {
            Message* const to = message();
            to->GetReflection()->SetBool(to, field, true);
          },
          help);
  }
}

Json NumberAt(const Message& message, const FieldDescriptor* field, int i) {
  const Reflection* const r = message.GetReflection();
  return field->cpp_type() == FieldDescriptor::CPPTYPE_INT32 ? Json(r->GetRepeatedInt32(message, field, i))
                                                             : Json(r->GetRepeatedDouble(message, field, i));
}

Json ValueOf(const Message& message, const FieldDescriptor* field) {
  const Reflection* const r = message.GetReflection();
  if (field->is_repeated()) {
    Json list = Json::array();
    for (int i = 0; i < r->FieldSize(message, field); ++i) list.push_back(NumberAt(message, field, i));
    return list;
  }
  if (field->has_presence() && !r->HasField(message, field)) return {};
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return r->GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64:
      return r->GetInt64(message, field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return r->GetUInt64(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return r->GetDouble(message, field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return r->GetFloat(message, field);
    case FieldDescriptor::CPPTYPE_STRING:
      return r->GetString(message, field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return SpellValue(field->enum_type()->name(), r->GetEnumValue(message, field));
    default:
      return r->GetBool(message, field);
  }
}

}  // namespace

void FlagGroup::Join(CLI::Option* option, const std::string& own) const {
  if (!name.empty() || !own.empty()) option->group(own.empty() ? name : own);
  if (needs != nullptr) option->needs(needs);
}

void AddFieldFlags(const FlagGroup& group, const Descriptor& type, const std::function<Message*()>& message,
                   const std::vector<std::string>& but) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* const field = type.field(i);
    if (!HasFlag(*field) || std::find(but.begin(), but.end(), field->name()) != but.end()) continue;
    CLI::Option* const option = AddFlag(group, field, message, HelpOf(*field));
    if (FlagOf(*field).bytes()) option->transform(CLI::AsSizeValue(/*kb_is_1000=*/true));
    group.Join(option, FlagOf(*field).group());
  }
}

void AddFieldFlags(const FlagGroup& group, const Descriptor& type, const std::function<Message*()>& message,
                   const std::function<std::string(const std::string& field)>& help) {
  for (int i = 0; i < type.field_count(); ++i) {
    const std::string text = help(std::string(type.field(i)->name()));
    if (!text.empty()) group.Join(AddFlag(group, type.field(i), message, text));
  }
}

void AddFields(const Descriptor& type, const Message* message, const std::string& prefix, Json* json) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* const field = type.field(i);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const bool named = HasFlag(*field) && !FlagOf(*field).bytes();
    const std::string name = named ? absl::StrReplaceAll(NameOf(*field), {{"-", "_"}}) : std::string(field->name());
    (*json)[prefix + name] = message == nullptr ? Json() : ValueOf(*message, field);
  }
}

Json GivenFields(const Message& message) {
  std::vector<const FieldDescriptor*> given;
  const Reflection* const reflection = message.GetReflection();
  reflection->ListFields(message, &given);
  Json json = Json::object();
  for (const FieldDescriptor* field : given) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const bool number = field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM;
    json[std::string(field->name())] =
        number ? Json(reflection->GetEnumValue(message, field)) : ValueOf(message, field);
  }
  return json;
}

}  // namespace seine::cli
