// A run of the soak: members once each, or again and again until a time is over, with a ledger of what they did.
#ifndef SEINE_TESTS_SOAK_CAMPAIGN_H_
#define SEINE_TESTS_SOAK_CAMPAIGN_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/soak/ledger.h"
#include "tests/soak/member.h"

namespace seine::soak {

struct CampaignOptions {
  RunOptions run;
  bool brief = false;  // hangs are counted, and not held against it
  double hours = 0;    // of the ledger's runs together; 0: each member once
  std::string ledger;  // empty: none
  std::string commit = "unknown";
  std::vector<std::string> only;  // members; empty: all
};

// Prints a row for each run, a summary, and a line of JSON. Returns the exit code: 0 where every run was "ok", 1 where
// one was not, 2 where the ledger cannot be used.
int RunCampaign(const CampaignOptions& options);

// A table of members: runs, operations, faults, and the worst of what was seen.
std::string Summary(const std::vector<Result>& runs);
// {"runs", "cases", "faults", "seconds", "crashes", "hangs", "contract_breaks", "rss_over_limit_mib", "short",
// "failed": [{"attack", "seed", "verdict"}]}.
nlohmann::ordered_json Totals(const std::vector<Result>& runs);

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_CAMPAIGN_H_
