// What clients do to a server that is theirs and others'. Each attack runs in a process of its own until it is killed.
#ifndef SEINE_TESTS_SOAK_ATTACKS_H_
#define SEINE_TESTS_SOAK_ATTACKS_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace seine::soak {

// What an attack has done and seen; printed as it goes, for the process that started it.
class Tally {
 public:
  void Case(int64_t count = 1) { cases_ += count; }
  void Break(const std::string& what);  // an answer outside the contract
  int64_t cases() const { return cases_; }

 private:
  std::atomic<int64_t> cases_{0};
};

struct Attack {
  const char* name;
  const char* what;
  void (*run)(const std::string& address, uint32_t seed, Tally& tally);  // never returns, or when it has done all
  std::vector<std::string> flags = {};                                   // of seined, besides limits
  int descriptors = 0;                                                   // seined's limit; 0: ours
  bool stopped = false;                                                  // SIGSTOP after a second: a client that hangs
  bool refuses_connections = false;                                      // to all, while it lasts
};

const std::vector<Attack>& Attacks();

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_ATTACKS_H_
