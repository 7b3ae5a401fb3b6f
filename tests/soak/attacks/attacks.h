// What clients do to a server that is theirs and others'. Each attack runs in a process of its own until it is killed.
#ifndef SEINE_TESTS_SOAK_ATTACKS_ATTACKS_H_
#define SEINE_TESTS_SOAK_ATTACKS_ATTACKS_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/soak/result.h"

namespace seine::soak {

// What an attack has done and seen; printed as it goes, for the process that started it.
class Tally {
 public:
  void Case(int64_t count = 1) { cases_ += count; }
  void Fault(int64_t count = 1) { faults_ += count; }
  void CaseAndFault(int64_t count = 1) { Case(count), Fault(count); }
  void Break(const std::string& what);  // an answer outside the contract
  void Print() const;                   // a line: "cases 12 faults 3"
  int64_t cases() const { return cases_; }
  int64_t faults() const { return faults_; }
  int64_t breaks() const { return breaks_; }

 private:
  std::atomic<int64_t> cases_{0}, faults_{0}, breaks_{0};
};

struct Target {
  std::string endpoint;  // as Endpoint::ToString
  std::string metrics;   // 127.0.0.1:PORT
  uint32_t seed;
  double seconds;  // how long the attack is to last, for those whose size scales with it
};

struct Attack {
  const char* name;
  const char* what;
  void (*run)(const Target& target, Tally& tally);  // never returns, or when it has done all
  Stated stated;                                    // for 10 s
  std::vector<std::string> flags = {};              // of seined, besides limits
  int descriptors = 0;                              // seined's limit; 0: ours
  bool stopped = false;                             // SIGSTOP after a second: a client that hangs
  bool refuses_connections = false;                 // to all, while it lasts
  bool apart = false;           // server and bystander share a processor, the attacker has the others for itself
  bool leaves_nothing = false;  // its client is killed before the server ends: all comes back
  double grows_mib = 0;         // that the server's memory may grow; 0: as far as it promises
  double grows_tls_mib = 0;     // the same over TLS; 0: no more than over others
  bool keeps = false;           // what it stores, to its end: by the server's account that is no growth of its own
};

const std::vector<Attack>& Attacks();

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_ATTACKS_ATTACKS_H_
