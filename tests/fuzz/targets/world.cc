#include "tests/fuzz/targets/world.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/fuzz/target.h"

namespace seine::fuzz {
namespace {

// The bytes around the first that differs.
std::string Difference(const std::string& before, const std::string& after) {
  constexpr size_t kAround = 40;
  size_t at = 0;
  while (at < std::min(before.size(), after.size()) && before[at] == after[at]) ++at;
  const size_t begin = at - std::min(at, kAround);
  return absl::StrCat("at byte ", at, ":\n", absl::CHexEscape(before.substr(begin, 2 * kAround)), "\n",
                      absl::CHexEscape(after.substr(begin, 2 * kAround)));
}

}  // namespace

void World::Judge(const test::AttackedMethod& method, const absl::Status& status,
                  const google::protobuf::Message& answer) {
  const std::string fault = test::FaultOf(*method.request, status, answer);
  if (!fault.empty()) Fail(absl::StrCat(method.name, ": ", fault));
  const bool refused = test::AllRefused(status, answer);
  std::string now = State();
  if (refused && now != seen_) {
    Fail(absl::StrCat(method.name, ": was refused, and something has changed: ", status.ToString(), "\n",
                      Difference(seen_, now)));
  }
  dirty_ = dirty_ || now != seen_;
  seen_ = std::move(now);
}

void World::Settle() {
  if (!dirty_) return;
  Restore();
  seen_ = State();
  dirty_ = false;
}

World& TheWorld() {
  // A check of the tests' own that fails ends the process as well.
  static World* const world = [] {
    GTEST_FLAG_SET(break_on_failure, true);
    return new World;
  }();
  return *world;
}

}  // namespace seine::fuzz
