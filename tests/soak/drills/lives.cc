#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/soak/drills/drills.h"

namespace seine::soak {

void Lives(const RunOptions& options, Result* result) {
  const int64_t lives = result->stated.ops;
  const std::string command = absl::StrCat("SEINE_LIVES=", lives, " SEINE_SEED=", options.seed, " '", SERVICE_TEST_PATH,
                                           "' --gtest_filter=RandomLivesTest.* 2>&1");
  std::FILE* const test = popen(command.c_str(), "r");
  if (test == nullptr) return result->Break("the lives cannot be started");
  std::string said;
  char part[4096];
  for (size_t count; (count = std::fread(part, 1, sizeof(part), test)) > 0;) said.append(part, count);
  const int status = pclose(test);
  if (absl::StrContains(said, "[  PASSED  ] 1 test.")) result->ops = lives;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  result->Break(absl::StrCat("status ", status));
  for (const absl::string_view line : absl::StrSplit(said, '\n')) {
    if (!absl::StartsWith(line, "[")) result->Note(std::string(line));
  }
}

}  // namespace seine::soak
