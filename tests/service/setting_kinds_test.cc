// Every setting of a file against every kind of YAML node: none is taken for "off" but the word itself.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "service/access/access.h"
#include "service/access/guards.h"
#include "service/access/tls_files.h"
#include "service/config/config.h"
#include "tests/service/seined/seined_process.h"

namespace seine::test {
namespace {

// What a setting may not be given, by the hint of its value.
std::vector<std::string> WrongValues(const Setting& setting) {
  std::vector<std::string> wrong = {"[]",   "[a]", "[[a]]", "{}", "{a: b}", "~",
                                    "null", "",    "\"\"",  "''", "&a [a]", "!!str [a]"};
  const std::string& hint = setting.hint;
  if (hint == "FILE" || hint == "DIR") {
    wrong.insert(wrong.end(), {"true", "False", "yes", "no", "on", "none", "\"null\"", "\"~\"", "5", "-1", "1e3"});
  } else if (hint == "NAME") {
    wrong.insert(wrong.end(), {"true", "no", "none"});
  } else {
    wrong.insert(wrong.end(), {"words of text", "\"-\"", "1.5.2", "0x", "yes and no"});
  }
  return wrong;
}

class SettingKindsTest : public SeinedTest {
 protected:
  std::string File() const { return dir_.path + "/seined.yaml"; }
  absl::Status Apply(const std::string& text, ServerConfig* config) const {
    std::ofstream(File()) << text;
    return ApplyYaml(File(), config);
  }
  static std::string Text(const Setting& setting, const std::string& value) {
    const std::pair<std::string, std::string> key = absl::StrSplit(setting.key, absl::MaxSplits('.', 1));
    return absl::StrCat(key.first, ":\n  ", key.second, ": ", value, "\n");
  }
};

TEST_F(SettingKindsTest, EverySettingRefusesEveryOtherKindByItsName) {
  int tried = 0;
  for (const Setting& setting : Settings()) {
    for (const std::string& value : WrongValues(setting)) {
      ServerConfig config;
      const absl::Status status = Apply(Text(setting, value), &config);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << Text(setting, value);
      EXPECT_EQ(status.message().substr(0, File().size() + 2 + setting.key.size() + 2),
                absl::StrCat(File(), ": ", setting.key, ": "))
          << Text(setting, value);
      ++tried;
    }
  }
  EXPECT_GE(tried, 500);
}

TEST_F(SettingKindsTest, CheckConfigAndAStartNameEach) {
  for (const Setting& setting : Settings()) {
    for (const char* value : {"[a]", "~"}) {
      std::ofstream(File()) << Text(setting, value);
      for (const bool check : {true, false}) {
        std::vector<std::string> flags = {"--config", File()};
        if (check) flags.emplace_back("--check-config");
        Process seined(dir_.path, flags);
        EXPECT_EQ(seined.Wait(), 2) << Text(setting, value);
        EXPECT_EQ(seined.err(),
                  absl::StrCat("seined: ", File(), ": ", setting.key, ": expected one value, and there is ",
                               *value == '[' ? "a list" : "nothing", "\n"));
      }
    }
  }
}

// The environment and flags have texts alone, and an empty variable would be taken for "off".
TEST_F(SettingKindsTest, AnEmptyTextIsRefusedEverywhere) {
  for (const Setting& setting : Settings()) {
    ServerConfig config;
    EXPECT_FALSE(ApplyFlags({{setting.key, ""}}, &config).ok()) << setting.key;
    const std::string variable =
        absl::StrCat("SEINE__", absl::StrJoin(absl::StrSplit(absl::AsciiStrToUpper(setting.key), '.'), "__"), "=");
    const char* const environment[] = {variable.c_str(), nullptr};
    EXPECT_FALSE(ApplyEnvironment(environment, &config).ok()) << variable;
  }
  ServerConfig config;
  EXPECT_EQ(ApplyFlags({{"auth.tokens_file", ""}}, &config).message(),
            "--auth-tokens-file: is empty; where there is to be none, write off");
}

TEST_F(SettingKindsTest, OffIsWrittenOutAndReadBack) {
  for (const Setting& setting : Settings()) {
    const std::string off = setting.get(ServerConfig());
    if (off != "off") continue;
    for (const char* word : {"off", "Off", "OFF", "\"off\""}) {
      ServerConfig config;
      ASSERT_TRUE(ApplyFlags({{setting.key, "name"}}, &config).ok() || setting.key == "metrics.listen");
      EXPECT_TRUE(Apply(Text(setting, word), &config).ok()) << Text(setting, word);
      EXPECT_EQ(setting.get(config), "off");
    }
  }
  ServerConfig config;
  config.server.listen = "unix:/run/seine.sock";
  ServerConfig again;
  ASSERT_TRUE(Apply(ToYaml(config), &again).ok());
  EXPECT_TRUE(Resolve(&again).ok());
  EXPECT_EQ(ToYaml(again), ToYaml(config));
}

TEST_F(SettingKindsTest, ASectionThatIsNamedIsNotOffWithoutSayingSo) {
  const std::pair<const char*, const char*> cases[] = {
      {"auth: {unix: owner}",
       "auth: the file names it, but nothing sets auth.tokens_file, without which it is off; set "
       "it, or write tokens_file: off"},
      {"auth: {}", "auth: the file names it, but nothing sets auth.tokens_file"},
      {"tls: {}", "tls: the file names it, but nothing sets tls.cert"},
      {"tls: {client_ca: ca.pem}", "tls: the file names it, but nothing sets tls.cert"},
      {"audit: {}", "audit: the file names it, but nothing sets audit.file"},
      {"snapshots: {at_exit: true}", "snapshots: the file names it, but nothing sets snapshots.dir"},
      {"idle: {spill_after: 10m}", "idle: the file names it, but nothing sets idle.dir"},
  };
  for (const auto& [text, says] : cases) {
    std::ofstream(File()) << text;
    Process seined(dir_.path, {"--check-config", "--config", File()});
    EXPECT_EQ(seined.Wait(), 2) << text;
    EXPECT_NE(seined.err().find(says), std::string::npos) << seined.err();
  }
  for (const char* text : {"quality: {share: .1}", "auth: {unix: owner, tokens_file: off}", "quality: {sample: 0}",
                           "snapshots: {dir: off}", "idle: {dir: off}"}) {
    std::ofstream(File()) << text;
    Process seined(dir_.path, {"--check-config", "--config", File()});
    EXPECT_EQ(seined.Wait(), 0) << text << seined.err();
  }
  std::ofstream(File()) << "idle: {spill_after: 10m}";  // and the folder from elsewhere
  Process seined(dir_.path, {"--check-config", "--config", File()}, {"SEINE__IDLE__DIR=" + dir_.path});
  EXPECT_EQ(seined.Wait(), 0) << seined.err();
}

// Fields of an index, and of the messages in it.
TEST_F(SettingKindsTest, EveryFieldOfAnIndexRefusesEveryOtherKindByItsName) {
  using google::protobuf::FieldDescriptor;
  int tried = 0;
  const std::function<void(const google::protobuf::Descriptor&, const std::string&, const std::string&,
                           const std::string&)>
      check = [&](const auto& type, const std::string& path, const std::string& before, const std::string& after) {
        for (int i = 0; i < type.field_count(); ++i) {
          const FieldDescriptor& field = *type.field(i);
          const std::string own = absl::StrCat(path, ".", field.name());
          const std::string open = absl::StrCat(before, "{", field.name(), ": ");
          const bool message = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
          std::vector<std::string> wrong = {"~", "", "[[a]]", "{no_such_field: 1}"};
          if (field.cpp_type() != FieldDescriptor::CPPTYPE_STRING) wrong.emplace_back("words of text");
          for (const std::string& value : wrong) {
            ServerConfig config;
            const absl::Status status = Apply(absl::StrCat(open, value, "}", after), &config);
            EXPECT_TRUE(absl::StartsWith(status.message(), absl::StrCat(File(), ": ", own)))
                << open << value << ": " << status;
            ++tried;
          }
          if (message && !field.is_repeated()) check(*field.message_type(), own, open, "}" + after);
        }
      };
  check(*v1::IndexSpec::descriptor(), "indexes[0]", "indexes: [", "]\n");
  EXPECT_GE(tried, 200);
}

TEST_F(SettingKindsTest, AZeroByteOfAnEscapeIsRefused) {
  ServerConfig config;
  EXPECT_EQ(Apply("audit: {file: \"/var/log/audit\\0.log\"}", &config).message(), File() + ":1: has a zero byte");
}

TEST_F(SettingKindsTest, AStartSaysWhoMayComeIn) {
  std::ofstream(dir_.path + "/tokens.yaml")
      << "- {sha256: 5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8, role: admin}\n";
  const std::string tokens = dir_.path + "/tokens.yaml";
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--listen", socket()}, "who may come in: the socket's owner, as admin\n"},
      {{"--listen", socket(), "--auth-tokens-file", tokens},
       "who may come in: whoever shows one of 1 credentials, and the socket's owner as admin\n"},
      {{"--listen", socket(), "--auth-tokens-file", tokens, "--auth-unix", "token"},
       "who may come in: whoever shows one of 1 credentials\n"},
      {{"--listen", "127.0.0.1:0"},
       "who may come in: whoever reaches the address, as admin, without TLS; auth.tokens_file is off\n"},
      {{"--listen", "127.0.0.1:0", "--auth-tokens-file", tokens},
       "who may come in: whoever shows one of 1 credentials, without TLS\n"},
  };
  for (const auto& [flags, says] : cases) {
    Process seined(dir_.path, flags);
    EXPECT_TRUE(seined.WaitForLine(says)) << says << seined.err();
  }
  Address address;
  address.host = "0.0.0.0";
  const TlsOptions tls = {"cert.pem", "key.pem", "ca.pem"};
  EXPECT_EQ(WhoMayComeIn(address, tls, nullptr, "owner"),
            "whoever reaches the address, as admin, with a certificate of tls.client_ca, over TLS; auth.tokens_file is "
            "off");
}

}  // namespace
}  // namespace seine::test
