// Every target without libFuzzer: its seeds, the inputs that once broke something (corpus/TARGET), and some that are
// made up, the same on every run.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fuzz/target.h"

namespace seine::fuzz {
namespace {

namespace fs = std::filesystem;

#if defined(__SANITIZE_ADDRESS__)
constexpr int kShare = 10;  // of the mutants: each takes ten times as long
#else
constexpr int kShare = 1;
#endif

std::vector<std::string> Corpus(const std::string& target) {
  std::vector<std::string> inputs;
  const fs::path folder = fs::path(SEINE_FUZZ_CORPUS) / target;
  if (!fs::exists(folder)) return inputs;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return inputs;
}

class Replay : public ::testing::TestWithParam<TargetEntry> {};

TEST_P(Replay, SeedsCorpusAndMutants) {
  const std::unique_ptr<Target> target = GetParam().make();
  std::vector<std::string> inputs = target->Seeds();
  ASSERT_FALSE(inputs.empty());
  for (const std::string& input : Corpus(GetParam().name)) inputs.push_back(input);
  for (const std::string& input : inputs) target->Run(input);
  target->Run("");
  Random random(1);
  const ByteMutator bytes = [&](std::string text) { return MutateBytes(std::move(text), random); };
  size_t changed = 0;
  for (int i = 0; i < GetParam().mutants / kShare; ++i) {
    const std::string& seed = inputs[random.Below(inputs.size())];
    std::string input = seed;
    for (size_t changes = 1 + random.Below(4); changes > 0; --changes) input = target->Mutate(input, random, bytes);
    changed += input != seed ? 1 : 0;
    target->Run(input);
  }
  EXPECT_GT(changed, static_cast<size_t>(GetParam().mutants / kShare / 2));
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Replay, ::testing::ValuesIn(Targets()),
                         [](const auto& parameter) { return parameter.param.name; });

// An input that broke something lies where a target reads it.
TEST(Corpus, EveryFolderIsATargets) {
  for (const auto& folder : fs::directory_iterator(SEINE_FUZZ_CORPUS)) {
    if (!folder.is_directory()) continue;
    const std::string name = folder.path().filename().string();
    const auto& targets = Targets();
    EXPECT_TRUE(std::any_of(targets.begin(), targets.end(), [&](const TargetEntry& t) { return t.name == name; }))
        << name;
  }
}

}  // namespace
}  // namespace seine::fuzz
