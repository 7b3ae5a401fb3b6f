// Conversion between values and wire messages.
#include "client/convert/convert.h"

#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/convert/eviction.h"
#include "client/convert/subspace.h"
#include "profile/field_error.h"

namespace seine::client {
namespace {

constexpr char kReasonPayload[] = "seine/reason";
constexpr char kRetryPayload[] = "seine/retry";  // nanoseconds

static_assert(static_cast<int>(DType::kInt32) == v1::D_TYPE_INT32 &&
                  static_cast<int>(SearchMode::kGate) == v1::SEARCH_MODE_GATE,
              "types.h's enums carry the wire's numbers");

std::string PayloadOf(const absl::Status& status, const char* url) {
  const absl::optional<absl::Cord> payload = status.GetPayload(url);
  return payload ? std::string(*payload) : std::string();
}

// Element `i` of a reused repeated field, made if there is none.
template <typename Message>
Message* ElementAt(google::protobuf::RepeatedPtrField<Message>* field, int i) {
  return i < field->size() ? field->Mutable(i) : field->Add();
}

template <typename Message>
void ShrinkTo(google::protobuf::RepeatedPtrField<Message>* field, int size) {
  while (field->size() > size) field->RemoveLast();
}

absl::Status ToProto(absl::string_view name, const ConstTensor& tensor, v1::Tensor* out, TensorViews* apart = nullptr) {
  size_t bytes = 0;
  absl::Status status = CheckTensor(name, tensor, &bytes);
  if (!status.ok()) return status;
  out->set_dtype(static_cast<v1::DType>(tensor.dtype));
  out->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
  if (apart != nullptr) {
    out->clear_raw();
    apart->emplace_back(static_cast<const char*>(tensor.data), bytes);
  } else if (bytes > 0) {
    out->mutable_raw()->assign(static_cast<const char*>(tensor.data), bytes);
  } else {
    out->mutable_raw()->clear();
  }
  return absl::OkStatus();
}

// Copies a 4-byte-element tensor of `expected` elements into `out`.
template <typename T>
absl::Status ReadElements(absl::string_view name, const v1::Tensor& tensor, v1::DType dtype, int64_t expected,
                          std::vector<T>* out) {
  static_assert(sizeof(T) == 4);
  if (tensor.dtype() != dtype || tensor.raw().size() / 4 != static_cast<uint64_t>(expected) ||
      tensor.raw().size() % 4) {
    return absl::InternalError(absl::StrCat("the server's answer is malformed: ", name, " has ", tensor.raw().size(),
                                            " bytes for ", expected, " elements"));
  }
  out->resize(expected);
  if (expected > 0) std::memcpy(out->data(), tensor.raw().data(), tensor.raw().size());
  return absl::OkStatus();
}

absl::Status CheckCounts(const Answer& answer) {
  for (int32_t count : answer.counts) {
    if (count < 0 || count > answer.width) {
      return absl::InternalError(
          absl::StrCat("the server's answer is malformed: a count is ", count, " of ", answer.width));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string FieldOf(const absl::Status& status) { return seine::FieldOf(status); }
std::string ReasonOf(const absl::Status& status) { return PayloadOf(status, kReasonPayload); }
absl::Duration RetryDelayOf(const absl::Status& status) {
  int64_t nanoseconds = 0;
  return absl::SimpleAtoi(PayloadOf(status, kRetryPayload), &nanoseconds) ? absl::Nanoseconds(nanoseconds)
                                                                          : absl::ZeroDuration();
}

absl::Status WithReason(absl::Status error, absl::string_view reason) {
  error.SetPayload(kReasonPayload, absl::Cord(reason));
  return error;
}

absl::Status MakeError(int code, absl::string_view message, const v1::Status& details) {
  std::string field, reason;
  absl::Duration retry;
  for (const google::protobuf::Any& any : details.details()) {
    // Compared by the type's last part: the server packs our wire-identical messages under google.rpc's names.
    v1::BadRequest bad_request;
    v1::ErrorInfo error_info;
    v1::RetryInfo retry_info;
    if (absl::EndsWith(any.type_url(), "google.rpc.BadRequest") && bad_request.ParseFromString(any.value()) &&
        bad_request.field_violations_size() > 0) {
      field = bad_request.field_violations(0).field();
    } else if (absl::EndsWith(any.type_url(), "google.rpc.ErrorInfo") && error_info.ParseFromString(any.value())) {
      reason = error_info.reason();
    } else if (absl::EndsWith(any.type_url(), "google.rpc.RetryInfo") && retry_info.ParseFromString(any.value())) {
      retry = absl::Seconds(retry_info.retry_delay().seconds()) + absl::Nanoseconds(retry_info.retry_delay().nanos());
    }
  }
  std::string text(message);
  if (!field.empty() && !absl::StrContains(text, field)) text = absl::StrCat(field, ": ", text);
  absl::Status status(code > 0 && code <= 16 ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown, text);
  if (!field.empty()) status.SetPayload(kFieldPayload, absl::Cord(field));
  if (!reason.empty()) status.SetPayload(kReasonPayload, absl::Cord(reason));
  if (retry > absl::ZeroDuration()) {
    status.SetPayload(kRetryPayload, absl::Cord(absl::StrCat(absl::ToInt64Nanoseconds(retry))));
  }
  return status;
}

absl::Status FromProto(const v1::Status& status) {
  return status.code() == 0 ? absl::OkStatus() : MakeError(status.code(), status.message(), status);
}

absl::Status CheckTensor(absl::string_view name, const ConstTensor& tensor, size_t* bytes) {
  if (tensor.on_device) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": in a device's memory, which a server does not read"));
  }
  return CheckShape(name, tensor, bytes);
}

absl::Status CheckShape(absl::string_view name, const ConstTensor& tensor, size_t* bytes) {
  size_t product = SizeOf(tensor.dtype);
  for (int64_t dim : tensor.shape) {
    if (dim < 0 || __builtin_mul_overflow(product, static_cast<size_t>(dim), &product)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ".shape: dimension ", dim, " is negative or too large"));
    }
  }
  if (product > 0 && tensor.data == nullptr) return absl::InvalidArgumentError(absl::StrCat(name, ".data: is null"));
  *bytes = product;
  return absl::OkStatus();
}

void ToProto(const Sequence& sequence, v1::SequenceHandle* out) {
  out->set_index(sequence.index);
  out->set_id(sequence.id);
  out->set_generation(sequence.generation);
}

absl::Status TensorToProto(absl::string_view name, const ConstTensor& tensor, v1::Tensor* out) {
  return ToProto(name, tensor, out);
}

absl::Status ToProto(const AppendItem& item, v1::AppendItem* out, TensorViews* apart) {
  ToProto(item.sequence, out->mutable_handle());
  out->set_layer(item.layer);
  out->set_position(item.position);
  absl::Status status = ToProto("keys", item.keys, out->mutable_keys(), apart);
  if (IsAbsent(item.values)) {
    out->clear_values();
  } else {
    status.Update(ToProto("values", item.values, out->mutable_values(), apart));
  }
  if (IsAbsent(item.queries)) {
    out->clear_queries();
  } else {
    status.Update(ToProto("queries", item.queries, out->mutable_queries(), apart));
  }
  out->set_report(static_cast<v1::RetainedReport>(item.report));
  return status;
}

absl::Status ToProto(const RetrieveItem& item, v1::RetrieveItem* out, TensorViews* apart) {
  ToProto(item.sequence, out->mutable_handle());
  out->set_layer(item.layer);
  if (item.dense_from) {
    out->set_dense_from(*item.dense_from);
  } else {
    out->clear_dense_from();
  }
  if (item.output || item.log_sum_exp) {
    return absl::InvalidArgumentError("output: in a device's memory, which a server does not write");
  }
  absl::Status status = ToProto("queries", item.queries, out->mutable_queries(), apart);
  if (IsAbsent(item.positions)) {
    out->clear_positions();
  } else {
    status.Update(ToProto("positions", item.positions, out->mutable_positions(), apart));
  }
  return status;
}

absl::Status ToProto(const DecodeStep& step, v1::DecodeRequest* out, TensorViews* apart) {
  if (apart != nullptr) apart->clear();
  out->set_step(step.step);
  int i = 0;
  for (const AppendItem& item : step.appends) {
    absl::Status status = ToProto(item, ElementAt(out->mutable_appends(), i++), apart);
    if (!status.ok()) return status;
  }
  ShrinkTo(out->mutable_appends(), i);
  i = 0;
  for (const RetrieveItem& item : step.items) {
    absl::Status status = ToProto(item, ElementAt(out->mutable_items(), i++), apart);
    if (!status.ok()) return status;
  }
  ShrinkTo(out->mutable_items(), i);
  if (step.attention) {
    *out->mutable_attention() = *step.attention;
  } else {
    out->clear_attention();
  }
  *out->mutable_selector() = step.selector;
  return absl::OkStatus();
}

Sequence FromProto(const v1::SequenceHandle& handle) { return {handle.index(), handle.id(), handle.generation()}; }

SequenceInfo FromProto(const v1::SequenceInfo& info) {
  return {FromProto(info.handle()),
          {info.layer_tokens().begin(), info.layer_tokens().end()},
          info.code_bytes(),
          info.store_bytes(),
          info.on_disk()};
}

absl::Status ReadFloats(absl::string_view name, const v1::Tensor& tensor, int64_t expected, std::vector<float>* out) {
  return ReadElements(name, tensor, v1::D_TYPE_FLOAT32, expected, out);
}

absl::Status FromProto(const v1::RetrieveAnswer& answer, Answer* out) {
  out->status = FromProto(answer.status());
  out->path = static_cast<SearchMode>(answer.path());
  out->num_tokens = answer.num_tokens();
  out->zone_begin = answer.zone_begin();
  out->zone_end = answer.zone_end();
  out->all_returned = answer.all_returned();
  out->codes_stale = answer.codes_stale();
  out->capped = answer.capped();
  out->num_sets = out->width = 0;
  out->positions.clear();
  out->counts.clear();
  out->scores.clear();
  out->masses.clear();
  out->dense_positions.resize(answer.dense_positions_size());
  for (int h = 0; h < answer.dense_positions_size(); ++h) {
    absl::Status status = ReadVector(answer.dense_positions(h), &out->dense_positions[h]);
    if (!status.ok()) return status;
  }
  const v1::Tensor& positions = answer.positions();
  if (!answer.has_positions() || positions.shape_size() == 0) return absl::OkStatus();

  constexpr int64_t kMost = int64_t{1} << 31;
  if (positions.shape_size() != 2 || positions.shape(0) < 0 || positions.shape(0) >= kMost || positions.shape(1) < 0 ||
      positions.shape(1) >= kMost) {
    return absl::InternalError("the server's answer is malformed: positions must have the shape [sets, top_k]");
  }
  out->num_sets = static_cast<int>(positions.shape(0));
  out->width = static_cast<int>(positions.shape(1));
  const int64_t elements = positions.shape(0) * positions.shape(1);
  absl::Status status = ReadElements("positions", positions, v1::D_TYPE_INT32, elements, &out->positions);
  status.Update(ReadElements("counts", answer.counts(), v1::D_TYPE_INT32, out->num_sets, &out->counts));
  if (answer.has_scores() && answer.scores().shape_size() > 0) {
    status.Update(ReadElements("scores", answer.scores(), v1::D_TYPE_FLOAT32, elements, &out->scores));
  }
  if (answer.has_masses()) {
    status.Update(ReadElements("masses", answer.masses(), v1::D_TYPE_FLOAT32, out->num_sets, &out->masses));
  }
  status.Update(CheckCounts(*out));
  return status;
}

absl::Status FromProto(const v1::DecodeResponse& response, DecodeAnswer* out) {
  out->step = response.step();
  out->server_us = response.server_us();
  out->status = FromProto(response.status());
  out->append_status.clear();
  for (const v1::Status& status : response.append_status()) out->append_status.push_back(FromProto(status));
  out->retained.resize(response.retained_size());
  for (int i = 0; i < response.retained_size(); ++i) {
    absl::Status status = FromProto(response.retained(i), &out->retained[i]);
    if (!status.ok()) return status;
  }
  out->answers.resize(response.answers_size());
  for (int i = 0; i < response.answers_size(); ++i) {
    absl::Status status = FromProto(response.answers(i), &out->answers[i]);
    if (!status.ok()) return status;
  }
  out->attended.resize(response.attended_size());
  for (int i = 0; i < response.attended_size(); ++i) {
    absl::Status status = FromProto(response.attended(i), &out->attended[i]);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status FromProto(const v1::GatherResponse& response, int64_t count, Gathered* out) {
  out->count = count;
  for (const auto& [tensor, bytes] :
       {std::make_pair(&response.keys(), &out->keys), std::make_pair(&response.values(), &out->values)}) {
    if (tensor->shape_size() == 0) continue;
    out->dtype = static_cast<DType>(tensor->dtype());
    if (tensor->shape_size() != 2 || tensor->shape(0) != count || tensor->shape(1) < 0 ||
        tensor->shape(1) > (1 << 20) ||
        tensor->raw().size() != static_cast<size_t>(count * tensor->shape(1)) * SizeOf(out->dtype)) {
      return absl::InternalError(
          "the server's answer is malformed: gathered rows must have the shape [count, head_dim]");
    }
    out->head_dim = static_cast<int>(tensor->shape(1));
    *bytes = tensor->raw();
  }
  return absl::OkStatus();
}

}  // namespace seine::client
