// Subspaces' settings, bases and measures between the wire and the index. Errors name the field, as in convert.h.
#ifndef SEINE_SERVICE_CALLS_CONVERT_SUBSPACE_H_
#define SEINE_SERVICE_CALLS_CONVERT_SUBSPACE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "index/index.h"
#include "index/subspace/calibrate.h"
#include "seine/v1/subspace.pb.h"
#include "seine/v1/subspace_service.pb.h"
#include "service/profiles.h"

namespace seine {

// Absent fields take the defaults; the index judges the values. Reads the profile that the settings name: besides,
// NOT_FOUND and FAILED_PRECONDITION.
absl::Status SubspaceFrom(const v1::SubspaceSettings& wire, const std::string& field, Profiles* profiles,
                          SubspaceConfig* subspace);
void ToProto(const SubspaceConfig& subspace, v1::SubspaceSettings* out);

// Tensors of `heads` bases [head_dim, any rank].
absl::StatusOr<LayerBases> BasesFrom(const v1::LayerBases& wire, const Geometry& geometry, const std::string& field);
void ToProto(const LayerBases& bases, v1::LayerBases* out);

v1::KeyFrame ToProto(KeyFrame frame);
void ToProto(const SubspaceInfo& info, v1::SubspaceMetrics* out);

}  // namespace seine

#endif  // SEINE_SERVICE_CALLS_CONVERT_SUBSPACE_H_
