// Every setting of scorers, budgets, codecs, eviction and subspaces that the wire has can be given on command lines, in
// the server's file and to the bench. A walk over the messages finds the settings: one that is new and nowhere to be
// given fails here.
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/codecs/codec_list.h"
#include "profile/scorer_list.h"
#include "profile/spelling.h"
#include "seine/v1/eviction.pb.h"
#include "seine/v1/index_service.pb.h"
#include "seine/v1/subspace.pb.h"
#include "service/config/yaml_message.h"

namespace seine {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// The words of a command's help, without commas. A flag of two names is two words.
std::set<std::string> HelpWords(const std::string& command) {
  FILE* pipe = popen((command + " --help 2>&1").c_str(), "r");
  std::string text;
  char buffer[4096];
  for (size_t got; pipe != nullptr && (got = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) text.append(buffer, got);
  EXPECT_EQ(pipe == nullptr ? -1 : pclose(pipe), 0) << command;
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == ',' || c == ';'; }, ' ');
  std::istringstream in(text);
  std::set<std::string> words;
  for (std::string word; in >> word;) words.insert(word);
  return words;
}

bool IsTensor(const FieldDescriptor& field) {
  return field.message_type() != nullptr && field.message_type()->name() == "Tensor";
}

// visit("scorer.anchor", field) for each setting of a message and of the messages in it.
void ForEachSetting(const Descriptor& message, const std::string& path,
                    const std::function<void(const std::string&, const FieldDescriptor&)>& visit) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const std::string name = path.empty() ? field.name() : absl::StrCat(path, ".", field.name());
    if (field.message_type() != nullptr && !IsTensor(field)) {
      ForEachSetting(*field.message_type(), name, visit);
    } else {
      visit(name, field);
    }
  }
}

// Settings whose flag is not named as they are; "" where a command rightly has none.
using Flags = std::map<std::string, std::string>;

void ExpectFlags(const std::string& command, const Descriptor& message, const std::string& prefix, const Flags& other) {
  const std::set<std::string> words = HelpWords(command);
  ASSERT_GT(words.size(), 50u) << command;
  int found = 0;
  ForEachSetting(message, "", [&](const std::string& path, const FieldDescriptor& field) {
    std::string flag = prefix + absl::StrReplaceAll(field.name(), {{"_", "-"}});
    if (const auto named = other.find(path); named != other.end()) flag = named->second;
    if (flag.empty()) return;
    ++found;
    EXPECT_TRUE(words.contains(flag)) << message.name() << "." << path << " has no flag of " << command << ": wanted "
                                      << flag;
  });
  EXPECT_GT(found, 3) << command;
}

const Descriptor& Of(const google::protobuf::Message& message) { return *message.GetDescriptor(); }

TEST(OptionCoverage, AnIndexsEvictionOnTheCommandLine) {
  ExpectFlags(std::string(SEINE_PROGRAM) + " index create", Of(v1::EvictionSettings()), "--evict-",
              {{"scorer.name", "--evict-scorer"},
               {"budget.tokens", "--evict-budget"},
               {"budget.ratio", ""},      // an index has tokens
               {"keep.positions", ""}});  // come with a call
}

TEST(OptionCoverage, CallsOfEvictionOnTheCommandLineAndTheBench) {
  const Flags named = {{"name", "--scorer"}, {"tokens", "--budget"}, {"ratio", "--budget"}};
  for (const char* program : {SEINE_PROGRAM, SEINE_BENCH_PROGRAM}) {
    const std::string command = absl::StrCat(program, " evict");
    ExpectFlags(command, Of(v1::ScorerSettings()), "--", named);
    ExpectFlags(command, Of(v1::Budget()), "--", named);
    ExpectFlags(command, Of(v1::Keep()), "--", named);
  }
  ExpectFlags(std::string(SEINE_BENCH_PROGRAM) + " evict", Of(v1::EvictionSettings()), "--",
              {{"scorer.name", "--scorer"},
               {"budget.tokens", "--budget"},
               {"budget.ratio", "--budget"},
               {"keep_queries", ""},      // the bench gives queries
               {"horizon", ""},           // and measures at the trace's own positions
               {"filters", "--profile"},  // or the queries'
               {"filters_file", ""}});
}

TEST(OptionCoverage, AnIndexsSubspacesOnTheCommandLine) {
  const Flags named = {{"value_rank", "--subspace-rank"}, {"error_threshold", "--subspace-threshold"}};
  ExpectFlags(std::string(SEINE_PROGRAM) + " index create", Of(v1::SubspaceSettings()), "--subspace-", named);
}

// A value of the field's type, as the file has it.
std::string Sample(const FieldDescriptor& field) {
  if (field.is_repeated()) return "[1, 2]";
  if (field.type() == FieldDescriptor::TYPE_ENUM) {
    return absl::AsciiStrToLower(SpellValue(field.enum_type()->name(), 1));
  }
  if (field.type() == FieldDescriptor::TYPE_BOOL) return "true";
  return field.type() == FieldDescriptor::TYPE_STRING ? "a-name" : "1";
}

TEST(OptionCoverage, EverySettingInTheServersFile) {
  const std::unique_ptr<google::protobuf::Message> messages[] = {std::make_unique<v1::EvictionSettings>(),
                                                                 std::make_unique<v1::SubspaceSettings>()};
  for (const auto& message : messages) {
    ForEachSetting(Of(*message), "", [&](const std::string& path, const FieldDescriptor& field) {
      if (IsTensor(field)) {  // filters_file stands for filters; positions come with a call
        EXPECT_TRUE(path == "filters" || path == "keep.positions") << path << " cannot be given in a file";
        return;
      }
      const std::string text = absl::StrCat("{", absl::StrReplaceAll(path, {{".", ": {"}}), ": ", Sample(field),
                                            std::string(1 + std::count(path.begin(), path.end(), '.'), '}'));
      std::unique_ptr<google::protobuf::Message> read(message->New());
      const absl::Status status = FromYaml(YAML::Load(text), "settings", read.get());
      EXPECT_TRUE(status.ok()) << text << ": " << status;
      EXPECT_GT(read->ByteSizeLong(), 0u) << text;
      YAML::Emitter out;  // as --check-config prints it
      ToYaml(*read, &out);
      std::unique_ptr<google::protobuf::Message> again(message->New());
      EXPECT_TRUE(FromYaml(YAML::Load(out.c_str()), "settings", again.get()).ok()) << out.c_str();
      EXPECT_EQ(again->SerializeAsString(), read->SerializeAsString()) << out.c_str();
    });
  }
}

// The library's own list, which makes the flags, has no option that the wire lacks, and the other way round.
TEST(OptionCoverage, TheRegistryIsTheWires) {
  std::set<std::string> registry = {"name"}, wire;
#define SEINE_OPTION_NAME(Type, name, ...) registry.insert(#name);
  SEINE_FOR_EACH_SCORER_OPTION(SEINE_OPTION_NAME)
#undef SEINE_OPTION_NAME
  const v1::ScorerSettings scorer;
  ForEachSetting(Of(scorer), "", [&](const std::string& path, const FieldDescriptor&) { wire.insert(path); });
  EXPECT_EQ(registry, wire);
}

// The list of codecs' options, too, beside the settings that all codecs have.
TEST(OptionCoverage, TheCodecListIsTheWires) {
  std::set<std::string> list = {"name", "seed", "centre", "centre_window", "profile", "horizon"}, wire;
  ForEachCodecOption([&](const auto& option) { list.insert(option.name); });
  ForEachSetting(Of(v1::CodecSettings()), "",
                 [&](const std::string& path, const FieldDescriptor&) { wire.insert(path); });
  EXPECT_EQ(list, wire);
  const std::set<std::string> create = HelpWords(std::string(SEINE_PROGRAM) + " index create");
  const std::set<std::string> recall = HelpWords(std::string(SEINE_BENCH_PROGRAM) + " recall");
  ForEachCodecOption([&](const auto& option) {
    const std::string flag = "--" + absl::StrReplaceAll(option.name, {{"_", "-"}});
    EXPECT_TRUE(create.contains(flag) && recall.contains(flag)) << flag;
  });
}

// A field's older name is read wherever its name is, and is nobody else's.
TEST(OptionCoverage, OlderNamesAreRead) {
  const std::set<std::string> words = HelpWords(std::string(SEINE_PROGRAM) + " index create");
  for (const auto& [older, name] : {std::pair{"beta", "candidate_fraction"}, {"refine", "rescore_k"}}) {
    v1::RetrievalSettings by_older, by_name;
    EXPECT_TRUE(FromYaml(YAML::Load(absl::StrCat("{", older, ": 1}")), "settings", &by_older).ok()) << older;
    EXPECT_TRUE(FromYaml(YAML::Load(absl::StrCat("{", name, ": 1}")), "settings", &by_name).ok()) << name;
    EXPECT_EQ(by_older.SerializeAsString(), by_name.SerializeAsString()) << older;
    const std::string both = absl::StrCat("{", older, ": 1, ", name, ": 1}");
    EXPECT_EQ(FromYaml(YAML::Load(both), "settings", &by_name).message(),
              absl::StrCat("settings.", name, ": the same setting as ", older, ", which is given as well"));
    for (const std::string flag : {name, older}) {
      EXPECT_TRUE(words.contains("--" + absl::StrReplaceAll(flag, {{"_", "-"}}))) << flag;
    }
  }
}

// A flag that is missing is found.
TEST(OptionCoverage, AGapIsFound) {
  const std::set<std::string> words = HelpWords(std::string(SEINE_PROGRAM) + " index create");
  EXPECT_TRUE(words.contains("--evict-value-weight"));
  EXPECT_FALSE(words.contains("--evict-value"));
  EXPECT_FALSE(words.contains("--evict-no-such-option"));
}

}  // namespace
}  // namespace seine
