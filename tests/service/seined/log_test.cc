// The program seined: what it logs.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "seine/v1/eviction_service.grpc.pb.h"
#include "service/event_log.h"
#include "tests/service/seined/seined_process.h"

namespace seine::test {
namespace {

TEST_F(SeinedTest, LogsAreJsonOnRequestAndIndexesAreThereFromTheStart) {
  std::ofstream(dir_.path + "/seined.yaml") << "indexes: [{name: early, geometry: {num_layers: 1, num_q_heads: 1, "
                                               "num_kv_heads: 1, head_dim: 64, dtype: float16}}]\n";
  Process seined(dir_.path, {"--listen", socket(), "--log-format", "json", "--config", dir_.path + "/seined.yaml"});
  ASSERT_TRUE(seined.WaitForLine("listens on")) << seined.err();
  v1::GetIndexRequest get;
  v1::GetIndexResponse got;
  get.set_name("early");
  EXPECT_TRUE(Call(*Stubs(socket()).index, &v1::IndexService::Stub::GetIndex, get, &got).ok());
  seined.Signal(SIGTERM);
  EXPECT_EQ(seined.Wait(), 0);
  std::istringstream lines(seined.err());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(parsed.is_object()) << line;
    EXPECT_EQ(parsed.at("level"), "info");
    EXPECT_FALSE(parsed.at("message").get<std::string>().empty());
  }
  EXPECT_GE(count, 3);
}

// Else the first files that it opens would be its stdin, stdout and stderr.
TEST_F(SeinedTest, ALogWithoutDescriptorsGoesIntoNoFileOfItsOwn) {
  const std::string command =
      std::string("'") + SEINED_PATH + "' --listen " + socket() + " --log-level debug <&- >&- 2>&- & echo $!; exec >&-";
  std::FILE* const shell = popen(command.c_str(), "r");
  int pid = 0;
  ASSERT_EQ(std::fscanf(shell, "%d", &pid), 1);
  pclose(shell);
  bool answers = false;
  for (int i = 0; i < 500 && !answers; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    answers = Creates(Stubs(socket()), Spec("own"));
  }
  EXPECT_TRUE(answers);
  const auto descriptor = [pid](int number) {
    std::error_code none;
    return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(number), none);
  };
  for (const int number : {1, 2}) EXPECT_EQ(descriptor(number), "/dev/null");  // 0 may be a library's by then
  EXPECT_EQ(ReadFile(dir_.path + "/seine.sock.lock").find("info"), std::string::npos);
  kill(pid, SIGTERM);
  for (int i = 0; i < 500 && descriptor(0) != ""; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(descriptor(0), "");
}

TEST_F(SeinedTest, LogsIndexesFailuresRefusalsAndEvictions) {
  for (const bool polling : {false, true}) {
    SCOPED_TRACE(polling);
    std::vector<std::string> flags = {"--listen", socket(), "--threads", "1", "--log-level", "debug"};
    if (polling) flags.push_back("--polling");
    Process seined(dir_.path, flags);
    ASSERT_TRUE(seined.WaitForLine("listens on")) << seined.err();
    const Stubs stubs(socket());
    v1::IndexSpec spec = Spec("own");
    spec.mutable_eviction()->mutable_budget()->set_tokens(100);
    spec.mutable_eviction()->set_interval(50);
    EXPECT_TRUE(Creates(stubs, spec));
    EXPECT_TRUE(seined.WaitForLine("info index own: created; ")) << seined.err();

    v1::CreateSequenceRequest request;
    v1::CreateSequenceResponse response;
    request.set_index("own");
    ASSERT_TRUE(Call(*stubs.sequence, &v1::SequenceService::Stub::CreateSequence, request, &response).ok());
    v1::AppendRequest append;
    v1::AppendResponse appended;
    *append.mutable_item() = Item(response.handle(), 0, 0, 200);
    ASSERT_TRUE(Call(*stubs.retrieval, &v1::RetrievalService::Stub::Append, append, &appended).ok());
    EXPECT_TRUE(seined.WaitForLine("debug index own: evicted ")) << seined.err();
    EXPECT_NE(seined.err().find("tokens by itself, heads together, in "), std::string::npos) << seined.err();

    // By a call: not the index's own doing.
    const int64_t before = Lines(seined.err());
    const auto eviction = v1::EvictionService::NewStub(stubs.channel);
    v1::EvictRequest evict;
    v1::EvictResponse evicted;
    *evict.mutable_handle() = response.handle();
    evict.mutable_scorer()->set_name("keydiff");
    evict.mutable_budget()->set_tokens(20);
    ASSERT_TRUE(Call(*eviction, &v1::EvictionService::Stub::Evict, evict, &evicted).ok());
    EXPECT_GT(evicted.tokens_evicted(), 0);
    EXPECT_TRUE(Holds(stubs, "own"));
    EXPECT_EQ(Lines(seined.err()), before) << seined.err();

    EXPECT_FALSE(Holds(stubs, "nobody"));
    EXPECT_TRUE(seined.WaitForLine("info GetIndex: NOT_FOUND: name: no such index: 'nobody'")) << seined.err();

    v1::IndexSpec tight = Spec("tight");
    tight.set_memory_limit_bytes(16 << 10);
    EXPECT_TRUE(Creates(stubs, tight));
    request.set_index("tight");
    ASSERT_TRUE(Call(*stubs.sequence, &v1::SequenceService::Stub::CreateSequence, request, &response).ok());
    *append.mutable_item() = Item(response.handle(), 0, 0, 512);
    for (int i = 0; i < 100; ++i) {
      EXPECT_FALSE(Call(*stubs.retrieval, &v1::RetrievalService::Stub::Append, append, &appended).ok());
    }
    EXPECT_TRUE(seined.WaitForLine("warning refused Append: RESOURCE_EXHAUSTED: ")) << seined.err();
    int refused = 0;
    const std::string log = seined.err();
    for (size_t at = 0; (at = log.find("refused Append", at)) != std::string::npos; ++at) ++refused;
    EXPECT_LE(refused, 20) << log;  // of 100

    v1::DeleteIndexRequest remove;
    v1::DeleteIndexResponse removed;
    remove.set_name("own");
    ASSERT_TRUE(Call(*stubs.index, &v1::IndexService::Stub::DeleteIndex, remove, &removed).ok());
    EXPECT_TRUE(seined.WaitForLine("info index own: deleted")) << seined.err();
    seined.Signal(SIGTERM);
    EXPECT_EQ(seined.Wait(), 0);
  }
}

TEST(EventLog, LinesOfOneKindAreFewAndSayHowManyWereLeftOut) {
  LineLimit limit;
  const absl::Time start = absl::UnixEpoch();
  int written = 0;
  for (int i = 0; i < 1000; ++i) written += limit.Admit(start).has_value();
  EXPECT_EQ(written, 10);
  EXPECT_FALSE(limit.Admit(start + absl::Milliseconds(900)));
  EXPECT_EQ(limit.Admit(start + absl::Milliseconds(1100)), 991);
  EXPECT_EQ(limit.Admit(start + absl::Seconds(60)), 0);
}

}  // namespace
}  // namespace seine::test
