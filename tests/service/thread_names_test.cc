// An operator tells a server's threads by their names (`top -H`).
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "tests/service/fixture.h"

namespace seine::test {
namespace {

std::set<std::string> NamesOfThreads() {
  std::set<std::string> names;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    if (std::getline(std::ifstream(task.path() / "comm"), name)) names.insert(name);
  }
  return names;
}

class ThreadNamesTest : public ServerTest {
 protected:
  ServerOptions Options() const override {
    ServerOptions options = ServerTest::Options();
    options.core.threads = 2;
    return options;
  }
};

TEST_P(ThreadNamesTest, ThreadsAreNamedByWhatTheyDo) {
  std::set<std::string> missing = {"lane",        "rescuer", "calls",    "long-calls", "long-steps",
                                   "short-steps", "monitor", "listener", "channels",   "seine-pool"};
  if (!GetParam()) missing.insert("front");
  const auto most = std::chrono::steady_clock::now() + std::chrono::seconds(20);  // a thread names itself
  while (!missing.empty() && std::chrono::steady_clock::now() < most) {
    for (const std::string& name : NamesOfThreads()) missing.erase(name);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(missing, std::set<std::string>());
}

INSTANTIATE_TEST_SUITE_P(BothWays, ThreadNamesTest, ::testing::Bool());

}  // namespace
}  // namespace seine::test
