// What a CMakeLists.txt names is there: CMake says nothing of properties set on a source that has moved away.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

namespace seine {
namespace {

namespace fs = std::filesystem;

// The sources that `text` names relative to `folder`, and that are not there.
std::vector<std::string> Absent(const std::string& text, const fs::path& folder) {
  static const std::regex kSource(R"((^|[\s"(])([A-Za-z0-9_][A-Za-z0-9_./-]*\.(cc|cu))(?=$|[\s")]))");
  std::vector<std::string> absent;
  for (std::sregex_iterator match(text.begin(), text.end(), kSource), end; match != end; ++match) {
    if (!fs::exists(folder / (*match)[2].str())) absent.push_back((*match)[2]);
  }
  return absent;
}

std::string WithoutComments(std::ifstream in) {
  std::string text;
  for (std::string line; std::getline(in, line);) text += line.substr(0, line.find('#')) + "\n";
  return text;
}

TEST(CMake, SourcesItNamesAreThere) {
  int files = 0;
  for (const char* room :
       {"", "profile", "kernels", "index", "proto", "service", "client", "tests", "bench", "engines"}) {
    for (fs::recursive_directory_iterator at(fs::path(SEINE_SOURCE_DIR) / room), end; at != end; ++at) {
      if (*room == '\0' && at->is_directory()) at.disable_recursion_pending();  // the others, and what is built
      if (at->path().filename() != "CMakeLists.txt") continue;
      ++files;
      EXPECT_EQ(Absent(WithoutComments(std::ifstream(at->path())), at->path().parent_path()),
                std::vector<std::string>())
          << at->path();
    }
  }
  EXPECT_GT(files, 10);
}

TEST(CMake, ASourceThatMovedAwayIsSeen) {
  const fs::path here = fs::path(SEINE_SOURCE_DIR) / "tests/house";
  EXPECT_EQ(Absent("set_source_files_properties(moved/away.cc cmake_test.cc PROPERTIES COMPILE_OPTIONS -O3)", here),
            std::vector<std::string>{"moved/away.cc"});
  EXPECT_EQ(Absent("add_executable(x\n  cmake_test.cc ${name}.cc ${folder}/made.cc)\n", here),
            std::vector<std::string>());
}

}  // namespace
}  // namespace seine
