// Starts the server, fills it, and writes the files that commands read.
#include "tests/client/cli/cli_fixture.h"

#include <sys/stat.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace seine {
namespace {

template <typename T>
std::string Raw(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string Npy(const std::string& shape, const std::vector<float>& values) {
  std::string header = absl::StrCat("{'descr': '<f4', 'fortran_order': False, 'shape': ", shape, ", }\n");
  return absl::StrCat(absl::string_view("\x93NUMPY\x01\x00", 8), Raw<uint16_t>({static_cast<uint16_t>(header.size())}),
                      header, Raw(values));
}

}  // namespace

Server* CliTest::server_ = nullptr;
TempFolder* CliTest::folder_ = nullptr;
RandomModel* CliTest::model_ = nullptr;

void CliTest::SetUpTestSuite() {
  server_ = new Server;
  folder_ = new TempFolder;
  const auto client = server_->Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS)).ok());
  const RandomModel model(600);
  ASSERT_TRUE(client->CreateSequence("m", "s").ok());
  for (int layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(client->AppendStream({{{"m", "s", 0}, layer, 0, model.Keys(layer, 0, 600), {}}}).ok());
  }
  folder_->Write("query.npy", Npy("(4, 64)", model.query));
  folder_->Write("head.npy", Npy("(64,)", {model.query.begin() + 128, model.query.begin() + 192}));
  std::vector<float> rows(2 * 256, 0.0f);
  std::copy(model.query.begin(), model.query.end(), rows.begin() + 256);
  folder_->Write("rows.npy", Npy("(2, 4, 64)", rows));
  folder_->Write("keys.npy", Npy("(5, 2, 64)", {model.keys[0].begin(), model.keys[0].begin() + 5 * 128}));
  folder_->Write("torn.npy", Npy("(4, 64)", {1, 2, 3}));
  folder_->Write("foreign", "this is no tensor file at all");
  ASSERT_EQ(mkfifo(folder_->Path("fifo").c_str(), 0600), 0);
  model_ = new RandomModel(600);
}

void CliTest::TearDownTestSuite() {
  delete model_;
  delete folder_;
  delete server_;
}

Outcome CliTest::Seine(const std::string& line, bool with_server) {
  std::vector<std::string> arguments = {SEINE_PROGRAM};
  const std::vector<std::string> parts = absl::StrSplit(line, ' ', absl::SkipEmpty());
  for (std::string argument : parts) {
    const size_t at = argument.find('%');
    if (at != std::string::npos) argument.replace(at, 1, folder_->Path(""));
    arguments.push_back(argument);
  }
  if (with_server) return server_->Run(arguments);
  return RunProgram(arguments);
}

nlohmann::json CliTest::SeineJson(const std::string& line) {
  const Outcome outcome = Seine(line + " -o json");
  EXPECT_EQ(outcome.exit_code, 0) << line << ": " << outcome.err;
  EXPECT_EQ(outcome.err, "") << line;
  const Json json = Json::parse(outcome.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << line << ": " << outcome.out;
  return json;
}

void CliTest::ExpectError(const Outcome& outcome, const std::string& line, int exit_code, const std::string& part) {
  EXPECT_EQ(outcome.exit_code, exit_code) << line << ": " << outcome.err;
  EXPECT_EQ(outcome.out, "") << line;
  EXPECT_TRUE(absl::StartsWith(outcome.err, "seine: error: ")) << line << ": " << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << line << ": " << outcome.err;
  EXPECT_TRUE(absl::StrContains(outcome.err, part)) << line << ": " << outcome.err;
}

}  // namespace seine
