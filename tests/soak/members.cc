#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/soak/attack_run.h"
#include "tests/soak/attacks/attacks.h"
#include "tests/soak/drills/drills.h"
#include "tests/soak/member.h"

namespace seine::soak {

const std::vector<Member>& Members() {
  static const auto* const members = [] {
    auto* const all = new std::vector<Member>;
    all->push_back({"none",
                    "the bystander alone",
                    {100, 0},
                    [](const RunOptions& options, Result* result) { RunAttack(nullptr, options, result); },
                    /*any_transport=*/true});
    for (const Attack& attack : Attacks()) {
      all->push_back({attack.name, attack.what, attack.stated,
                      [&attack](const RunOptions& options, Result* result) { RunAttack(&attack, options, result); },
                      /*any_transport=*/true});
    }
    all->push_back(
        {"ends", "20 servers that are told to end while clients of every kind are at work", {2000, 20}, &Ends});
    all->push_back({"kills", "200 clients killed while they hold same-host channels", {200, 200}, &Kills});
    all->push_back({"snapshot-kills",
                    "40 servers killed while they snapshot, restore, start or end; the next has what was completed",
                    {80, 40},
                    &KillSnapshots});
    all->push_back(
        {"move-kills",
         "40 servers and movers killed in the calls of a move; at most one node has the family, and all of it",
         {120, 40},
         &KillMoves});
    all->push_back(
        {"idle-kills",
         "40 servers killed while idle families go to files and come back; the next has what was snapshotted",
         {240, 40},
         &KillIdle});
    all->push_back(
        {"lives",
         "200 servers in a row over one folder: killed, on full disks, with files damaged or hidden, settings others",
         {200, 0},
         &Lives});
    for (const FrontProgram& program : FrontPrograms()) {
      if (PathOfProgram(program.program).empty()) continue;
      all->push_back({absl::StrCat("front-", program.name),
                      absl::StrCat("a flood of resets on ", program.program, ", as deploy/", program.config, " has it"),
                      {100, 10'000},
                      [&program](const RunOptions& options, Result* result) { RunFront(program, options, result); }});
    }
    return all;
  }();
  return *members;
}

const Member* FindMember(const std::string& name) {
  const auto& all = Members();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Member& member) { return member.name == name; });
  return found == all.end() ? nullptr : &*found;
}

Result RunMember(const Member& member, const RunOptions& options, const std::string& commit) {
  Result result;
  result.member = member.name;
  result.seed = options.seed;
  result.transport = NameOf(options.transport);
  result.commit = commit;
  result.stated = member.stated.For(options.seconds);
  const auto begin = std::chrono::steady_clock::now();
  member.run(options, &result);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  result.time = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone());
  return result;
}

}  // namespace seine::soak
