// Eviction's values between the client and the wire. Internal to client/, as convert.h.
#ifndef SEINE_CLIENT_CONVERT_EVICTION_H_
#define SEINE_CLIENT_CONVERT_EVICTION_H_

#include <vector>

#include "absl/status/status.h"
#include "client/types.h"
#include "seine/v1/eviction.pb.h"
#include "seine/v1/eviction_service.pb.h"
#include "seine/v1/retrieval_service.pb.h"

namespace seine::client {

absl::Status ToProto(const ScorerInputs& given, v1::ScorerInputs* out);

// Answers are checked before they are believed: INTERNAL where shapes and bytes disagree.
absl::Status ReadVector(const v1::Tensor& tensor, std::vector<int32_t>* out);
absl::Status ReadVector(const v1::Tensor& tensor, std::vector<float>* out);
absl::Status FromProto(const v1::Retained& retained, Retained* out);
absl::Status FromProto(const v1::AppendStreamResponse& response, AppendTotals* out);
absl::Status FromProto(const v1::EvictResponse& response, Evicted* out);
absl::Status FromProto(const v1::ScoreResponse& response, std::vector<HeadScores>* out);
absl::Status FromProto(const v1::DiagnoseResponse& response, std::vector<HeadDiagnosis>* out);

}  // namespace seine::client

#endif  // SEINE_CLIENT_CONVERT_EVICTION_H_
