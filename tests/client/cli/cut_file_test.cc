// A trace that another program cuts short while `seine append` reads it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>

#include "tests/client/cli/cli_fixture.h"

namespace seine {
namespace {

constexpr int64_t kTokensOfTheFile = 200'000;

// Its rows are a hole of the file: zeros.
void WriteLargeNpy(const std::string& path) {
  const std::string shape = "(" + std::to_string(kTokensOfTheFile) + ", " + std::to_string(RandomModel::kKvHeads) +
                            ", " + std::to_string(RandomModel::kHeadDim) + ")";
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }\n";
  const auto size = static_cast<uint16_t>(header.size());
  std::string file("\x93NUMPY\x01\x00", 8);
  file.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(header);
  std::ofstream(path, std::ios::binary) << file;
  std::filesystem::resize_file(path, file.size() + static_cast<size_t>(kTokensOfTheFile) * RandomModel::kRow * 4);
}

TEST(CutFile, IsOneClearError) {
  Server server;
  const auto client = server.Connect();
  ASSERT_TRUE(client->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS)).ok());
  const TempFolder folder;
  for (const bool json : {false, true}) {
    const auto sequence = client->CreateSequence("m", "s");
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    const std::string path = folder.Path("trace.npy");
    WriteLargeNpy(path);
    auto ended = std::async(std::launch::async, [&] {
      return RunProgram({SEINE_PROGRAM, "--server", server.endpoint(), "-o", json ? "json" : "table", "append", "m",
                         "s", "--layer", "0", "--file", path, "--tensor", "array"});
    });
    for (int i = 0; i < 20'000 && client->GetSequence(*sequence)->layer_tokens[0] == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::filesystem::resize_file(path, 8192);
    const Outcome outcome = ended.get();
    EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err.find(path + ": cut short while it is read"), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.err.rfind(json ? "{\"error\":{" : "seine: error: ", 0), 0u) << outcome.err;
    EXPECT_LT(client->GetSequence(*sequence)->layer_tokens[0], kTokensOfTheFile);
    EXPECT_TRUE(client->DeleteSequence(*sequence).ok());
  }
}

}  // namespace
}  // namespace seine
