// Temporary folders, small traces and runs of seine-bench for the bench's tests.
#ifndef SEINE_TESTS_BENCH_TEST_UTIL_H_
#define SEINE_TESTS_BENCH_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace seine::bench {

class TestFolder {
 public:
  TestFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "seine-bench-test-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string ReadFile(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

struct TestTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;  // written as F32
};

inline std::string Safetensors(const std::vector<TestTensor>& tensors) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"model", "test model"}, {"text", "test text"}};
  std::string data;
  for (const TestTensor& t : tensors) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(t.values.data()), t.values.size() * sizeof(float));
    header[t.name] = {{"dtype", "F32"}, {"shape", t.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data;
}

struct ProgramRun {
  int exit_code = 0;
  std::string out, err;
};

// `arguments` as a shell would read them.
inline ProgramRun RunBench(const std::string& arguments) {
  const TestFolder folder;
  const std::string command = std::string(SEINE_BENCH_PROGRAM) + " " + arguments + " >" + folder.File("out") + " 2>" +
                              folder.File("err") + " </dev/null";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), ReadFile(folder.File("out")),
          ReadFile(folder.File("err"))};
}

// Arguments that are refused with exit code 2, and what the error says of each.
inline void ExpectWrongFlags(const std::vector<std::pair<std::string, std::string>>& cases) {
  for (const auto& [arguments, message] : cases) {
    const ProgramRun run = RunBench(arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_NE(run.err.find(message), std::string::npos) << run.err;
  }
}

}  // namespace seine::bench

#endif  // SEINE_TESTS_BENCH_TEST_UTIL_H_
