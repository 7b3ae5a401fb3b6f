// Errors to exit codes.
#include "client/cli/base/exit_code.h"

#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_replace.h"
#include "client/cli/base/output.h"

namespace seine::cli {
namespace {

constexpr char kClassPayload[] = "seine/exit_code";  // set on errors that are not the server's

absl::Status WithClass(absl::Status status, absl::string_view name) {
  status.SetPayload(kClassPayload, absl::Cord(name));
  return status;
}

}  // namespace

const char kExitCodeHelp[] =
    "Exit codes: 0 done, 1 another error, 2 wrong command line, 3 file missing, torn or of another kind, "
    "4 no server there or not serving, 5 not found, 6 already exists, 7 refused by the server (a wrong field), "
    "8 out of memory budget, queue or message size, 9 timed out. Data goes to stdout, an error is one line on stderr, "
    "with -o json a JSON object: {\"error\": {\"code\", \"exit_code\", \"message\", \"object\", \"field\", \"flag\", "
    "\"reason\"}}.";

absl::Status UsageError(absl::string_view message) { return WithClass(absl::InvalidArgumentError(message), "usage"); }

absl::Status FileError(const absl::Status& status) { return WithClass(status, "file"); }

ExitCode ExitCodeOf(const absl::Status& status) {
  if (const auto name = status.GetPayload(kClassPayload)) return *name == "usage" ? kUsage : kFile;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kOk;
    case absl::StatusCode::kUnavailable:
      return kUnavailable;
    case absl::StatusCode::kNotFound:
      return kNotFound;
    case absl::StatusCode::kAlreadyExists:
      return kExists;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      return kRefused;
    case absl::StatusCode::kResourceExhausted:
      return kExhausted;
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
      return kTimedOut;
    default:
      return kOtherError;
  }
}

int Report(absl::string_view program, const ErrorReport& report, bool json) {
  if (report.status.ok()) return kOk;
  const int code = ExitCodeOf(report.status);
  const absl::string_view text = report.message.empty() ? report.status.message() : absl::string_view(report.message);
  const std::string line = absl::StrReplaceAll(text, {{"\r\n", "; "}, {"\n", "; "}, {"\r", " "}});
  if (!json) {
    std::fprintf(stderr, "%s: error: %s\n", std::string(program).c_str(), line.c_str());
    return code;
  }
  Json error = {{"code", absl::StatusCodeToString(report.status.code())}, {"exit_code", code}, {"message", line}};
  const std::pair<const char*, const std::string*> parts[] = {
      {"object", &report.object}, {"field", &report.field}, {"flag", &report.flag}, {"reason", &report.reason}};
  for (const auto& [name, value] : parts) error[name] = value->empty() ? Json() : Json(*value);
  const std::string dump = Json{{"error", error}}.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::fprintf(stderr, "%s\n", dump.c_str());
  return code;
}

int Report(absl::string_view program, const absl::Status& status) {
  return Report(program, ErrorReport{status, "", "", "", ""}, /*json=*/false);
}

}  // namespace seine::cli
