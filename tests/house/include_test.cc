// The direction of the house: kernels <- index <- service -> proto <- client, and profile <- index, client. Reads every
// #include of every room and fails on one that the room's rule does not allow; then plants breaches in a tree of its
// own: each must be reported.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace seine {
namespace {

namespace fs = std::filesystem;

// What a room's files may include: groups (see GroupOf), single headers besides, and files with a rule of their own.
struct Rule {
  std::string files;  // a file, a folder ending in '/', or "folder/*ending". The first rule that fits counts.
  std::set<std::string> groups;
  std::set<std::string> headers;
};

const std::vector<Rule>& Rules() {
  static const auto* const kRules = new std::vector<Rule>{
      {"kernels/device/", {"std", "hwy", "kernels", "cuda"}, {}},
      {"kernels/*_cuda.cu", {"std", "kernels", "cuda"}, {}},
      {"kernels/", {"std", "hwy", "kernels"}, {}},
      {"proto/", {"std", "protobuf", "proto"}, {}},
      {"profile/", {"std", "absl", "Eigen", "nlohmann", "profile"}, {}},
      {"index/",
       {"std", "absl", "xxhash", "Eigen", "profile", "index"},
       {"kernels/backend.h", "kernels/host.h", "kernels/huge_pages.h", "kernels/math.h", "kernels/priority.h",
        "kernels/stop.h", "kernels/thread_name.h", "kernels/types.h", "kernels/codecs/code.h", "kernels/codecs/codec.h",
        "kernels/codecs/codec_traits.h", "kernels/ops/learn/oja.h", "kernels/ops/score_keys/score_keys.h",
        "kernels/ops/query/search.h"}},
      {"service/metrics/",
       {"std", "absl", "libmicrohttpd", "prometheus", "profile", "index", "service"},
       {"kernels/backend.h", "kernels/thread_name.h", "kernels/ops/query/search.h"}},
      {"service/",
       {"std", "absl", "grpc", "protobuf", "proto", "spdlog", "yaml-cpp", "CLI", "nlohmann", "openssl", "profile",
        "index", "service"},
       {"kernels/backend.h", "kernels/priority.h", "kernels/stop.h", "kernels/thread_name.h", "kernels/types.h",
        "kernels/yield.h", "kernels/machine/limits.h", "kernels/codecs/codec_traits.h", "kernels/ops/query/search.h"}},
      {"client/",
       {"std", "absl", "grpc", "protobuf", "proto", "spdlog", "CLI", "nlohmann", "openssl", "profile", "client"},
       {}},
      {"bench/peers/png.cc", {"std", "librsvg", "bench"}, {}},
      {"bench/peers/", {"std", "absl", "faiss", "bench"}, {}},
      {"bench/", {"std", "absl", "hwy", "CLI", "nlohmann", "profile", "kernels", "index", "client", "bench"}, {}},
  };
  return *kRules;
}

bool Matches(const std::string& text, const char* pattern) { return std::regex_match(text, std::regex(pattern)); }

// Whether a rule is of the file `name`.
bool IsOf(const std::string& files, const std::string& name) {
  if (name == files) return true;
  const size_t star = files.find('*'), folder = std::min(star, files.size());
  if (name.compare(0, folder, files, 0, folder) != 0) return false;
  if (star == std::string::npos) return files.back() == '/';
  const std::string ending = files.substr(star + 1);
  return name.size() >= folder + ending.size() && name.compare(name.size() - ending.size(), ending.size(), ending) == 0;
}

// Whose header it is: "std" (C++, C, POSIX, Linux), a library, or a room. A path that is not from the root is
// "relative".
std::string GroupOf(bool angled, const std::string& header) {
  const size_t slash = header.find('/');
  if (slash == std::string::npos) {
    if (!angled) return "relative";
    if (Matches(header, R"(.*intrin\.h|arm_(neon|sve)\.h)")) return "intrinsics";
    if (Matches(header, "xxh(ash|3).h")) return "xxhash";
    if (header == "microhttpd.h") return "libmicrohttpd";
    if (Matches(header, "(cuda|cublas|mma|nv).*")) return "cuda";
    if (Matches(header, "(omp|cblas|f77blas|lapacke).*")) return "faiss";
    return "std";
  }
  const std::string top = header.substr(0, slash);
  if (angled && Matches(top, "sys|linux|asm|netinet|arpa|bits")) return "std";
  if (top == "grpcpp" || top == "grpc") return "grpc";
  if (top == "google") return "protobuf";
  if (top == "seine" || top == "proto") return "proto";
  if (top == ".." || top == ".") return "relative";
  return top;
}

struct Report {
  int files = 0;
  int includes = 0;
  std::vector<std::string> breaches;  // "file:line includes header"
};

void CheckFile(const fs::path& root, const fs::path& file, const Rule& rule, Report* report) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"].*)re");
  std::ifstream in(file);
  ++report->files;
  std::string line;
  std::smatch match;
  for (int number = 1; std::getline(in, line); ++number) {
    if (!std::regex_match(line, match, kInclude)) continue;
    ++report->includes;
    const std::string header = match[2];
    if (rule.groups.count(GroupOf(match[1] == "<", header)) != 0 || rule.headers.count(header) != 0) continue;
    report->breaches.push_back(fs::relative(file, root).string() + ":" + std::to_string(number) + " includes " +
                               header);
  }
}

Report CheckTree(const fs::path& root) {
  Report report;
  for (const char* room : {"profile", "kernels", "index", "proto", "service", "client", "bench"}) {
    if (!fs::exists(root / room)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / room)) {
      if (!Matches(entry.path().extension().string(), R"(\.(h|cc|cu|cuh|inc))")) continue;
      const std::string name = fs::relative(entry.path(), root).string();
      for (const Rule& rule : Rules()) {
        if (!IsOf(rule.files, name)) continue;
        CheckFile(root, entry.path(), rule, &report);
        break;
      }
    }
  }
  std::sort(report.breaches.begin(), report.breaches.end());
  return report;
}

// Lines that parse JSON or YAML elsewhere than where nesting is bounded.
std::vector<std::string> UnboundedParsers(const fs::path& root) {
  static const std::regex kParse(R"(.*([Jj]son::(parse|accept|sax_parse)\(|YAML::(Load|Parser)).*)");
  std::vector<std::string> found;
  for (const char* room : {"profile", "kernels", "index", "service", "client", "bench"}) {
    if (!fs::exists(root / room)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / room)) {
      const std::string name = fs::relative(entry.path(), root).string();
      if (!Matches(name, R"(.*\.(h|cc))") || name == "profile/io/json.cc" || name == "service/fields/yaml_file.cc")
        continue;
      std::ifstream in(entry.path());
      std::string line;
      for (int number = 1; std::getline(in, line); ++number) {
        if (std::regex_match(line, kParse)) found.push_back(name + ":" + std::to_string(number));
      }
    }
  }
  return found;
}

// A tree in a folder of its own, gone with the object.
class PlantedTree {
 public:
  PlantedTree() {
    std::string name = (fs::temp_directory_path() / "seine_include_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    root_ = name;
  }
  ~PlantedTree() { fs::remove_all(root_); }
  const fs::path& root() const { return root_; }
  void Plant(const std::string& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }

 private:
  fs::path root_;
};

TEST(Include, RoomsIncludeOnlyWhatTheyMay) {
  const Report report = CheckTree(SEINE_SOURCE_DIR);
  EXPECT_GT(report.files, 20) << "the tree was not read";
  EXPECT_GT(report.includes, 100) << "the tree was not read";
  for (const std::string& breach : report.breaches) ADD_FAILURE() << breach;
}

std::string TextOf(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Lists what a codec's folder lacks: the headers that the build finds, and a line in the list of codecs.
std::vector<std::string> UnlistedCodecs(const fs::path& root) {
  const fs::path codecs = root / "kernels/codecs";
  const std::string list = TextOf(codecs / "codec_list.h");
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(codecs)) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename().string();
    if (name == "kinds" || name == "encode") continue;  // what all have
    if (!fs::exists(codecs / "kinds" / (name + ".h"))) found.push_back(name + ": no header in kinds/");
    if (list.find(", " + name + ")") == std::string::npos) found.push_back(name + ": no line in codec_list.h");
    if (!fs::exists(entry.path() / "search_cuda.h")) found.push_back(name + ": no search_cuda.h");
  }
  std::sort(found.begin(), found.end());
  return found;
}

TEST(Include, EveryCodecIsInTheList) {
  EXPECT_EQ(UnlistedCodecs(SEINE_SOURCE_DIR), std::vector<std::string>());
  const PlantedTree tree;
  tree.Plant("kernels/codecs/codec_list.h", "  X(A, a)\n");
  tree.Plant("kernels/codecs/kinds/a.h", "");
  tree.Plant("kernels/codecs/a/a.h", "");
  tree.Plant("kernels/codecs/b/b.h", "");
  EXPECT_EQ(UnlistedCodecs(tree.root()),
            (std::vector<std::string>{"a: no search_cuda.h", "b: no header in kinds/", "b: no line in codec_list.h",
                                      "b: no search_cuda.h"}));
}

TEST(Include, ForeignTextIsParsedWhereItsNestingIsBounded) {
  EXPECT_EQ(UnboundedParsers(SEINE_SOURCE_DIR), std::vector<std::string>());
  const PlantedTree tree;
  tree.Plant("bench/a.cc", "\nauto a = nlohmann::json::parse(text, nullptr, false);\n");
  tree.Plant("client/cli/a.cc", "const Json a = Json::parse(text);\n");
  tree.Plant("profile/io/json.cc", "nlohmann::json::parse(text)\n");
  tree.Plant("service/a.h", "YAML::Node a = YAML::LoadFile(path);\n");
  EXPECT_EQ(UnboundedParsers(tree.root()),
            (std::vector<std::string>{"service/a.h:1", "client/cli/a.cc:1", "bench/a.cc:2"}));
}

TEST(Include, EveryPlantedBreachIsReported) {
  struct Breach {
    const char* file;
    const char* line;
    const char* header;
  };
  const Breach breaches[] = {
      {"kernels/a.cc", "#include \"index/index.h\"", "index/index.h"},
      {"kernels/a.cc", "#include \"absl/status/status.h\"", "absl/status/status.h"},
      {"kernels/a.h", "#include <immintrin.h>", "immintrin.h"},
      {"kernels/cpu/a.cc", "#include <cuda_runtime.h>", "cuda_runtime.h"},
      {"kernels/ops/scan/scan_cuda.h", "#include <cuda_runtime.h>", "cuda_runtime.h"},
      {"kernels/ops/scan/a_cuda.cu", "#include \"hwy/highway.h\"", "hwy/highway.h"},
      {"kernels/cpu/a.cc", "#include \"seine/v1/common.pb.h\"", "seine/v1/common.pb.h"},
      {"kernels/cpu/a.cc", "  #  include <faiss/IndexFlat.h>  // far away", "faiss/IndexFlat.h"},
      {"kernels/a.cc", "#include \"types.h\"", "types.h"},
      {"index/a.cc", "#include \"hwy/highway.h\"", "hwy/highway.h"},
      {"index/a.cc", "#include <arm_neon.h>", "arm_neon.h"},
      {"index/a.cc", "#include \"kernels/cpu/targets.h\"", "kernels/cpu/targets.h"},
      {"index/a.cc", "#include \"kernels/device/device.h\"", "kernels/device/device.h"},
      {"index/a.cc", "#include \"kernels/ops/rows/rows.h\"", "kernels/ops/rows/rows.h"},
      {"index/a.cc", "#include \"kernels/codecs/kinds/registry.h\"", "kernels/codecs/kinds/registry.h"},
      {"index/a.cc", "#include <grpcpp/grpcpp.h>", "grpcpp/grpcpp.h"},
      {"index/a.cc", "#include \"seine/v1/common.pb.h\"", "seine/v1/common.pb.h"},
      {"index/a.h", "#include \"service/calls/convert/convert.h\"", "service/calls/convert/convert.h"},
      {"index/deep/a.cu", "#include <faiss/IndexPQ.h>", "faiss/IndexPQ.h"},
      {"service/a.cc", "#include \"kernels/cpu/targets.h\"", "kernels/cpu/targets.h"},
      {"service/a.cc", "#include \"client/client.h\"", "client/client.h"},
      {"client/a.cc", "#include \"index/index.h\"", "index/index.h"},
      {"client/a.h", "#include \"kernels/types.h\"", "kernels/types.h"},
      {"client/a.cc", "#include \"../service/calls/convert/convert.h\"", "../service/calls/convert/convert.h"},
      {"bench/a.cc", "#include <faiss/IndexFlat.h>", "faiss/IndexFlat.h"},
      {"bench/a.cc", "#include <omp.h>", "omp.h"},
      {"bench/a.cc", "#include \"service/calls/convert/convert.h\"", "service/calls/convert/convert.h"},
  };
  for (const Breach& breach : breaches) {
    const PlantedTree tree;
    tree.Plant(breach.file, std::string("#include <vector>\n") + breach.line + "\n");
    const std::vector<std::string> expected = {std::string(breach.file) + ":2 includes " + breach.header};
    EXPECT_EQ(CheckTree(tree.root()).breaches, expected);
  }
}

TEST(Include, WhatIsAllowedIsNotReported) {
  const PlantedTree tree;
  tree.Plant("kernels/cpu/a.cc",
             "#include <sys/mman.h>\n#include \"hwy/highway.h\"\n#include \"kernels/codecs/code.h\"\n");
  tree.Plant("kernels/device/a.cu", "#include <cuda_runtime.h>\n#include \"kernels/math.h\"\n");
  tree.Plant("index/a.cc",
             "#include <xxhash.h>\n#include \"absl/status/status.h\"\n#include \"kernels/codecs/code.h\"\n");
  tree.Plant("service/a.cc",
             "#include <grpcpp/grpcpp.h>\n#include \"index/index.h\"\n#include \"kernels/backend.h\"\n");
  tree.Plant("client/a.cc", "#include <grpcpp/grpcpp.h>\n#include \"seine/v1/common.pb.h\"\n#include <math.h>\n");
  tree.Plant("bench/peers/faiss_baseline.cc", "#include <faiss/IndexFlat.h>\n#include <omp.h>\n");
  tree.Plant("tests/kernels/a_test.cc", "#include \"client/client.h\"\n");
  const Report report = CheckTree(tree.root());
  EXPECT_EQ(report.files, 6);
  EXPECT_EQ(report.includes, 16);
  EXPECT_EQ(report.breaches, std::vector<std::string>());
}

}  // namespace
}  // namespace seine
