// What one run of a member of the soak has done and seen: a row of a table, and a line of the ledger.
#ifndef SEINE_TESTS_SOAK_RESULT_H_
#define SEINE_TESTS_SOAK_RESULT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace seine::soak {

// What a run has to make at least, so that a run that did nothing does not pass.
struct Stated {
  int64_t ops = 1, faults = 0;
  // Scales the numbers, which are for 10 s, to a run of `seconds`. One that is not 0 never falls below 1.
  Stated For(double seconds) const;
};

struct Result {
  std::string member;
  std::string transport = "unix";  // what the attack came over
  uint32_t seed = 0;
  std::string commit;
  std::string time;             // of its end, UTC, as in 2026-01-31T10:00:00Z
  double seconds = 0;           // it took
  int64_t ops = 0, faults = 0;  // calls, steps, connections or messages; those of them that a good client does not make
  Stated stated;                // for this run
  int64_t crashes = 0, hangs = 0;                                     // of the server
  int64_t breaks = 0;                                                 // answers outside the contract
  double over_mib = 0;                                                // of the server's memory over what it promised
  nlohmann::ordered_json figures = nlohmann::ordered_json::object();  // numbers by name, with their unit at its end
  std::vector<std::string> notes;                                     // printed below the row; not in the ledger

  bool Short() const { return ops < stated.ops || faults < stated.faults; }
  // "ok", or what was wrong, joined by commas: crash, hang, break, memory, short.
  std::string Verdict() const;
  void Note(std::string text) { notes.push_back(std::move(text)); }
  void Break(const std::string& what) { ++breaks, Note("break: " + what); }
};

nlohmann::ordered_json ToJson(const Result& result);
// A line of a ledger. False: it is none.
bool FromJson(const nlohmann::ordered_json& json, Result* result);

std::string TableHeader();
std::string TableRow(const Result& result);  // and its notes, a line each

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_RESULT_H_
