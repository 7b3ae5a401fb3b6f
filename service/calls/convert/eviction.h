// Eviction's settings and answers between the wire and the index. Errors name the field, as in convert.h.
#ifndef SEINE_SERVICE_CALLS_CONVERT_EVICTION_H_
#define SEINE_SERVICE_CALLS_CONVERT_EVICTION_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "index/index.h"
#include "seine/v1/eviction.pb.h"
#include "seine/v1/eviction_service.pb.h"
#include "seine/v1/retrieval_service.pb.h"
#include "service/profiles.h"

namespace seine {

// Absent fields take the defaults; the index judges the values. `field`: the message's own path.
absl::Status ScorerFrom(const v1::ScorerSettings& wire, const std::string& field, ScorerConfig* scorer);
absl::Status BudgetFrom(const v1::Budget& wire, const std::string& field, BudgetConfig* budget);
absl::Status KeepFrom(const v1::Keep& wire, const std::string& field, KeepConfig* keep);
// Reads the profile or the filters that the settings name: besides, NOT_FOUND and FAILED_PRECONDITION.
absl::Status EvictionFrom(const v1::EvictionSettings& wire, const std::string& field, const Geometry& geometry,
                          Profiles* profiles, EvictionConfig* eviction);
void ToProto(const EvictionConfig& eviction, const Geometry& geometry, v1::EvictionSettings* out);

// What ScorerInputs point to where it is not used in place.
struct ScorerInputsStorage {
  std::vector<float> queries, filters, output_projection;
  std::vector<std::vector<float>> scores;
};
// `wire` and `storage` must outlive `given`.
absl::Status ScorerInputsFrom(const v1::ScorerInputs& wire, const Geometry& geometry, ScorerInputsStorage* storage,
                              ScorerInputs* given);

// One-dimensional tensors.
void SetVector(const std::vector<int32_t>& values, v1::Tensor* tensor);
void SetVector(const std::vector<float>& values, v1::Tensor* tensor);

void ToProto(const HeadDiagnosis& head, int scorers, v1::HeadDiagnosis* out);

// Reports of retained positions. Where there is no memory for one, it has no counts.
absl::Status ReportFrom(v1::RetainedReport wire, const std::string& field, RetainedReport* report);
void ToProto(const Retained& retained, v1::Retained* out);  // which is empty
// Adds the report on a piece of an AppendStream, `item`, to the last one, which it may continue.
void AddPiece(const v1::AppendItem& item, v1::Retained piece, v1::AppendStreamResponse* totals);

}  // namespace seine

#endif  // SEINE_SERVICE_CALLS_CONVERT_EVICTION_H_
