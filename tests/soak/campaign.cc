#include "tests/soak/campaign.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace seine::soak {
namespace {

bool Passed(const Result& run, bool brief) {
  if (!brief) return run.Verdict() == "ok";
  Result without_hangs = run;
  without_hangs.hangs = 0;
  return without_hangs.Verdict() == "ok";
}

class Campaign {
 public:
  explicit Campaign(const CampaignOptions& options) : options_(options) {
    for (const Member& member : Members()) {
      const auto& only = options.only;
      const bool compared = member.name == "none" && options.hours == 0;
      if (!member.any_transport && options.run.transport != Transport::kUnix) continue;
      if (only.empty() || compared || std::find(only.begin(), only.end(), member.name) != only.end()) {
        names_.push_back(member.name);
      }
    }
  }

  int Run() {
    if (!options_.ledger.empty()) {
      auto ledger = Ledger::Open(options_.ledger);
      if (!ledger.ok()) {
        std::cerr << "seine-soak: --ledger " << ledger.status().message() << std::endl;
        return 2;
      }
      ledger_ = *std::move(ledger);
      runs_ = ledger_->Of(options_.commit, NameOf(options_.run.transport));
    }
    const bool runs = options_.hours > 0 ? RunHours() : RunEach();
    return runs ? End() : 2;
  }

 private:
  bool RunEach() {
    std::cout << TableHeader() << std::endl;
    runs_.clear();  // what is judged is this run
    return std::all_of(names_.begin(), names_.end(),
                       [this](const std::string& name) { return RunOne(name, options_.run.seed); });
  }
  bool RunHours() {
    const double wanted = options_.hours * 3600, had = SecondsOf(runs_);
    if (had > 0) {
      std::cout << absl::StrFormat("%s has %d runs of commit %s, %.0f s of %.0f s; going on\n", options_.ledger,
                                   runs_.size(), options_.commit, had, wanted);
    }
    std::cout << TableHeader() << std::endl;
    while (SecondsOf(runs_) < wanted) {
      const Next next = NextOf(names_, runs_, options_.run.seed);
      if (!RunOne(next.member, next.seed)) return false;
    }
    return true;
  }
  // False: the ledger cannot be written.
  bool RunOne(const std::string& name, uint32_t seed) {
    RunOptions run = options_.run;
    run.seed = seed;
    const Result result = RunMember(*FindMember(name), run, options_.commit);
    std::cout << TableRow(result) << std::endl;
    runs_.push_back(result);
    if (ledger_ == nullptr) return true;
    const absl::Status status = ledger_->Add(result);
    if (!status.ok()) std::cerr << "seine-soak: --ledger " << status.message() << std::endl;
    return status.ok();
  }
  int End() const {
    if (options_.hours > 0) std::cout << "\n" << Summary(runs_);
    for (const Result& run : runs_) {
      if (Passed(run, options_.brief)) continue;
      std::cout << absl::StrFormat("failed (%s): ./dev soak --only %s --seed %d --seconds %g --transport %s\n",
                                   run.Verdict(), run.member, run.seed, options_.run.seconds, run.transport);
    }
    std::cout << Totals(runs_).dump() << std::endl;
    const bool passed =
        std::all_of(runs_.begin(), runs_.end(), [this](const Result& run) { return Passed(run, options_.brief); });
    return passed ? 0 : 1;
  }

  const CampaignOptions& options_;
  std::vector<std::string> names_;
  std::unique_ptr<Ledger> ledger_;
  std::vector<Result> runs_;
};

// Totals of one member's runs.
struct Line {
  int64_t runs = 0, ops = 0, faults = 0, failed = 0;
  double seconds = 0, step_p99 = 0, grown = 0;
};

double Figure(const Result& run, const char* name) { return run.figures.value(name, 0.0); }

}  // namespace

int RunCampaign(const CampaignOptions& options) { return Campaign(options).Run(); }

std::string Summary(const std::vector<Result>& runs) {
  std::map<std::string, Line> lines;
  for (const Result& run : runs) {
    Line& line = lines[run.member];
    ++line.runs;
    line.ops += run.ops;
    line.faults += run.faults;
    line.seconds += run.seconds;
    line.failed += run.Verdict() != "ok";
    line.step_p99 = std::max(line.step_p99, Figure(run, "step_p99_ms"));
    line.grown = std::max(line.grown, Figure(run, "rss_grown_mib"));
  }
  std::string table = absl::StrFormat("%-21s %6s %10s %10s %8s %13s %13s %7s\n", "attack", "runs", "ops", "faults",
                                      "seconds", "worst p99 ms", "worst grown", "failed");
  for (const auto& [name, line] : lines) {
    absl::StrAppendFormat(&table, "%-21s %6d %10d %10d %8.0f %13.2f %13.0f %7d\n", name, line.runs, line.ops,
                          line.faults, line.seconds, line.step_p99, line.grown, line.failed);
  }
  return table;
}

nlohmann::ordered_json Totals(const std::vector<Result>& runs) {
  Result total;
  int64_t short_runs = 0;
  auto failed = nlohmann::ordered_json::array();
  for (const Result& run : runs) {
    total.ops += run.ops;
    total.faults += run.faults;
    total.seconds += run.seconds;
    total.crashes += run.crashes;
    total.hangs += run.hangs;
    total.breaks += run.breaks;
    total.over_mib = std::max(total.over_mib, run.over_mib);
    short_runs += run.Short() ? 1 : 0;
    if (run.Verdict() == "ok") continue;
    failed.push_back({{"attack", run.member}, {"seed", run.seed}, {"verdict", run.Verdict()}});
  }
  return {{"runs", runs.size()},
          {"cases", total.ops},
          {"faults", total.faults},
          {"seconds", std::round(total.seconds * 10) / 10},
          {"crashes", total.crashes},
          {"hangs", total.hangs},
          {"contract_breaks", total.breaks},
          {"rss_over_limit_mib", std::round(total.over_mib * 10) / 10},
          {"short", short_runs},
          {"failed", failed}};
}

}  // namespace seine::soak
