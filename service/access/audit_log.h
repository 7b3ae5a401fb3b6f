// The audit log: a line of JSON for each call that makes, deletes, forks, cuts back or loads something: who, when,
// what, and how it ended. Appended tokens and questions are not in it, nor what indexes evict by themselves.
//
//   {"time":"2024-05-01T12:00:00.123Z","tenant":"acme","who":"token 5e884898","peer":"ipv4:10.0.0.7:40022",
//    "call":"Evict","index":"llama","sequence":"chat","code":"OK"}
//
// A line that the disk did not take in whole is lost and said to be; the next begins on a line of its own. A disk that
// hangs holds up no call for longer than a second (audit_lines.h).
//
// Thread-safe.
#ifndef SEINE_SERVICE_ACCESS_AUDIT_LOG_H_
#define SEINE_SERVICE_ACCESS_AUDIT_LOG_H_

#include <google/protobuf/message.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "service/access/audit_lines.h"

namespace seine {

class AuditLog {
 public:
  // Lines are added to the file at `path`, made with mode 0600 where there is none. INVALID_ARGUMENT naming audit.file.
  // `failed` is told of lines that are lost, on any thread; it must not wait.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const std::string& path,
                                                        std::function<void(const absl::Status&)> failed);
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  // A call of this thread's caller that has ended. `request` and `response` are XRequest and XResponse of call X.
  void Record(const google::protobuf::Message& request, const google::protobuf::Message& response,
              const absl::Status& status);
  // Opens the path anew, where another file may be by now. Not OK: lines go where they went.
  absl::Status Reopen();

 private:
  AuditLog(std::string path, std::function<void(const absl::Status&)> failed)
      : path_(std::move(path)), failed_(std::move(failed)) {}

  const std::string path_;
  const std::function<void(const absl::Status&)> failed_;
  std::mutex mutex_;
  std::shared_ptr<AuditLines> lines_;  // guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_ACCESS_AUDIT_LOG_H_
