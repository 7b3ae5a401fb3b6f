// Subspaces' values between the client and the wire. Internal to client/, as convert.h.
#ifndef SEINE_CLIENT_CONVERT_SUBSPACE_H_
#define SEINE_CLIENT_CONVERT_SUBSPACE_H_

#include "absl/status/status.h"
#include "client/types.h"
#include "seine/v1/subspace.pb.h"
#include "seine/v1/subspace_service.pb.h"

namespace seine::client {

SubspaceMetrics FromProto(const v1::SubspaceMetrics& in);

// INVALID_ARGUMENT where the numbers are not those of the shape.
absl::Status ToProto(const LayerBases& bases, v1::LayerBases* out);
// Answers are checked before they are believed: INTERNAL where shapes and bytes disagree.
absl::Status FromProto(const v1::LayerBases& in, v1::KeyFrame frame, LayerBases* out);

}  // namespace seine::client

#endif  // SEINE_CLIENT_CONVERT_SUBSPACE_H_
