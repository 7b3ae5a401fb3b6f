// Inside a room includes run down its floors, as floors.txt has them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace seine {
namespace {

namespace fs = std::filesystem;

struct Plan {
  std::map<std::string, std::map<std::string, int>> floors;  // of each room: of its folders and stems
  std::vector<std::string> faults;
};

Plan ReadPlan(const fs::path& file) {
  Plan plan;
  std::ifstream in(file);
  std::string room, word;
  int floor = 0;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    if (line.empty() || line[0] == '#') continue;
    if (line[0] != ' ') {
      words >> room;
      floor = 0;
    } else {
      for (++floor; words >> word;) {
        if (!plan.floors[room].emplace(room + "/" + word, floor).second) plan.faults.push_back(word + " stands twice");
      }
    }
  }
  return plan;
}

// The folder of a file or, at the top of its room, its name without what tells twins apart.
std::string PlaceOf(const std::string& file, const std::string& room) {
  static const std::regex kStem(R"((_cuda|_cpu|_scalar)?\.(h|cc|cu|cuh|inc)$)");
  const std::string folder = file.substr(0, file.rfind('/'));
  return folder == room ? std::regex_replace(file, kStem, "") : folder;
}

// The floor of a folder or stem, as the plan says of it, or of all folders beside it ("codecs/*").
std::optional<int> FloorOf(const std::map<std::string, int>& floors, const std::string& place) {
  auto own = floors.find(place);
  if (own == floors.end()) own = floors.find(place.substr(0, place.rfind('/')) + "/*");
  return own == floors.end() ? std::nullopt : std::optional(own->second);
}

// What the plan and the tree disagree in.
std::vector<std::string> Disagreements(const fs::path& root, const Plan& plan) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s*"([^"]+)".*)re"), kSource(R"(\.(h|cc|cu|cuh|inc))");
  std::vector<std::string> found = plan.faults;
  for (const auto& [room, floors] : plan.floors) {
    std::map<std::string, bool> seen;
    for (const auto& entry : fs::recursive_directory_iterator(root / room)) {
      if (!std::regex_match(entry.path().extension().string(), kSource)) continue;
      const std::string name = fs::relative(entry.path(), root).string(), place = PlaceOf(name, room);
      const std::optional<int> own = FloorOf(floors, place);
      if (!std::exchange(seen[place], true) && !own) found.push_back(place + " has no floor");
      if (floors.find(place) == floors.end()) seen[place.substr(0, place.rfind('/')) + "/*"] = true;
      std::ifstream in(entry.path());
      std::smatch match;
      std::string line;
      for (int number = 1; std::getline(in, line); ++number) {
        if (!own || !std::regex_match(line, match, kInclude)) continue;
        const std::string below = PlaceOf(match[1], room);
        const std::optional<int> other = FloorOf(floors, below);
        if (!other || below == place || *other < *own) continue;
        found.push_back(name + ":" + std::to_string(number) + " includes " + match[1].str() +
                        ", which does not lie lower");
      }
    }
    for (const auto& [place, floor] : floors) {
      if (!seen[place]) found.push_back(place + " is not there");
    }
  }
  return found;
}

TEST(Floor, IncludesRunDown) {
  const fs::path root = SEINE_SOURCE_DIR;
  const Plan plan = ReadPlan(root / "tests/house/floors.txt");
  EXPECT_EQ(plan.floors.size(), 8u);
  for (const std::string& fault : Disagreements(root, plan)) ADD_FAILURE() << fault;
}

// Project headers that a header pulls, itself among them.
std::set<std::string> Closure(const fs::path& root, const std::string& header) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s*"([^"]+)".*)re");
  std::set<std::string> closure;
  std::vector<std::string> open = {header};
  while (!open.empty()) {
    const std::string name = open.back();
    open.pop_back();
    std::ifstream in(root / name);
    if (!in || !closure.insert(name).second) continue;
    std::smatch match;
    for (std::string line; std::getline(in, line);) {
      if (std::regex_match(line, match, kInclude)) open.push_back(match[1]);
    }
  }
  return closure;
}

// What a server's calls share says what there is, not how it works: whoever uses a part includes it.
TEST(Floor, TheServersCorePullsFewHeaders) {
  const auto closure = Closure(SEINE_SOURCE_DIR, "service/core.h");
  EXPECT_EQ(closure.count("service/core.h"), 1u);
  EXPECT_LE(closure.size(), 30u);
}

TEST(Floor, EveryDisagreementIsReported) {
  std::string folder = (fs::temp_directory_path() / "seine_floor_XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const fs::path root = folder;
  const auto plant = [&](const std::string& file, const std::string& text) {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text;
  };
  plant("plan", "# a plan\n\nroom\n  low same gone\n  all/*\n  high low\n\nhouse/attic\n  box\n  a\n");
  plant("room/low/a.h", "#include \"room/low/b.h\"\n#include <vector>\n#include \"room/high_cuda.h\"\n");
  plant("room/low/b.h", "\n#include \"room/same/a.h\"\n");
  plant("room/same/a.h", "#include \"elsewhere/a.h\"\n");
  plant("room/high_cpu.cc", "#include \"room/low/a.h\"\n");
  plant("room/new/a.h", "");
  plant("room/all/x/a.h", "#include \"room/all/y/a.h\"\n#include \"room/all/x/b.h\"\n");
  plant("room/all/y/a.h", "#include \"room/low/a.h\"\n");
  plant("house/attic/a.h", "#include \"house/attic/box/a.h\"\n");
  plant("house/attic/box/a.h", "#include \"house/attic/a.h\"\n#include \"room/low/a.h\"\n");
  std::vector<std::string> found = Disagreements(root, ReadPlan(root / "plan"));
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, (std::vector<std::string>{
                       "house/attic/box/a.h:1 includes house/attic/a.h, which does not lie lower", "low stands twice",
                       "room/all/x/a.h:1 includes room/all/y/a.h, which does not lie lower", "room/gone is not there",
                       "room/low/a.h:3 includes room/high_cuda.h, which does not lie lower",
                       "room/low/b.h:2 includes room/same/a.h, which does not lie lower", "room/new has no floor"}));
  fs::remove_all(root);
}

}  // namespace
}  // namespace seine
