// Settings files that are no files, hold too much or say a thing twice; what --check-config refuses; a full disk under
// stdout. Each is one line on stderr.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "kernels/backend.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

constexpr char kTwoSections[] = "server: {threads: 1}\nlog: {level: info}\n";

std::string IndexNamed(const std::string& name) {
  return "  - {name: " + name +
         ", geometry: {num_layers: 1, num_q_heads: 1, num_kv_heads: 1, head_dim: 64, dtype: float16}}\n";
}

std::string Repeated(int count, const std::string& text) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

class SettingsTest : public ::testing::Test {
 protected:
  struct Ended {
    int exit_code = -1;
    std::string out, err;
  };
  // Runs seined to its end; `to` is where stdout goes, as a shell has it.
  Ended Seined(const std::string& flags, const std::string& to = "") const {
    const std::string out = dir_.path + "/out", err = dir_.path + "/err";
    const std::string sink = to.empty() ? ">" + out : to;
    const int status = std::system(("timeout 20 " SEINED_PATH " " + flags + " " + sink + " 2>" + err).c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, Contents(out), Contents(err)};
  }
  // --check-config and a start refuse the file in the same words.
  void ExpectRefused(const std::string& text, const std::string& says) const {
    std::ofstream(File()) << text;
    for (const std::string flags : {"--check-config --config ", "--listen /nowhere/at/all/s.sock --config "}) {
      const Ended run = Seined(flags + File());
      EXPECT_EQ(run.exit_code, 2) << flags << run.err;
      EXPECT_EQ(run.err, "seined: " + File() + says + "\n") << flags;
      EXPECT_EQ(run.out, "");
    }
  }
  std::string File() const { return dir_.path + "/seined.yaml"; }
  static std::string Contents(const std::string& path) {
    std::ifstream in(path);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }

  TempDir dir_;
};

TEST_F(SettingsTest, MetricsAreServedOnLoopbackAlone) {
  ExpectRefused("metrics: {listen: \"0.0.0.0:9464\"}\n",
                ": metrics.listen: '0.0.0.0:9464' is beyond this machine's loopback, and metrics are served without "
                "credentials: listen on 127.0.0.1 and forward to it");
  ExpectRefused("metrics: {count: no}\n", ": metrics.count: 'no' is none of on|off");
  const Ended none = Seined("--check-config --metrics-listen 127.0.0.1:9464 --metrics-count off");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_EQ(none.err, "seined: metrics.listen: there is nothing to serve, for metrics.count is off\n");
  EXPECT_EQ(Seined("--check-config --metrics-page").err,
            "seined: metrics.page: there is nowhere to serve it; set metrics.listen\n");
  ExpectRefused("metrics: {page: maybe}\n", ": metrics.page: 'maybe' is neither true nor false");
  std::ofstream(File()) << "metrics: {listen: \"localhost:9464\", count: on}\n";
  const Ended right = Seined("--check-config --config " + File());
  EXPECT_EQ(right.exit_code, 0) << right.err;
  EXPECT_NE(right.out.find("metrics:\n  listen: 127.0.0.1:9464\n  page: false\n  count: on\n"), std::string::npos)
      << right.out;
}

TEST_F(SettingsTest, WhatIsNoRegularFileIsRefused) {
  const std::string fifo = dir_.path + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {dir_.path, fifo, std::string("/dev/null")}) {
    const Ended run = Seined("--check-config --config " + path);
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_EQ(run.err, "seined: " + path + ": not a regular file\n");
  }
}

TEST_F(SettingsTest, AKeyTwiceIsRefused) {
  ExpectRefused("server: {threads: 1, threads: 2}", ":1: 'threads' stands twice in one map");
  ExpectRefused("server:\n  threads: 1\nlog:\n  level: info\nserver:\n  workers: 2\n",
                ":5: 'server' stands twice in one map");
  ExpectRefused("indexes:\n" + IndexNamed("a") + "indexes:\n" + IndexNamed("a"),
                ":3: 'indexes' stands twice in one map");
  ExpectRefused("{\"a\\nb\": 1, \"a\\nb\": 2}", ":1: 'a\\nb' stands twice in one map");
  ExpectRefused("indexes: [{name: a, zones: {sink: 4, local: 8, sink: 4}}]", ":1: 'sink' stands twice in one map");
}

// No answer about the index could hold such a name.
TEST_F(SettingsTest, WhatIsNotUtf8IsRefused) {
  ExpectRefused("indexes: [{name: a, model: \"x\xff\xfe\"}]", ": must be UTF-8");
  ExpectRefused("log: {level: info} # \xed\xa0\x80", ": must be UTF-8");
  ExpectRefused("server:\n  listen: \"unix:/tmp/a\\N\"", ":2: 'unix:/tmp/a\\x85' must be UTF-8");
  ExpectRefused(std::string("server:\n  listen: /a\0Nb", 23), ": has a zero byte");
}

TEST_F(SettingsTest, ASecondDocumentIsRefused) {
  ExpectRefused(std::string(kTwoSections) + "---\nserver: {threads: 2}\n",
                ":3: a second document begins, and settings are one");
  ExpectRefused(std::string("---\n") + kTwoSections + "---\n", ":4: a second document begins, and settings are one");
}

TEST_F(SettingsTest, OneDocumentMayBeMarked) {
  for (const char* text : {"", "# nothing\n", "---\n", "--- {}\n...\n"}) {
    std::ofstream(File()) << text;
    EXPECT_EQ(Seined("--check-config --config " + File()).exit_code, 0) << text;
  }
  // Keys of different maps, and a node used again, repeat nothing.
  std::ofstream(File()) << "---\n"
                        << kTwoSections << "indexes:\n"
                        << "  - {name: a, geometry: &g {num_layers: 1, num_q_heads: 1, num_kv_heads: 1, head_dim: 64, "
                           "dtype: float16}}\n  - {name: b, geometry: *g}\n...\n";
  const Ended run = Seined("--check-config --config " + File());
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("name: b"), std::string::npos) << run.out;
}

TEST_F(SettingsTest, NestingEnds) {
  constexpr int kDeep = 300'000;
  const std::string says = "is nested more than 64 levels deep";
  ExpectRefused("server: " + std::string(kDeep, '['), ":1: " + says);
  ExpectRefused("server: " + std::string(kDeep, '[') + std::string(kDeep, ']'), ":1: " + says);
  ExpectRefused(Repeated(kDeep, "{a: ") + std::string(kDeep, '}'), ":1: " + says);
  ExpectRefused("server:\n  " + Repeated(kDeep, "- ") + "1", ":2: " + says);
  std::string block;
  for (int i = 0; i < 100; ++i) block += std::string(i, ' ') + "a:\n";
  ExpectRefused(block, ":65: " + says);
  ExpectRefused("server: {threads: " + std::string(62, '[') + std::string(62, ']') + "}",
                ": server.threads: expected one value, and there is a list");  // 64 levels: what it says is looked at
}

TEST_F(SettingsTest, SharesOfLiveQualityAreChecked) {
  ExpectRefused("quality: {sample: 1.5}\n", ": quality.sample: '1.5' is no number in [0, 1]");
  ExpectRefused("quality: {share: 0}\n", ": quality.share: '0' is no number in (0, 1]");
  ExpectRefused("quality: {expected: nan}\n", ": quality.expected: 'nan' is no number in [0, 1]");
  const std::string uncounted = "quality.sample: nothing would count what is found, for metrics.count is off\n";
  EXPECT_EQ(Seined("--check-config --metrics-count off --quality-sample 1e-3").err, "seined: " + uncounted);
  const Ended right = Seined("--check-config --quality-sample 1e-3 --quality-share .1 --quality-expected .95");
  EXPECT_EQ(right.exit_code, 0) << right.err;
  EXPECT_NE(right.out.find("quality:\n  sample: 0.001\n  share: 0.1\n  expected: 0.95\n"), std::string::npos);
}

TEST_F(SettingsTest, CheckConfigRefusesWhatAStartWould) {
  std::string many = "indexes:\n";
  for (int i = 0; i <= 1024; ++i) many += IndexNamed("i" + std::to_string(i));
  std::ofstream(File()) << many;
  const std::string flags = "--config " + File() + " --listen unix:" + dir_.path + "/s.sock";
  const Ended check = Seined("--check-config " + flags);
  EXPECT_EQ(check.exit_code, 2);
  EXPECT_EQ(check.err, "seined: index i1024: the server holds as many indexes as it may\n");
  EXPECT_EQ(check.out, "");
  EXPECT_NE(Seined(flags).err.find("index i1024: the server holds as many indexes as it may\n"), std::string::npos);
  if (std::string why; MakeBackend("cuda", 1, &why) == nullptr) {
    EXPECT_EQ(Seined("--check-config --backend cuda").err, "seined: backend: " + why + "\n");
  }
}

TEST_F(SettingsTest, WhatDoesNotArriveOnStdoutIsAnError) {
  for (const std::string flag : {"--check-config", "--help", "--version"}) {
    for (const char* sink : {">/dev/full", ">&-"}) {
      const Ended run = Seined(flag, sink);
      EXPECT_EQ(run.exit_code, 1) << flag << sink;
      EXPECT_EQ(run.err.rfind("seined: cannot write to standard output", 0), 0u) << run.err;
      EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
    }
  }
  EXPECT_EQ(Seined("--no-such-flag", ">/dev/full").exit_code, 2);  // printed nothing: its own error
}

}  // namespace
}  // namespace seine::test
