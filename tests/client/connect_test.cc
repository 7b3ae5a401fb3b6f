// Connecting: endpoints, servers that are not there yet or no more, and folders that others may write to.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/client.h"
#include "tests/client/process.h"
#include "tests/default_folder.h"
#include "tests/temp_folder.h"

namespace seine {
namespace {

using client::Client;

TEST(Connect, RefusesWrongEndpoints) {
  const std::string long_path = "unix:///" + std::string(200, 'x');
  for (const std::string& endpoint :
       {std::string(""), std::string("unix:"), std::string("unix://"), std::string("localhost"), std::string(":50051"),
        std::string("host:"), std::string("host:0"), std::string("host:65536"), std::string("http://host:80"),
        long_path}) {
    const absl::Status status = Client::Connect(endpoint).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << endpoint << ": " << status;
    EXPECT_TRUE(absl::StartsWith(status.message(), "endpoint")) << status;
  }
}

TEST(Connect, SaysAtOnceThatNobodyIsThere) {
  TempFolder folder;
  const absl::Time start = absl::Now();
  const std::string missing = "unix://" + folder.Path("no.sock");
  for (const std::string& endpoint : {missing, std::string("127.0.0.1:1")}) {
    const absl::Status status = Client::Connect(endpoint).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), endpoint)) << status;
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(3));
}

TEST(Connect, WaitsForAServerThatIsStarting) {
  client::Options options;
  options.wait_for_server = true;
  options.connect_timeout = absl::Milliseconds(300);
  TempFolder folder;
  EXPECT_EQ(Client::Connect("unix://" + folder.Path("no.sock"), options).status().code(),
            absl::StatusCode::kUnavailable);
  Server server;  // Connect begins before it listens
  EXPECT_TRUE(*server.Connect()->IsServing(""));
}

TEST(Connect, DefaultIsWhereSeinedListens) {
  TempFolder folder;
  const std::string runtime = folder.Path("");
  for (const std::string& setting :
       {runtime.substr(0, runtime.size() - 1), std::string("/nowhere/at/all"), std::string()}) {
    setenv("XDG_RUNTIME_DIR", setting.c_str(), 1);
    std::string path = client::DefaultEndpoint();
    ASSERT_TRUE(absl::StartsWith(path, "unix://")) << path;
    path = path.substr(7);
    EXPECT_EQ(path, folder.Path("") == setting + "/" ? folder.Path("seine.sock")
                                                     : absl::StrCat("/tmp/seine-", getuid(), "/seine.sock"));
    const Outcome outcome = RunProgram({SEINED_PROGRAM, "--check-config"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    bool found = false;
    for (absl::string_view line : absl::StrSplit(outcome.out, '\n'))
      found |= absl::StrContains(line, "listen") && absl::EndsWith(line, path);
    EXPECT_TRUE(found) << path << " is not in\n" << outcome.out;
  }
  unsetenv("XDG_RUNTIME_DIR");
}

// A folder in /tmp that another may have made: by his link, in his name, or open to him.
TEST(Connect, NothingIsSentWhereOthersMayListen) {
  const DefaultFolder folder;
  const std::string path = folder.path(), endpoint = "unix://" + path + "/seine.sock";
  const TempFolder own;
  const auto code = [&] { return Client::Connect(endpoint).status().code(); };
  EXPECT_EQ(code(), absl::StatusCode::kUnavailable);  // no folder
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  EXPECT_EQ(code(), absl::StatusCode::kUnavailable);  // no socket
  for (const mode_t mode : {0777, 0770, 01777, 0702}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_EQ(code(), absl::StatusCode::kFailedPrecondition) << mode;
  }
  std::filesystem::remove(path);
  ASSERT_EQ(symlink(own.Path("").c_str(), path.c_str()), 0);
  const absl::Status refused = Client::Connect(endpoint).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(refused.message(), path)) << refused;
  EXPECT_EQ(Client::Connect("unix://" + path + "/other.sock").status().code(), absl::StatusCode::kUnavailable);
  if (getuid() == 0) {  // the CI's user may make another's
    std::filesystem::remove(path);
    ASSERT_EQ(mkdir(path.c_str(), 0755), 0);
    ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
    EXPECT_EQ(code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(Client, SaysThatTheServerIsLost) {
  Server server;
  const auto client = server.Connect();
  ASSERT_TRUE(client->GetServerInfo().ok());
  server.Kill();
  const absl::Status status = client->GetServerInfo().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), server.endpoint())) << status;
}

TEST(Client, KeepsToItsTimeout) {
  Server server;
  ASSERT_NE(server.Connect(), nullptr);
  client::Options options;
  options.timeout = absl::Milliseconds(200);
  const auto client = server.Connect(options);
  ASSERT_NE(client, nullptr);
  server.Pause();
  const absl::Status status = client->GetServerInfo().status();
  server.Resume();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
}

}  // namespace
}  // namespace seine
