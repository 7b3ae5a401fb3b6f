#include "tests/device/child.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace seine::device {

Json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return file ? Json::parse(file, nullptr, /*allow_exceptions=*/false) : Json();
}

void WriteJson(const std::string& path, const Json& json) {
  std::ofstream(path + ".new") << json.dump(1) << "\n";
  std::filesystem::rename(path + ".new", path);
}

Json RunInChild(const Part& part, double limit_s, double grace_s, const std::string& path,
                const std::function<Json()>& run) {
  std::filesystem::remove(path);
  const pid_t child = fork();
  if (child == 0) {
    WriteJson(path, run());
    std::_Exit(0);
  }
  std::string ended = child < 0 ? "no process for it" : "";
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s + grace_s);
  for (int status = 0; child > 0;) {
    if (waitpid(child, &status, WNOHANG) == child) {
      if (WIFSIGNALED(status)) ended = "ended by signal " + std::to_string(WTERMSIG(status));
      if (WIFEXITED(status) && WEXITSTATUS(status) != 0) ended = "exit code " + std::to_string(WEXITSTATUS(status));
      break;
    }
    if (std::chrono::steady_clock::now() > end) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      ended = "ended: it did not come back within its limit of " + std::to_string(static_cast<int>(limit_s)) + " s";
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  Json json = ReadJson(path);
  if (json.is_object()) return json;
  if (ended.empty()) ended = "it left no result";
  std::fprintf(stderr, "%s: %s: FAILED: %s\n", part.name.c_str(), part.what.c_str(), ended.c_str());
  return {{"part", part.name}, {"what", part.what}, {"passed", false}, {"error", ended}};
}

}  // namespace seine::device
