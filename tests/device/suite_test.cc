// The device suite itself: what it says of a difference, of nothing, of time that is up, of a part that hangs or dies,
// and how figures are marked.
#include "tests/device/suite.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <thread>

#include "kernels/math.h"
#include "service/backends/forwarding_backend.h"
#include "tests/device/child.h"
#include "tests/device/same.h"
#include "tests/temp_folder.h"

namespace seine::device {
namespace {

SearchOutput Answer() {
  SearchOutput out;
  out.positions = {{3, 9, 27}, {81}};
  out.scores = {{.5f, 0.0f, 2.0f}, {1.0f}};
  out.candidates = {{1, 3, 9, 27, 81}};
  return out;
}

// RunPart of a part that compares two answers as its second item.
Json RunOn(const SearchOutput& cpu, const SearchOutput& gpu) {
  const auto backend = MakeCpuBackend(1);
  const Part part = {"made-up", "two answers are equal", 10, false, [&](const Rig&) {
                       PartResult result;
                       result.planned = 2;
                       Count(&result, FirstDifference(cpu, cpu), "64 keys");
                       Count(&result, FirstDifference(cpu, gpu), "704 keys; --seed 5");
                       return result;
                     }};
  return RunPart(part, SuiteOptions(), 10, backend.get(), backend.get());
}

TEST(DeviceSuite, ADifferenceIsSaidWithItemShapePositionAndValues) {
  SearchOutput gpu = Answer();
  EXPECT_TRUE(RunOn(Answer(), gpu)["passed"].get<bool>());
  gpu.scores[0][1] = -0.0f;  // as a number it is the same
  const Json json = RunOn(Answer(), gpu);
  EXPECT_FALSE(json["passed"].get<bool>());
  EXPECT_EQ(json["wrong"], 1);
  EXPECT_EQ(json["first_difference"]["item"], 1);
  EXPECT_EQ(json["first_difference"]["shape"], "704 keys; --seed 5");
  EXPECT_EQ(json["first_difference"]["position"], "scores of set 0 [1]");
  EXPECT_EQ(json["first_difference"]["cpu"], "0 (0x00000000)");
  EXPECT_EQ(json["first_difference"]["device"], "-0 (0x80000000)");
  gpu.positions[0].pop_back();
  EXPECT_EQ(RunOn(Answer(), gpu)["first_difference"]["position"], "number of positions of set 0 ");
  gpu = Answer();
  gpu.masses = {.5f};
  EXPECT_EQ(RunOn(Answer(), gpu)["first_difference"]["position"], "number of masses");
}

// Two CPU backends as both sides: every check of a search passes, and one of zero items fails.
TEST(DeviceSuite, ACheckOfNothingFails) {
  SuiteOptions options;
  options.small = true;
  const auto a = MakeCpuBackend(1), b = MakeCpuBackend(1);
  for (const int items : {2, 0}) {
    options.items = items;
    const Json json = RunPart(SearchChecks(options)[0], options, 60, a.get(), b.get());
    EXPECT_EQ(json["count"], items);
    EXPECT_EQ(json["passed"].get<bool>(), items > 0);
  }
}

// A backend that once answers with a score that is one bit off: in its third search.
class LyingBackend final : public ForwardingBackend {
 public:
  using Backend::Search;
  using ForwardingBackend::ForwardingBackend;
  Outcome Search(const SearchTask* tasks, int count, const SearchParams& params, SearchOutput* outputs,
                 const ProgressCallback& progress) override {
    const Outcome outcome = inner_->Search(tasks, count, params, outputs, progress);
    for (int i = 0; i < count; ++i) {
      if (++searches_ != 3) continue;
      float& score = outputs[i].scores[0][0];
      score = BitsFloat(FloatBits(score) ^ 1u);
    }
    return outcome;
  }

 private:
  std::atomic<int> searches_{0};
};

// Each check of searches notices it, and says where. (The repeats' third is of the first item's third turn.)
TEST(DeviceSuite, EveryCheckOfSearchesNoticesABit) {
  SuiteOptions options;
  options.small = true;
  options.items = 4;
  options.dim = 64;
  for (const Part& part : SearchChecks(options)) {
    if (part.name == "lowrank-searches") options.items = 200;  // four of them
    const auto cpu = MakeCpuBackend(1);
    LyingBackend liar(MakeCpuBackend(1));
    const Json json = RunPart(part, options, 60, cpu.get(), &liar);
    EXPECT_EQ(json["wrong"], 1) << json.dump(1);
    EXPECT_FALSE(json["passed"].get<bool>()) << part.name;
    EXPECT_EQ(json["first_difference"]["position"], "scores of set 0 [0]") << part.name;
    EXPECT_NE(json["first_difference"]["shape"].get<std::string>().find("--seed"), std::string::npos) << part.name;
    EXPECT_NE(json["first_difference"]["cpu"], json["first_difference"]["device"]) << part.name;
  }
}

TEST(DeviceSuite, APartEndsWhenItsTimeIsUp) {
  SuiteOptions options;
  options.small = true;
  options.items = 100000000;
  const auto a = MakeCpuBackend(1), b = MakeCpuBackend(1);
  const Json json = RunPart(SearchChecks(options)[0], options, .5, a.get(), b.get());
  EXPECT_TRUE(json["passed"].get<bool>());
  EXPECT_GT(json["count"], 0);
  EXPECT_LT(json["count"], json["planned"]);
  EXPECT_LT(json["seconds"], 30);
  EXPECT_FALSE(RunPart(SearchChecks(options)[0], options, 0, a.get(), b.get())["passed"].get<bool>());
}

TEST(DeviceSuite, APartThatDiesOrHangsLeavesAnError) {
  const TempFolder folder;
  const std::string path = folder.Path("part.json");
  const Part part = {"made-up", "it goes wrong", 1, false, {}};
  EXPECT_EQ(RunInChild(part, 5, 5, path, [] { return Json{{"passed", true}}; })["passed"], true);
  EXPECT_EQ(RunInChild(part, 5, 5, path, []() -> Json { std::abort(); })["error"], "ended by signal 6");
  EXPECT_EQ(RunInChild(part, 5, 5, path, []() -> Json { std::_Exit(7); })["error"], "exit code 7");
  const Json hung = RunInChild(part, .1, .1, path, []() -> Json {
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
  });
  EXPECT_FALSE(hung["passed"].get<bool>());
  EXPECT_NE(hung["error"].get<std::string>().find("did not come back"), std::string::npos);
}

// Names are apart, and every part of the emulated device is among them.
TEST(DeviceSuite, PartsHaveNamesAndLimits) {
  std::set<std::string> names;
  for (const auto& list : {SearchChecks(SuiteOptions()), LayerChecks(SuiteOptions()), AttendChecks(SuiteOptions()),
                           Timings(SuiteOptions())}) {
    for (const Part& part : list) {
      EXPECT_TRUE(names.insert(part.name).second) << part.name;
      EXPECT_GT(part.limit_s, 0) << part.name;
      EXPECT_EQ(part.timing, part.name.rfind("time-", 0) == 0) << part.name;
    }
  }
  EXPECT_GE(names.size(), 15u);
}

// The program, as the half hour runs it.
class Program : public testing::Test {
 protected:
  int Run(const std::string& flags) const {
    const std::string command =
        std::string(SUITE) + " " + flags + " -o '" + Folder() + "' >'" + Folder() + "/out' 2>&1";
    return WEXITSTATUS(std::system(command.c_str()));
  }
  std::string Folder() const { return folder_.Path("."); }
  Json Read(const std::string& name) const { return ReadJson(Folder() + "/" + name + ".json"); }

 private:
  TempFolder folder_;
};

TEST_F(Program, LeavesAJsonAPartAndMarksFigures) {
  ASSERT_EQ(Run("--only time-launches --commit abc"), 0);
  EXPECT_EQ(Read("time-launches")["checks"], "not run");
  ASSERT_EQ(Run("--small --items 2 --only memory,graphs --commit abc"), 0);
  EXPECT_EQ(Read("memory")["count"], 3);
  EXPECT_GT(Read("graphs")["peak_device_bytes"], 0);
  ASSERT_EQ(Run("--only time-launches --commit abc"), 0);
  EXPECT_EQ(Read("time-launches")["checks"], "passed: 2");
  ASSERT_EQ(Run("--small --items 0 --only items --commit abc"), 1);  // a check of nothing
  ASSERT_EQ(Run("--only time --commit abc"), 0);
  EXPECT_EQ(Read("time-launches")["checks"], "FAILED: items");
  EXPECT_FALSE(Read("summary")["parts"]["items"]["passed"].get<bool>());
  ASSERT_EQ(Run("--only time --commit def"), 0);  // checks of another tree say nothing of this one
  EXPECT_EQ(Read("time-launches")["checks"], "not run");
}

TEST_F(Program, RefusesWhatIsNoFlag) {
  for (const char* flags : {"--frobnicate", "--only nonsense", "--items -1", "--keys 65", "--bits two",
                            "--reduce median", "--dim", "--limit 0"}) {
    EXPECT_EQ(Run(flags), 2) << flags;
  }
  EXPECT_EQ(Run("--list"), 0);
}

}  // namespace
}  // namespace seine::device
