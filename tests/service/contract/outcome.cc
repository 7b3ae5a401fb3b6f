// What the contract says of any outcome: a part of adversary.h.
#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "service/fields/error.h"
#include "tests/service/contract/adversary.h"

namespace seine::test {
namespace {

using google::protobuf::Reflection;

constexpr absl::string_view kTypeUrl = "type.googleapis.com/google.rpc.";

bool IsAllowed(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
      return true;
    default:
      return false;
  }
}

std::string FieldIn(const v1::Status& status) {
  for (const auto& any : status.details()) {
    v1::BadRequest bad;
    if (any.type_url() == absl::StrCat(kTypeUrl, "BadRequest") && bad.ParseFromString(any.value()) &&
        bad.field_violations_size() == 1) {
      return bad.field_violations(0).field();
    }
  }
  return "";
}

std::string ReasonIn(const v1::Status& status) {
  for (const auto& any : status.details()) {
    v1::ErrorInfo info;
    if (any.type_url() == absl::StrCat(kTypeUrl, "ErrorInfo") && info.ParseFromString(any.value())) {
      return info.domain() == "seine" ? info.reason() : "";
    }
  }
  return "";
}

std::string FaultOfError(const Message& request, const v1::Status& status) {
  const auto code = static_cast<absl::StatusCode>(status.code());
  const std::string reason = ReasonIn(status);
  const bool wait = code == absl::StatusCode::kUnavailable && (reason == "MOVING" || reason == "DRAINING");
  if (!IsAllowed(code) && !wait) return "the code is none of the contract's";
  if (status.message().empty()) return "the error has no text";
  for (const char c : status.message()) {
    if ((c >= 0 && c < ' ') || c == '\x7f') return "the text is not one printable line";
  }
  if (reason.empty()) return "the error has no reason";
  if (code != absl::StatusCode::kInvalidArgument) return "";
  const std::string field = FieldIn(status);
  if (field.empty()) return "the error names no field";
  if (field == "request" || PathExists(request.GetDescriptor(), field)) return "";
  return absl::StrCat("the request has no field ", field);
}

// Every status of an answer that is not OK.
void Failures(const Message& answer, std::vector<const v1::Status*>* out) {
  if (answer.GetDescriptor() == v1::Status::descriptor()) {
    const auto* status = static_cast<const v1::Status*>(&answer);
    if (status->code() != 0) out->push_back(status);
    return;
  }
  const Reflection* r = answer.GetReflection();
  std::vector<const Descriptor*> fields;
  r->ListFields(answer, &fields);
  for (const Descriptor* field : fields) {
    if (field->cpp_type() != Descriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      Failures(r->GetMessage(answer, field), out);
      continue;
    }
    for (int i = 0; i < r->FieldSize(answer, field); ++i) Failures(r->GetRepeatedMessage(answer, field, i), out);
  }
}

}  // namespace

std::string FaultOf(const Message& request, const absl::Status& status, const Message& answer) {
  v1::Status whole;
  std::vector<const v1::Status*> failures;
  if (!status.ok()) {
    ToProto(status, &whole);
    failures.push_back(&whole);
  } else {
    Failures(answer, &failures);
    if (!IsFinite(answer)) return "the answer holds a number that is not finite";
  }
  for (const v1::Status* failure : failures) {
    const std::string fault = FaultOfError(request, *failure);
    if (!fault.empty()) return absl::StrCat(fault, ": ", failure->ShortDebugString());
  }
  return "";
}

bool AllRefused(const absl::Status& status, const Message& answer) {
  if (!status.ok()) return true;
  if (answer.GetDescriptor() != v1::DecodeResponse::descriptor()) return false;
  const auto& step = static_cast<const v1::DecodeResponse&>(answer);
  if (step.status().code() != 0) return true;
  const auto refused = [](const auto& part) { return part.status().code() != 0; };
  return std::all_of(step.append_status().begin(), step.append_status().end(),
                     [](const v1::Status& append) { return append.code() != 0; }) &&
         std::all_of(step.answers().begin(), step.answers().end(), refused) &&  // a search may keep its queries
         std::all_of(step.attended().begin(), step.attended().end(), refused);
}

}  // namespace seine::test
