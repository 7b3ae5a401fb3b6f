#include "engines/python/values/enum_words.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace seine::python {
namespace {

// Other names of settings' words, those of the command line among them.
struct Alias {
  absl::string_view alias, word;
};
constexpr Alias kAliases[] = {{"fp32", "float32"},
                              {"fp16", "float16"},
                              {"bf16", "bfloat16"},
                              {"q_head", "per_q_head"},
                              {"kv_head", "per_kv_head"}};

// The value of number 0 is called <prefix>UNSPECIFIED.
std::string LowerWord(const google::protobuf::EnumDescriptor& type,
                      const google::protobuf::EnumValueDescriptor& value) {
  constexpr absl::string_view kNotStated = "UNSPECIFIED";
  const size_t prefix = type.value(0)->name().size() - kNotStated.size();
  return absl::AsciiStrToLower(absl::string_view(value.name()).substr(prefix));
}

}  // namespace

std::vector<std::string> WordsOf(const google::protobuf::EnumDescriptor& type) {
  std::vector<std::string> words;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) words.push_back(LowerWord(type, *type.value(i)));
  }
  return words;
}

std::optional<int> NumberOf(const google::protobuf::EnumDescriptor& type, absl::string_view word) {
  for (const Alias& known : kAliases) {
    if (known.alias == word) word = known.word;
  }
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0 && LowerWord(type, *type.value(i)) == word) return type.value(i)->number();
  }
  return std::nullopt;
}

std::string WordOf(const google::protobuf::EnumDescriptor& type, int number) {
  if (number == 0) return "";
  const google::protobuf::EnumValueDescriptor* value = type.FindValueByNumber(number);
  return value != nullptr ? LowerWord(type, *value) : absl::StrCat("unknown ", number);
}

}  // namespace seine::python
