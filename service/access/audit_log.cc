#include "service/access/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "service/access/caller.h"
#include "service/access/wrong_setting.h"

namespace seine {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

absl::Status WrongAuditFile(const std::string& path, absl::string_view what) {
  return WrongSetting("audit.file", absl::StrCat(path, ": ", what));
}

// Read as well where that is allowed, for the file's last byte says whether its last line is whole.
absl::StatusOr<int> OpenToAppend(const std::string& path) {
  constexpr int kHow = O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  int fd = open(path.c_str(), O_RDWR | kHow, 0600);
  if (fd < 0 && errno == EACCES) fd = open(path.c_str(), O_WRONLY | kHow, 0600);
  if (fd < 0) return WrongAuditFile(path, strerror(errno));
  struct stat info = {};
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) return fd;
  close(fd);
  return WrongAuditFile(path, "is no regular file");
}

// Whether a line that is added would be glued to one that was cut; also where that cannot be seen.
bool EndsWithinALine(int fd) {
  struct stat info = {};
  char last = 0;
  if (fstat(fd, &info) == 0 && info.st_size == 0) return false;
  return pread(fd, &last, 1, info.st_size - 1) != 1 || last != '\n';
}

// A text field of a message, or of the message in its field `outer`; empty where there is none.
std::string TextField(const Message& message, const char* outer, const char* name) {
  const Message* holder = &message;
  if (outer != nullptr) {
    const FieldDescriptor* const field = message.GetDescriptor()->FindFieldByName(outer);
    if (field == nullptr || field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_repeated()) return "";
    holder = &message.GetReflection()->GetMessage(message, field);
  }
  const FieldDescriptor* const field = holder->GetDescriptor()->FindFieldByName(name);
  if (field == nullptr || field->cpp_type() != FieldDescriptor::CPPTYPE_STRING || field->is_repeated()) return "";
  return holder->GetReflection()->GetString(*holder, field);
}

// A yes or no of a message; null where it has no such field.
nlohmann::ordered_json BoolField(const Message& message, const char* name) {
  const FieldDescriptor* const field = message.GetDescriptor()->FindFieldByName(name);
  if (field == nullptr || field->cpp_type() != FieldDescriptor::CPPTYPE_BOOL || field->is_repeated()) return nullptr;
  return message.GetReflection()->GetBool(message, field);
}

// The first that is not empty.
std::string FirstNotEmpty(std::initializer_list<std::string> texts) {
  for (const std::string& text : texts) {
    if (!text.empty()) return text;
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(const std::string& path,
                                                         std::function<void(const absl::Status&)> failed) {
  std::unique_ptr<AuditLog> log(new AuditLog(path, std::move(failed)));
  if (auto s = log->Reopen(); !s.ok()) return s;
  return log;
}

absl::Status AuditLog::Reopen() try {
  const auto fd = OpenToAppend(path_);
  if (!fd.ok()) return fd.status();
  auto lines = std::make_shared<AuditLines>(*fd, EndsWithinALine(*fd), [this](const std::string& why) {
    failed_(absl::UnavailableError(absl::StrCat(path_, ": ", why)));
  });
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::swap(lines, lines_);
  }
  return absl::OkStatus();  // what waits for the file of before is waited for here
} catch (const std::system_error& error) {
  return absl::ResourceExhaustedError(absl::StrCat("audit.file: the system has no thread for it: ", error.what()));
}

void AuditLog::Record(const Message& request, const Message& response, const absl::Status& status) {
  const Caller* const caller = CallerScope::current();
  const bool by_credential = caller != nullptr && caller->grant != nullptr;
  nlohmann::ordered_json line = {
      {"time", absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone())},
      {"tenant", std::string(CurrentTenant())},
      {"who", by_credential       ? caller->grant->name
              : caller != nullptr ? "owner of the socket"
                                  : "anyone"},
      {"peer", caller == nullptr ? "" : caller->peer},
      {"call", std::string(absl::StripSuffix(request.GetDescriptor()->name(), "Request"))},
      {"index", FirstNotEmpty({TextField(request, nullptr, "index"), TextField(request, nullptr, "name"),
                               TextField(request, "spec", "name"), TextField(request, "handle", "index"),
                               TextField(request, "source", "index")})},
      {"sequence", FirstNotEmpty({TextField(response, "handle", "id"), TextField(request, nullptr, "id"),
                                  TextField(request, nullptr, "new_id"), TextField(request, "handle", "id")})},
      {"code", absl::StatusCodeToString(status.code())},
  };
  if (const std::string file = TextField(request, nullptr, "file"); !file.empty()) line["file"] = file;
  if (const std::string source = TextField(request, "source", "id"); !source.empty()) line["source"] = source;
  if (const std::string family = TextField(request, nullptr, "family"); !family.empty()) line["family"] = family;
  if (const auto draining = BoolField(request, "draining"); !draining.is_null()) line["draining"] = draining;
  const std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  std::shared_ptr<AuditLines> lines;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    lines = lines_;
  }
  lines->Write(text);
}

}  // namespace seine
