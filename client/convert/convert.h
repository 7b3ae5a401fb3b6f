// Between the client's values (types.h) and wire messages. Internal to client/; knows protobuf but not gRPC.
// Messages on the hot path are reused: writers set every field and resize repeated ones, and never Clear, which would
// give back the strings that hold the tensors.
#ifndef SEINE_CLIENT_CONVERT_CONVERT_H_
#define SEINE_CLIENT_CONVERT_CONVERT_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/types.h"
#include "seine/v1/admin_service.pb.h"
#include "seine/v1/index_service.pb.h"
#include "seine/v1/retrieval_service.pb.h"
#include "seine/v1/sequence_service.pb.h"

namespace seine {
struct Profile;
}

namespace seine::client {

// An error of the server: `message`, opened with the field at fault, and the details that FieldOf, ReasonOf and
// RetryDelayOf read.
absl::Status MakeError(int code, absl::string_view message, const v1::Status& details);
absl::Status FromProto(const v1::Status& status);
// The error with what ReasonOf returns.
absl::Status WithReason(absl::Status error, absl::string_view reason);

// Bytes of `tensor`; INVALID_ARGUMENT "<name>: ..." for a negative dimension, a product that overflows, or no data.
absl::Status CheckShape(absl::string_view name, const ConstTensor& tensor, size_t* bytes);
// The same of one that a server is to have: none on a device.
absl::Status CheckTensor(absl::string_view name, const ConstTensor& tensor, size_t* bytes);
inline bool IsAbsent(const ConstTensor& tensor) { return tensor.data == nullptr && tensor.shape.empty(); }

void ToProto(const Sequence& sequence, v1::SequenceHandle* out);
// `name` opens the error.
absl::Status TensorToProto(absl::string_view name, const ConstTensor& tensor, v1::Tensor* out);
// `apart`: the tensors' bytes are appended to it, as views of the caller's memory, and left out of the message.
using TensorViews = std::vector<std::string_view>;
absl::Status ToProto(const AppendItem& item, v1::AppendItem* out, TensorViews* apart = nullptr);
absl::Status ToProto(const RetrieveItem& item, v1::RetrieveItem* out, TensorViews* apart = nullptr);
absl::Status ToProto(const DecodeStep& step, v1::DecodeRequest* out, TensorViews* apart = nullptr);

Sequence FromProto(const v1::SequenceHandle& handle);
SequenceInfo FromProto(const v1::SequenceInfo& info);
template <typename Response>  // of Snapshot or Restore
SnapshotResult SnapshotFrom(const Response& response) {
  SnapshotResult result{response.bytes(), {}, response.base()};
  for (const v1::SequenceInfo& info : response.sequences()) result.sequences.push_back(FromProto(info));
  return result;
}
absl::StatusOr<HeadInfo> FromProto(const v1::DescribeHeadResponse& info);
absl::StatusOr<Profile> FromProto(const v1::MeasureProfileResponse& measured);  // measured_profile.cc
// Elements of an fp32 tensor of which `expected` must have come.
absl::Status ReadFloats(absl::string_view name, const v1::Tensor& tensor, int64_t expected, std::vector<float>* out);

// Answers are checked before they are believed: INTERNAL where shapes and bytes disagree. Allocations of `out` are
// reused.
absl::Status FromProto(const v1::RetrieveAnswer& answer, Answer* out);
absl::Status FromProto(const v1::AttendAnswer& answer, Attended* out);  // attention.cc
absl::Status FromProto(const v1::DecodeResponse& response, DecodeAnswer* out);
absl::Status FromProto(const v1::GatherResponse& response, int64_t count, Gathered* out);

}  // namespace seine::client

#endif  // SEINE_CLIENT_CONVERT_CONVERT_H_
