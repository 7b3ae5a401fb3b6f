// How seine and seine-demo end: one line on stderr, and an exit code a script can tell errors apart by.
#ifndef SEINE_CLIENT_CLI_BASE_EXIT_CODE_H_
#define SEINE_CLIENT_CLI_BASE_EXIT_CODE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace seine::cli {

enum ExitCode : int {
  kOk = 0,
  kOtherError = 1,
  kUsage = 2,        // the command line is wrong
  kFile = 3,         // a file is missing, torn or of another kind
  kUnavailable = 4,  // no server there, or it does not serve
  kNotFound = 5,     // no such index, sequence, layer, service
  kExists = 6,       // the name is taken, or other data lies at that position
  kRefused = 7,      // the server refuses the request: a field is wrong or does not fit its state
  kExhausted = 8,    // out of memory budget, queue or message size
  kTimedOut = 9,     // --timeout passed, or the call was cancelled
};

// The table above, for --help.
extern const char kExitCodeHelp[];

// Errors of the command line and of files, which the server never saw.
absl::Status UsageError(absl::string_view message);
absl::Status FileError(const absl::Status& status);

ExitCode ExitCodeOf(const absl::Status& status);

// An error as it is printed: what it is about, besides what it says.
struct ErrorReport {
  absl::Status status;
  std::string object;        // "INDEX" or "INDEX/SEQUENCE"; empty: none
  std::string field, flag;   // of the request, and the flag that sets it; empty: none
  std::string reason;        // the server's, such as "SHAPE_MISMATCH"
  std::string message = {};  // in place of the status's; empty: that one
};

// Prints "<program>: error: <message>" on one line of stderr, or as JSON {"error": {"code", "exit_code", "message",
// "object", "field", "flag", "reason"}}, also on one line; returns the exit code. OK prints nothing.
int Report(absl::string_view program, const ErrorReport& report, bool json);
int Report(absl::string_view program, const absl::Status& status);

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_BASE_EXIT_CODE_H_
