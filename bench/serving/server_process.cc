// See server_process.h.
#include "bench/serving/server_process.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

namespace seine::bench {

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(const std::string& program,
                                                                    const std::vector<std::string>& arguments) {
  if (access(program.c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("--spawn: ", program, " is no program that can be run"));
  }
  std::error_code error;
  std::string folder = (std::filesystem::temp_directory_path(error) / "seine-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return absl::UnavailableError("--spawn: cannot make a temporary folder");
  const std::string endpoint = absl::StrCat("unix://", folder, "/seine.sock");
  std::vector<std::string> words = {program, "--listen", endpoint};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  if (const int failed = posix_spawn(&pid, program.c_str(), nullptr, nullptr, argv.data(), environ); failed != 0) {
    std::filesystem::remove_all(folder, error);
    return absl::UnavailableError(absl::StrCat("--spawn: ", program, ": ", std::strerror(failed)));
  }
  return std::unique_ptr<ServerProcess>(new ServerProcess(pid, std::move(folder), endpoint));
}

ServerProcess::ServerProcess(pid_t pid, std::string folder, std::string endpoint)
    : pid_(pid), folder_(std::move(folder)), endpoint_(std::move(endpoint)) {}

ServerProcess::~ServerProcess() {
  kill(pid_, SIGTERM);
  waitpid(pid_, nullptr, 0);
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
}

}  // namespace seine::bench
