// The functions of a class stand in at most three source files, which lie beside each other.
#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace seine {
namespace {

namespace fs = std::filesystem;

// The outermost class of a function that the line begins to define, as "Layer" of `absl::Status Layer::Append(`; ""
// where it defines none. Namespaces begin with a small letter.
std::string ClassDefined(const std::string& line) {
  const size_t open = line.find('(');
  if (open == std::string::npos || std::isalpha(static_cast<unsigned char>(line[0])) == 0) return "";
  const size_t space = line.find_last_of(" *&>", open);
  std::string name = line.substr(space == std::string::npos ? 0 : space + 1, open - space - 1);
  if (space != std::string::npos && line.find('=') < space) return "";  // a variable
  for (size_t end; (end = name.find("::")) != std::string::npos; name.erase(0, end + 2)) {
    if (std::isupper(static_cast<unsigned char>(name[0])) != 0) return name.substr(0, end);
  }
  return "";
}

// Classes of a room in too many files or folders.
std::vector<std::string> ScatteredClasses(const fs::path& root, const std::string& room) {
  constexpr size_t kMostFiles = 3;
  std::map<std::string, std::set<std::string>> files, folders;
  for (const auto& entry : fs::recursive_directory_iterator(root / room)) {
    const fs::path& path = entry.path();
    if ((path.extension() != ".cc" && path.extension() != ".cu") ||
        path.string().find("/tests/") != std::string::npos) {
      continue;
    }
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
      const std::string name = ClassDefined(line);
      if (name.empty()) continue;
      files[name].insert(path.string());
      folders[name].insert(path.parent_path().string());
    }
  }
  EXPECT_FALSE(files.empty()) << room;
  std::vector<std::string> scattered;
  for (const auto& [name, of_class] : files) {
    if (of_class.size() <= kMostFiles && folders[name].size() == 1) continue;
    scattered.push_back(room + ": " + name + " stands in " + std::to_string(of_class.size()) + " files of " +
                        std::to_string(folders[name].size()) + " folders");
  }
  return scattered;
}

TEST(ClassFiles, AreThreeAtMostAndBesideEachOther) {
  for (const char* room :
       {"profile", "kernels", "index", "service", "client", "bench", "engines/llama.cpp", "engines/python"}) {
    for (const std::string& fault : ScatteredClasses(SEINE_SOURCE_DIR, room)) ADD_FAILURE() << fault;
  }
}

TEST(ClassFiles, ScatteredOnesAreReported) {
  std::string folder = (fs::temp_directory_path() / "seine_class_XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const fs::path root = folder;
  const auto plant = [&](const std::string& file, const std::string& text) {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text;
  };
  for (const char* file : {"a.cc", "b.cc", "c.cc", "d.cc"}) {
    plant(std::string("room/") + file, "absl::StatusOr<std::vector<X>> Wide::Make(int x) {\n  Inner::Call(x);\n}\n");
  }
  plant("room/c.cc", "Wide::Part Wide::Part::Of() const {\n}\nvoid Fine::Do() {\n}\nconst Two kTwo = Two::Make();\n");
  plant("room/far/e.cc", "Two::~Two() {}\n");
  plant("room/near/e.cc", "bool Two::operator==(const Two& o) const {\nvoid host::Two(int) {}\n");
  plant("room/tests/f.cc", "void Fine::Do() {\n");
  EXPECT_EQ(ScatteredClasses(root, "room"), (std::vector<std::string>{"room: Two stands in 2 files of 2 folders",
                                                                      "room: Wide stands in 4 files of 1 folders"}));
  fs::remove_all(root);
}

}  // namespace
}  // namespace seine
