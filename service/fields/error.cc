#include "service/fields/error.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "profile/field_error.h"

namespace seine {
namespace {

constexpr absl::string_view kTypeUrl = "type.googleapis.com/google.rpc.";
constexpr size_t kMostQuoted = 200, kMostTold = 400;
constexpr absl::Duration kMovingRetry = absl::Milliseconds(20);
constexpr absl::Duration kDrainingRetry = absl::Seconds(1);
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

// Bytes of the UTF-8 character that `text` begins with; 0: none, or one that cannot be printed.
size_t CharacterLength(absl::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return absl::ascii_isprint(text[0]) ? 1 : 0;
  const size_t length = lead >= 0xC2 && lead < 0xE0 ? 2 : lead >= 0xE0 && lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (lead < 0xC2 || length == 0 || text.size() < length) return 0;
  // The second byte tells characters from longer ways to write them, halves of UTF-16 pairs, and what is beyond
  // Unicode.
  const auto second = static_cast<uint8_t>(text[1]);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F)) return 0;
  if ((lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<uint8_t>(text[i]) & 0xC0) != 0x80) return 0;
  }
  return length;
}

// The beginning of a text, printable, of `most` bytes and "..." where there is more.
std::string Shown(absl::string_view text, size_t most) {
  std::string out;
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    const std::string next = length > 0
                                 ? std::string(text.substr(0, length))
                                 : absl::StrCat("\\x", absl::Hex(static_cast<uint8_t>(text[0]), absl::kZeroPad2));
    if (out.size() + next.size() > most) return out + "...";
    out += next;
    text.remove_prefix(std::max<size_t>(1, length));
  }
  return out;
}

}  // namespace

std::string Quoted(absl::string_view text) { return absl::StrCat("'", Shown(text, kMostQuoted), "'"); }

std::string OneLine(absl::string_view text) { return Shown(text, SIZE_MAX); }

absl::Status FieldError(absl::string_view reason, absl::string_view field, absl::string_view what,
                        absl::StatusCode code) {
  const std::string told = Shown(what, kMostTold);
  absl::Status status(code, absl::StrCat(field, ": ", told));
  AttachReason(reason, &status);
  AttachField(field, told, &status);
  return status;
}

absl::Status Overloaded(absl::string_view reason, absl::string_view what, absl::Duration retry_delay) {
  absl::Status status = absl::ResourceExhaustedError(Shown(what, kMostTold));
  AttachReason(reason, &status);
  if (retry_delay > absl::ZeroDuration()) AttachRetry(retry_delay, &status);
  return status;
}

absl::Status Moving(absl::string_view family) {
  absl::Status status =
      absl::UnavailableError(absl::StrCat("family ", Quoted(family), " takes no changes while it moves"));
  AttachReason("MOVING", &status);
  AttachRetry(kMovingRetry, &status);
  return status;
}

absl::Status Moved(absl::string_view family, const std::string& node, const std::string& address, uint64_t generation) {
  absl::Status status =
      absl::FailedPreconditionError(absl::StrCat("family ", Quoted(family), " has moved to node ", Quoted(node)));
  v1::ErrorInfo info;
  info.set_reason("MOVED");
  info.set_domain("seine");
  (*info.mutable_metadata())["node"] = node;
  (*info.mutable_metadata())["address"] = address;
  (*info.mutable_metadata())["generation"] = absl::StrCat(generation);
  Attach("ErrorInfo", info, &status);
  return status;
}

absl::Status Draining() {
  absl::Status status = absl::UnavailableError("the server drains and takes no new families");
  AttachReason("DRAINING", &status);
  AttachRetry(kDrainingRetry, &status);
  return status;
}

absl::Status TooMuchInFlight() {
  return Overloaded("IN_FLIGHT_LIMIT", "as many bytes of requests and answers as may be are under way; try again",
                    absl::Milliseconds(50));
}

absl::Status NoMemory() { return Overloaded("NO_MEMORY", "the server has no memory for this", kMemoryRetry); }

absl::Status Explain(const absl::Status& status, absl::string_view prefix) {
  if (status.ok() || status.GetPayload(absl::StrCat(kTypeUrl, "ErrorInfo"))) return status;
  if (absl::IsResourceExhausted(status)) return Overloaded("MEMORY_LIMIT", status.message(), kMemoryRetry);
  const std::string reason = absl::StatusCodeToString(status.code());
  const absl::Status named = prefix.empty() ? status : InGroup(status, prefix);
  if (const std::string field = FieldOf(named); !field.empty()) {
    return FieldError(reason, field, WhatOf(named), status.code());
  }
  absl::Status explained(status.code(), Shown(status.message(), kMostTold));
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
