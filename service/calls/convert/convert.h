// Between the wire's messages and the index's plain values. Absent fields take the index's defaults; unknown enum
// values and settings outside the wire's contract are INVALID_ARGUMENT naming the field.
#ifndef SEINE_SERVICE_CALLS_CONVERT_CONVERT_H_
#define SEINE_SERVICE_CALLS_CONVERT_CONVERT_H_

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "index/index.h"
#include "seine/v1/admin_service.pb.h"
#include "seine/v1/index_service.pb.h"
#include "seine/v1/retrieval_service.pb.h"
#include "seine/v1/sequence_service.pb.h"
#include "service/calls/convert/step.h"
#include "service/fields/error.h"
#include "service/profiles.h"

namespace seine {

v1::DType ToProto(DType dtype);

// `prefix` stands before every field's path in errors, e.g. "spec". Reads the profile that the spec names; besides
// INVALID_ARGUMENT, NOT_FOUND and FAILED_PRECONDITION naming codec.profile. Whoever makes the index checks the rest:
// Explain(error, prefix).
absl::StatusOr<IndexConfig> ConfigFrom(const v1::IndexSpec& spec, absl::string_view prefix, Profiles* profiles);
void ToProto(const IndexConfig& config, v1::IndexSpec* spec);  // every field given

// The index's defaults with the selector's settings over them. Errors are of what the wire alone refuses: the index
// checks the rest.
absl::StatusOr<SearchParams> ParamsFrom(const v1::Selector& selector, const IndexConfig& config);
AttentionParams AttentionFrom(const v1::Attention& attention);

// The message has every field overwritten; buffers that it holds are used again.
// Type and shape; the bytes are set by the caller.
void SetTensor(v1::DType dtype, std::initializer_list<int64_t> shape, v1::Tensor* tensor);
void ToProto(const Index& index, v1::IndexInfo* info);
void ToProto(const SequenceInfo& sequence, const std::string& index_name, v1::SequenceInfo* info);
void ToProto(const HeadInfo& head, v1::DescribeHeadResponse* out);
void ToProto(const Profile& profile, v1::MeasureProfileResponse* out);  // its one layer
void ToProto(const ItemAnswer& answer, const AnswerShape& shape, v1::RetrieveAnswer* out);
void ToProto(const AttendAnswer& answer, const AnswerShape& shape, v1::AttendAnswer* out);

}  // namespace seine

#endif  // SEINE_SERVICE_CALLS_CONVERT_CONVERT_H_
