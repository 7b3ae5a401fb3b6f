// `seine call` and Client::OpenCall: any method of the server by its name, in JSON.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/methods.h"
#include "tests/client/process.h"
#include "tests/client/random_model.h"

namespace seine {
namespace {

using Json = nlohmann::json;

Json TensorJson(const client::ConstTensor& tensor) {
  size_t bytes = sizeof(float);
  for (const int64_t size : tensor.shape) bytes *= static_cast<size_t>(size);
  return {{"dtype", "D_TYPE_FLOAT32"},
          {"shape", tensor.shape},
          {"raw", absl::Base64Escape({static_cast<const char*>(tensor.data), bytes})}};
}

class CallTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = new Server;
    client_ = server_->Connect().release();
    ASSERT_NE(client_, nullptr);
    ASSERT_TRUE(client_->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS)).ok());
  }
  static void TearDownTestSuite() {
    delete client_;
    delete server_;
  }

  static std::vector<std::string> Environment() { return {"SEINE_SERVER=" + server_->endpoint()}; }

  static Outcome Call(const std::string& method, const std::string& json, const std::string& more = "") {
    std::vector<std::string> arguments = {SEINE_PROGRAM, "call", method, json};
    if (!more.empty()) arguments.push_back(more);
    return RunProgram(arguments, Environment());
  }

  // `seine call METHOD -` on what a file or a pipe holds.
  static Outcome CallWithInput(const std::string& method, const std::string& path) {
    return RunProgram({"/bin/sh", "-c", "exec \"$0\" call \"$1\" - < \"$2\"", SEINE_PROGRAM, method, path},
                      Environment());
  }

  static void ExpectError(const Outcome& outcome, int exit_code, const std::string& part) {
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_TRUE(absl::StrContains(outcome.err, part)) << outcome.err;
  }

  Json Handle(const std::string& id) const { return {{"index", "m"}, {"id", id}}; }
  // An append of one token to layer 0.
  Json Token(const std::string& id, int64_t position) const {
    return {{"handle", Handle(id)}, {"position", position}, {"keys", TensorJson(model_.Keys(0, position, 1))}};
  }
  void Create(const std::string& id) { ASSERT_TRUE(client_->CreateSequence("m", id).ok()); }

  const RandomModel model_{8};
  TempFolder folder_;
  static Server* server_;
  static client::Client* client_;
};
Server* CallTest::server_ = nullptr;
client::Client* CallTest::client_ = nullptr;

// A service whose file is missing in methods.cc would show here.
TEST_F(CallTest, EveryMethodOfTheProtosIsListed) {
  const std::regex service(R"(^service (\w+) \{)"), rpc(R"(^  rpc (\w+)\()");
  std::set<std::string> declared, listed;
  for (const auto& file : std::filesystem::directory_iterator(SEINE_PROTOS)) {
    std::ifstream in(file.path());
    std::string line, name;
    std::smatch match;
    while (std::getline(in, line)) {
      if (std::regex_search(line, match, service)) name = match[1];
      if (std::regex_search(line, match, rpc)) declared.insert(absl::StrCat("seine.v1.", name, "/", match[1].str()));
    }
  }
  EXPECT_GT(declared.size(), 20u);
  const Outcome outcome = RunProgram({SEINE_PROGRAM, "call", "--list", "-o", "json"});  // without a server
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const Json& method : Json::parse(outcome.out)) listed.insert(method["method"]);
  EXPECT_EQ(listed, declared);
}

TEST_F(CallTest, DescribesWhatARequestHolds) {
  const Outcome outcome = RunProgram({SEINE_PROGRAM, "call", "Retrieve", "--describe"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"message RetrieveRequest {", "message Selector {",
                           "optional double candidate_fraction = 5 [", "enum Scope {", "message RetrieveAnswer {"}) {
    EXPECT_TRUE(absl::StrContains(outcome.out, part)) << part;
  }
}

TEST_F(CallTest, UnaryCallsAnswerInJson) {
  Create("u");
  for (const char* name : {"GetSequence", "SequenceService/GetSequence", "seine.v1.SequenceService.GetSequence",
                           "/seine.v1.SequenceService/GetSequence"}) {
    const Outcome outcome = Call(name, Json{{"handle", Handle("u")}}.dump());
    ASSERT_EQ(outcome.exit_code, 0) << name << ": " << outcome.err;
    const Json answer = Json::parse(outcome.out);
    EXPECT_EQ(answer["sequence"]["handle"]["id"], "u") << name;
    EXPECT_EQ(answer["sequence"]["code_bytes"], "0") << name;  // written though it is the default
  }
  const Outcome empty = RunProgram({SEINE_PROGRAM, "call", "GetServerInfo"}, Environment());
  ASSERT_EQ(empty.exit_code, 0) << empty.err;
  EXPECT_EQ(Json::parse(empty.out)["backend"], "cpu");
  const Outcome lines = CallWithInput("GetSequence", folder_.Write("u.json", Json{{"handle", Handle("u")}}.dump(2)));
  EXPECT_EQ(lines.exit_code, 0) << lines.err;
}

// Details of an item's error travel under google.rpc's names, which no proto of ours declares.
TEST_F(CallTest, ErrorsInsideAnswersAreShown) {
  const Json item = {{"handle", Handle("nobody")}, {"queries", TensorJson(model_.Query())}};
  const Outcome outcome = Call("Retrieve", Json{{"items", {item}}}.dump());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json status = Json::parse(outcome.out)["answers"][0]["status"];
  EXPECT_EQ(status["code"], 5);
  EXPECT_TRUE(absl::StrContains(status["details"].dump(), "google.rpc.ErrorInfo")) << status;
}

TEST_F(CallTest, AStreamOfRequestsTakesALineEach) {
  Create("a");
  std::string lines;
  for (int64_t position = 0; position < 3; ++position) {
    absl::StrAppend(&lines, Json{{"item", Token("a", position)}}.dump(), position == 1 ? "\n\n" : "\n");
  }
  const Outcome outcome = CallWithInput("AppendStream", folder_.Write("a.jsonl", lines));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out)["tokens"], "3");

  const Outcome torn = CallWithInput(
      "AppendStream", folder_.Write("t.jsonl", Json{{"item", Token("a", 3)}}.dump() + "\n\n{\"item\": 3}\n"));
  EXPECT_EQ(torn.exit_code, 2);
  EXPECT_TRUE(absl::StrContains(torn.err, "standard input, line 3: the request: (item)")) << torn.err;
  EXPECT_EQ(Json::parse(torn.out)["tokens"], "1");  // what was applied before it is said
  const Outcome folder = CallWithInput("AppendStream", folder_.Path(""));
  EXPECT_EQ(folder.exit_code, 3);
  EXPECT_TRUE(absl::StrContains(folder.err, "standard input: ")) << folder.err;
}

TEST_F(CallTest, AStreamOfAnswersIsALineEach) {
  Create("d");
  std::string lines;
  for (int64_t position = 0; position < 3; ++position) {
    absl::StrAppend(&lines, Json{{"appends", {Token("d", position)}}}.dump(), "\n");
  }
  const Outcome outcome = CallWithInput("Decode", folder_.Write("d.jsonl", lines));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<std::string> answers = absl::StrSplit(outcome.out, '\n', absl::SkipEmpty());
  ASSERT_EQ(answers.size(), 3u) << outcome.out;
  for (const std::string& answer : answers) EXPECT_FALSE(Json::parse(answer, nullptr, false).is_discarded()) << answer;
  EXPECT_EQ(client_->GetSequence({"m", "d", 0})->layer_tokens[0], 3);
}

// One answer comes before the next request is written.
TEST_F(CallTest, BothDirectionsRunAtOnce) {
  Create("b");
  const auto call = client_->OpenCall(*client::FindMethod("Decode"));
  for (int64_t position = 0; position < 3; ++position) {
    ASSERT_TRUE(call->Write(Json{{"appends", {Token("b", position)}}}.dump()).ok());
    const auto answer = call->Read();
    ASSERT_TRUE(answer.ok()) << answer.status();
    ASSERT_TRUE(answer->has_value()) << call->Finish();
  }
  EXPECT_TRUE(absl::IsInvalidArgument(call->Write("{")));  // nothing was sent: the call goes on
  call->WritesDone();
  EXPECT_EQ(*call->Read(), std::nullopt);
  EXPECT_TRUE(call->Finish().ok());
  EXPECT_EQ(client_->GetSequence({"m", "b", 0})->layer_tokens[0], 3);
  const auto dropped = client_->OpenCall(*client::FindMethod("Decode"));  // is cancelled
  EXPECT_TRUE(dropped->Write("{}").ok());
}

// The server ends the stream while its input stays open: the command does not wait for what nobody will read.
TEST_F(CallTest, EndsWithTheServerThoughInputIsOpen) {
  const std::string pipe = folder_.Path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int open_end = open(pipe.c_str(), O_RDWR | O_CLOEXEC);
  const std::string line = Json{{"item", Token("nobody", 0)}}.dump() + "\n";
  ASSERT_EQ(write(open_end, line.data(), line.size()), static_cast<ssize_t>(line.size()));
  ExpectError(CallWithInput("AppendStream", pipe), 5, "nobody");
  close(open_end);
}

TEST_F(CallTest, WrongRequestsAreErrorsOfTheCommandLine) {
  ExpectError(Call("RetrieveTopK", "{}"), 2, "unknown method RetrieveTopK; did you mean Retrieve?");
  ExpectError(Call("seine.v1.IndexService/GetIndexs", "{}"), 2, "did you mean seine.v1.IndexService/GetIndex?");
  ExpectError(Call("", "{}"), 2, "unknown method  (seine call --list)");
  ExpectError(Call("Xylophone", "{}"), 2, "unknown method Xylophone (seine call --list)");
  ExpectError(Call("GetIndex", "{\"name\""), 2, "the request is not JSON");
  ExpectError(Call("GetIndex", "[]"), 2, "must be a JSON object");
  ExpectError(Call("GetIndex", "{\"nme\": \"m\"}"), 2, "GetIndexRequest has no field \"nme\"; did you mean name?");
  ExpectError(Call("GetIndex", "{\"name\": 3}"), 2, "(name): invalid value 3");
  ExpectError(Call("Retrieve", "{\"items\": [{}, {\"handle\": {\"idx\": 1}}]}"), 2,
              "items[1].handle: SequenceHandle has no field \"idx\"");
  ExpectError(Call("GetIndex", "{\"name\": \"\xff\"}"), 2, "JSON: must be UTF-8");
  ExpectError(Call("GetIndex", "{}", "--list"), 2, "--list");
  ExpectError(RunProgram({SEINE_PROGRAM, "call"}), 2, "METHOD");
  ExpectError(RunProgram({SEINE_PROGRAM, "call", "GetIndx", "--server", "unix:///none"}), 2, "unknown method");
}

TEST_F(CallTest, TheServersErrorsHaveTheirExitCodes) {
  ExpectError(Call("GetIndex", "{\"name\": \"none\"}"), 5, "no such index: 'none'");
  ExpectError(Call("CreateSequence", "{\"index\": \"m\", \"id\": \"a b\"}"), 7, "id");
  const std::string spec = Json{{"spec", {{"name", "m"}}}}.dump();
  ExpectError(Call("CreateIndex", spec), 7, "spec.geometry");
  ExpectError(RunProgram({SEINE_PROGRAM, "call", "GetServerInfo", "--server", folder_.Path("none.sock")}), 4,
              "no server at");
}

TEST_F(CallTest, ASilentServerIsNotWaitedForForever) {
  Server silent;
  const auto client = silent.Connect({.timeout = absl::Milliseconds(200)});
  ASSERT_NE(client, nullptr);
  silent.Pause();
  for (const char* method : {"GetServerInfo", "AppendStream", "Decode"}) {
    const auto call = client->OpenCall(*client::FindMethod(method));
    (void)call->Write("{}");
    call->WritesDone();
    EXPECT_EQ(*call->Read(), std::nullopt) << method;
    EXPECT_TRUE(absl::IsDeadlineExceeded(call->Finish())) << method;
  }
  silent.Resume();
}

}  // namespace
}  // namespace seine
