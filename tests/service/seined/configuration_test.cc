// The program seined: its configuration and its errors, and addresses in use.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "kernels/backend.h"
#include "tests/service/seined/seined_process.h"

namespace seine::test {
namespace {

// Each is one line on stderr that holds `says`, exit code 2, and nothing on stdout.
TEST_F(SeinedTest, BadConfigurationIsOneClearLine) {
  struct Case {
    std::vector<std::string> flags;
    std::vector<std::string> environment;
    std::string file;  // written to a file and given by --config, unless empty
    std::string says;
  };
  const std::string index =
      "indexes: [{name: a, geometry: {num_layers: 1, num_q_heads: 1, num_kv_heads: 1, head_dim: 64, dtype: float16}";
  const Case cases[] = {
      {{"--bogus"}, {}, "", "--bogus"},
      {{"--threads", "many"}, {}, "", "--threads: 'many'"},
      {{"--threads", "-1"}, {}, "", "--threads"},
      {{"--threads"}, {}, "", "--threads"},
      {{"--workers", "0"}, {}, "", "--workers"},
      {{"--queue-capacity", "0"}, {}, "", "--queue-capacity"},
      {{"--memory-limit", "8GiBs"}, {}, "", "--memory-limit: '8GiBs'"},
      {{"--max-message", "1KiB"}, {}, "", "--max-message: '1KiB'"},
      {{"--max-message", "3GiB"}, {}, "", "--max-message"},
      {{"--grace", "-1"}, {}, "", "--grace"},
      {{"--profiles", "/no/such/folder"}, {}, "", "server.profiles: '/no/such/folder': "},
      {{}, {"SEINE__SERVER__PROFILES=/no/such"}, "", "server.profiles: '/no/such': "},
      {{}, {}, index + ", codec: {profile: absent}}]", "indexes[0].codec.profile: the server has no folder"},
      {{"--backend", "tpu"}, {}, "", "--backend: 'tpu'"},
      {{"--tls-key", "key.pem"}, {}, "", "tls.cert: is missing beside the other settings of TLS"},
      {{"--auth-tokens-file", "/no/such"}, {}, "", "auth.tokens_file: /no/such: "},
      {{"--auth-unix", "uid"}, {}, "", "--auth-unix: 'uid' is none of owner|token"},
      {{}, {"SEINE__AUTH__QUOTAS_FILE=q.yaml"}, "", "auth.quotas_file: needs auth.tokens_file"},
      {{"--audit-file", "/no/such/audit.log"}, {}, "", "audit.file: /no/such/audit.log: No such file"},
      {{"--log-level", "loud"}, {}, "", "--log-level: 'loud'"},
      {{"--log-format", "xml"}, {}, "", "--log-format"},
      {{"--listen", "somewhere"}, {}, "", "--listen: 'somewhere'"},
      {{"--listen", "0.0.0.0:50051"}, {}, "", "is beyond this machine's loopback, which takes TLS and a credential"},
      {{"--listen", "192.168.1.2:50051"},
       {},
       "",
       "is beyond this machine's loopback, which takes TLS and a credential"},
      {{"--config", "/no/such/file"}, {}, "", "/no/such/file: No such file or directory"},
      {{}, {"SEINE__SERVER__TREADS=2"}, "", "SEINE__SERVER__TREADS: unknown key; did you mean SEINE__SERVER__THREADS?"},
      {{"--treads", "2"}, {}, "", "did you mean --threads?"},
      {{"--draining=maybe"}, {}, "", "--draining: 'maybe' is neither true nor false"},
      {{}, {"SEINE__SERVER__THREADS=two"}, "", "SEINE__SERVER__THREADS: 'two'"},
      {{}, {"SEINE__NOWHERE=1"}, "", "SEINE__NOWHERE: unknown key"},
      {{}, {}, "server: {treads: 2}", "server.treads: unknown key; did you mean server.threads?"},
      {{}, {}, "sever: {threads: 2}", "sever.threads: unknown key"},
      {{}, {}, "server: 5", "server: expected keys and values"},
      {{}, {}, "nothing: 5", "nothing: unknown key"},
      {{}, {}, "server: {threads: [1]}", "server.threads"},
      {{}, {}, "server: {polling: perhaps}", "server.polling: 'perhaps'"},
      {{}, {}, "just words", "expected sections"},
      {{}, {}, "server: {threads: 2", "seined.yaml:2: "},
      {{}, {}, "indexes: {name: a}", "indexes: expected a list"},
      {{}, {}, index + ", snik: 4}]", "indexes[0].snik: unknown key"},
      {{}, {}, index + ", zones: {snik: 4}}]", "indexes[0].zones.snik: unknown key"},
      {{}, {}, index + ", zones: {sink: four}}]", "indexes[0].zones.sink: expected a number"},
      {{}, {}, index + ", zones: {update_buffer: 65}}]", "indexes[0].zones.update_buffer: 65"},
      {{},
       {},
       index + ", codec: {centre: middle}}]",
       "indexes[0].codec.centre: no such Centre: 'middle'; there are none, global, window"},
      {{}, {}, index + ", retrieval: {top_k: 0}}]", "indexes[0].retrieval.top_k: 0"},
      {{}, {}, "indexes: [{name: a}]", "indexes[0].geometry"},
      {{},
       {},
       index +
           "}, {name: a, geometry: {num_layers: 1, num_q_heads: 1, num_kv_heads: 1, head_dim: 64, dtype: float16}}]",
       "indexes[1].name: a second index"},
  };
  for (const Case& c : cases) {
    std::vector<std::string> flags = c.flags;
    if (!c.file.empty()) {
      std::ofstream(dir_.path + "/seined.yaml") << c.file << "\n";
      flags.insert(flags.end(), {"--config", dir_.path + "/seined.yaml"});
    }
    Process seined(dir_.path, flags, c.environment);
    EXPECT_EQ(seined.Wait(), 2) << c.says;
    const std::string err = seined.err();
    EXPECT_NE(err.find(c.says), std::string::npos) << c.says << "\n got: " << err;
    EXPECT_EQ(Lines(err), 1) << err;
    EXPECT_EQ(seined.out(), "") << c.says;
  }
}

TEST_F(SeinedTest, TooFewOpenFilesAreRefusedWithBothNumbers) {
  const std::string file = dir_.path + "/err";
  const std::string command = std::string("ulimit -n 64; exec " SEINED_PATH " --listen ") + socket() + " 2>" + file;
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_EQ(ReadFile(file), "seined: the system allows 64 open files (ulimit -n), and at least 192 are needed\n");
}

TEST_F(SeinedTest, LaterLayersWinAndCheckConfigPrintsThem) {
  std::ofstream(dir_.path + "/seined.yaml") << "server: {threads: 1, workers: 2, queue_capacity: 3}\n";
  Process seined(dir_.path, {"--config", dir_.path + "/seined.yaml", "--queue-capacity", "30", "--check-config"},
                 {"SEINE__SERVER__WORKERS=20", "SEINE__SERVER__QUEUE_CAPACITY=25"});
  ASSERT_EQ(seined.Wait(), 0) << seined.err();
  const std::string out = seined.out();
  for (const char* line : {"  threads: 1\n", "  workers: 20\n", "  queue_capacity: 30\n", "  max_message: 64MiB\n"}) {
    EXPECT_NE(out.find(line), std::string::npos) << line << out;
  }
}

TEST_F(SeinedTest, HelpTeachesEverySetting) {
  Process seined(dir_.path, {"--help"});
  ASSERT_EQ(seined.Wait(), 0);
  for (const char* text : {"--listen", "--polling", "--memory-limit", "--device-memory-limit", "--check-config",
                           "SEINE__SERVER__MEMORY_LIMIT", "indexes:"}) {
    EXPECT_NE(seined.out().find(text), std::string::npos) << text;
  }
}

TEST_F(SeinedTest, ABackendThatIsNotThereIsOneClearLine) {
  std::string why;
  const bool there = MakeBackend("cuda", 1, &why) != nullptr;
  Process seined(dir_.path, {"--listen", socket(), "--backend", "cuda"});
  if (there) {
    EXPECT_TRUE(seined.WaitForLine("(cuda, "));
  } else {
    EXPECT_EQ(seined.Wait(), 1);
    EXPECT_EQ(seined.err(), "seined: backend: " + why + "\n");
  }
}

TEST_F(SeinedTest, AddressInUseIsOneClearLine) {
  Process first(dir_.path, {"--listen", socket()});
  ASSERT_TRUE(first.WaitForLine("listens on"));
  const TempDir other;
  Process second(other.path, {"--listen", socket()});
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_NE(second.err().find("in use by another server; --listen takes another address"), std::string::npos)
      << second.err();
  EXPECT_EQ(Lines(second.err()), 1) << second.err();
  v1::ListIndexesResponse list;
  EXPECT_TRUE(Call(*Stubs(socket()).index, &v1::IndexService::Stub::ListIndexes, v1::ListIndexesRequest(), &list).ok());

  const TempDir third_dir, fourth_dir;
  Process third(third_dir.path, {"--listen", "127.0.0.1:0"});
  ASSERT_TRUE(third.WaitForLine("listens on 127.0.0.1:"));
  const std::string line = third.err();
  const size_t at = line.find("127.0.0.1:");
  const std::string address = line.substr(at, line.find(' ', at) - at);
  Process fourth(fourth_dir.path, {"--listen", address});
  EXPECT_EQ(fourth.Wait(), 1);
  EXPECT_NE(fourth.err().find(address + " is in use"), std::string::npos) << fourth.err();
}

TEST_F(SeinedTest, SocketOfAKilledServerIsReplaced) {
  {
    Process killed(dir_.path, {"--listen", socket()});
    ASSERT_TRUE(killed.WaitForLine("listens on"));
    killed.Signal(SIGKILL);
    EXPECT_EQ(killed.Wait(), -SIGKILL);
  }
  ASSERT_EQ(access((dir_.path + "/seine.sock").c_str(), F_OK), 0);
  Process next(dir_.path, {"--listen", socket()});
  ASSERT_TRUE(next.WaitForLine("listens on")) << next.err();
  v1::ListIndexesResponse list;
  EXPECT_TRUE(Call(*Stubs(socket()).index, &v1::IndexService::Stub::ListIndexes, v1::ListIndexesRequest(), &list).ok());
  next.Signal(SIGINT);
  EXPECT_EQ(next.Wait(), 0);
  EXPECT_NE(access((dir_.path + "/seine.sock").c_str(), F_OK), 0);
}

TEST_F(SeinedTest, NamesThatLookLikeSettingsAreWarnedOf) {
  const std::pair<const char*, const char*> cases[] = {
      {"SEINE_SERVER__THREADS=2", "SEINE_SERVER__THREADS is not read; did you mean SEINE__SERVER__THREADS?"},
      {"SEINE_SERVER__TREADS=2", "SEINE_SERVER__TREADS is not read; did you mean SEINE__SERVER__THREADS?"},
      {"SEINE_MEMORY_LIMIT=8GiB", "SEINE_MEMORY_LIMIT is not read; did you mean SEINE__SERVER__MEMORY_LIMIT?"},
      {"SEINED__LOG__LEVEL=debug", "SEINED__LOG__LEVEL is not read; did you mean SEINE__LOG__LEVEL?"},
      {"seine__log__level=debug", "seine__log__level is not read; did you mean SEINE__LOG__LEVEL?"},
      {"SEINE_SERVER__X=1", "SEINE_SERVER__X is not read: names of settings are SEINE__SECTION__KEY"},
  };
  for (const auto& [entry, says] : cases) {
    Process checked(dir_.path, {"--check-config"}, {entry});
    EXPECT_EQ(checked.Wait(), 0);
    EXPECT_EQ(checked.err(), std::string("seined: warning: environment: ") + says + "\n");
  }
  Process quiet(dir_.path, {"--check-config"}, {"SEINE_SERVER=/run/seine.sock", "SEINE_TRACE=x", "SEINE_CUDA=AUTO"});
  EXPECT_EQ(quiet.Wait(), 0);
  EXPECT_EQ(quiet.err(), "");
  Process seined(dir_.path, {"--listen", socket()}, {"SEINE_SERVER__THREADS=2"});
  EXPECT_TRUE(seined.WaitForLine("warning environment: SEINE_SERVER__THREADS is not read")) << seined.err();
}

TEST_F(SeinedTest, AFileTakesEverySpellingOfAValue) {
  for (const char* dtype : {"bf16", "bfloat16", "BFLOAT16", "D_TYPE_BFLOAT16"}) {
    for (const char* scope : {"q_head", "per_q_head"}) {
      std::ofstream(dir_.path + "/seined.yaml")
          << "indexes: [{name: a, geometry: {num_layers: 1, num_q_heads: 1, num_kv_heads: 1, head_dim: 64, dtype: "
          << dtype << "}, retrieval: {scope: " << scope << "}}]\n";
      Process seined(dir_.path, {"--config", dir_.path + "/seined.yaml", "--check-config"});
      EXPECT_EQ(seined.Wait(), 0) << seined.err();
      EXPECT_NE(seined.out().find("dtype: bfloat16"), std::string::npos) << seined.out();
      EXPECT_NE(seined.out().find("scope: per_q_head"), std::string::npos) << seined.out();
    }
  }
}

}  // namespace
}  // namespace seine::test
