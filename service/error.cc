#include "service/error.h"

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace seine {
namespace {

constexpr absl::string_view kTypeUrl = "type.googleapis.com/google.rpc.";
constexpr absl::Duration kMemoryRetry = absl::Seconds(1);  // memory comes back when somebody deletes a sequence

void Attach(absl::string_view type, const google::protobuf::Message& detail, absl::Status* status) {
  status->SetPayload(absl::StrCat(kTypeUrl, type), absl::Cord(detail.SerializeAsString()));
}

void AttachReason(absl::string_view reason, absl::Status* status) {
  v1::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain("seine");
  Attach("ErrorInfo", info, status);
}

void AttachField(absl::string_view field, absl::string_view what, absl::Status* status) {
  v1::BadRequest bad;
  auto* violation = bad.add_field_violations();
  violation->set_field(std::string(field));
  violation->set_description(std::string(what));
  Attach("BadRequest", bad, status);
}

void AttachRetry(absl::Duration delay, absl::Status* status) {
  v1::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(delay));
  retry.mutable_retry_delay()->set_nanos(absl::ToInt64Nanoseconds(delay % absl::Seconds(1)));
  Attach("RetryInfo", retry, status);
}

// Length of the field path that `message` opens with ("zones.sink: ..."), 0 if it opens with words.
size_t FieldLength(absl::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == absl::string_view::npos) return 0;
  for (const char c : message.substr(0, colon)) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && !absl::StrContains("_.[]", c)) return 0;
  }
  return colon;
}

}  // namespace

absl::Status FieldError(absl::string_view reason, absl::string_view field, absl::string_view what,
                        absl::StatusCode code) {
  absl::Status status(code, absl::StrCat(field, ": ", what));
  AttachReason(reason, &status);
  AttachField(field, what, &status);
  return status;
}

absl::Status Overloaded(absl::string_view reason, absl::string_view what, absl::Duration retry_delay) {
  absl::Status status = absl::ResourceExhaustedError(what);
  AttachReason(reason, &status);
  AttachRetry(retry_delay, &status);
  return status;
}

absl::Status Explain(const absl::Status& status, absl::string_view prefix, FieldNames names) {
  if (status.ok() || status.GetPayload(absl::StrCat(kTypeUrl, "ErrorInfo"))) return status;
  if (absl::IsResourceExhausted(status)) return Overloaded("MEMORY_LIMIT", status.message(), kMemoryRetry);
  std::string message(status.message());
  for (const auto& [ours, theirs] : names) {
    if (!absl::StartsWith(message, ours)) continue;
    message.replace(0, ours.size(), theirs.data(), theirs.size());
    break;
  }
  const std::string reason = absl::StatusCodeToString(status.code());
  const size_t length = FieldLength(message);
  if (length > 0) {
    const std::string field = message.substr(0, length);
    return FieldError(reason, prefix.empty() ? field : absl::StrCat(prefix, ".", field), message.substr(length + 2),
                      status.code());
  }
  if (!prefix.empty()) return FieldError(reason, prefix, message, status.code());
  absl::Status explained(status.code(), message);
  AttachReason(reason, &explained);
  return explained;
}

void ToProto(const absl::Status& status, v1::Status* out) {
  out->set_code(static_cast<int>(status.code()));
  out->set_message(std::string(status.message()));
  status.ForEachPayload([out](absl::string_view url, const absl::Cord& value) {
    auto* any = out->add_details();
    any->set_type_url(std::string(url));
    any->set_value(std::string(value));
  });
}

}  // namespace seine
