// The ledger of a long run: a file with a line of JSON for each run that has ended. A later process that is given the
// same file goes on where the last one was cut off.
#ifndef SEINE_TESTS_SOAK_LEDGER_H_
#define SEINE_TESTS_SOAK_LEDGER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/soak/result.h"

namespace seine::soak {

class Ledger {
 public:
  // Makes the file and its folder, or reads what is there. A last line without an end, as a killed process leaves it,
  // is cut off. Errors name the file: a line that is none of ours, no permission, another process that writes to it.
  static absl::StatusOr<std::unique_ptr<Ledger>> Open(const std::string& path);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // On the disk when it returns.
  absl::Status Add(const Result& result);
  // Returns one commit's runs over one transport in their order: what another build did proves nothing about this one.
  std::vector<Result> Of(const std::string& commit, const std::string& transport = "unix") const;

 private:
  Ledger(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  absl::Status Read();
  const std::string path_;
  const int fd_;
  std::vector<Result> runs_;
};

// The run to make next: the member that has run least often, and the seed after its last, or `first_seed`.
struct Next {
  std::string member;
  uint32_t seed;
};
Next NextOf(const std::vector<std::string>& members, const std::vector<Result>& runs, uint32_t first_seed);
double SecondsOf(const std::vector<Result>& runs);

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_LEDGER_H_
