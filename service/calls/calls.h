// Every call of the wire contract as a plain function: validate, do, convert. No gRPC here, so whoever lives in the
// same process can call them, and serving them is a list (rpc_methods.h).
//
// Thread safety: any number of calls at once. A call that does not return OK has changed nothing.
#ifndef SEINE_SERVICE_CALLS_CALLS_H_
#define SEINE_SERVICE_CALLS_CALLS_H_

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "index/index.h"
#include "seine/v1/admin_service.pb.h"
#include "seine/v1/eviction_service.pb.h"
#include "seine/v1/index_service.pb.h"
#include "seine/v1/retrieval_service.pb.h"
#include "seine/v1/sequence_service.pb.h"
#include "seine/v1/shared_memory_service.pb.h"
#include "seine/v1/subspace_service.pb.h"
#include "service/calls/call_list.h"
#include "service/calls/convert/step.h"
#include "service/core.h"
#include "service/families/sequence_families.h"

namespace seine {

// An index by name, or NOT_FOUND; a handle's index with the handle in the index's terms. FAILED_PRECONDITION, reason
// MOVED: another node serves the sequence.
absl::StatusOr<std::shared_ptr<Index>> FindIndex(Core& core, absl::string_view name, absl::string_view field);
absl::StatusOr<std::shared_ptr<Index>> ResolveHandle(Core& core, const HandleView& handle, absl::string_view field,
                                                     SequenceHandle* out);

// Before a call changes a family, that of the sequence `id`: the change lasts until *change is destroyed. UNAVAILABLE,
// reason MOVING; FAILED_PRECONDITION, reason MOVED (sequence_families.h).
absl::Status BeginChange(Core& core, absl::string_view index, absl::string_view id, SequenceFamilies::Change* change);

// Whether the index holds a sequence of the family. UNAVAILABLE, reason DRAINING: the server drains, and it does not.
bool HoldsFamily(const Index& index, absl::string_view family);
absl::Status CheckTakesFamily(const Core& core, const Index& index, absl::string_view family);

// Checks that the caller's tenant may have `count` sequences more, and locks out others of its calls that make some.
absl::Status CheckRoomForSequences(const Core& core, int64_t count, std::unique_lock<std::mutex>* making);

// INVALID_ARGUMENT where a request has more entries than a batch may.
absl::Status CheckBatch(int size, absl::string_view field);
// INVALID_ARGUMENT naming `field` where an answer of `count` parts of so many bytes would pass the message limit, and
// RESOURCE_EXHAUSTED where as much is under way already. Asked before it is made.
absl::Status CheckAnswer(const Core& core, int64_t count, int64_t bytes, absl::string_view field);

// Append without a message; returns the layer's length. Errors name fields inside `field`. `room`: bytes that a report
// may take; `retained` may be nullptr where none is asked for. `found`: the index, where it is given and not set.
absl::StatusOr<int64_t> AppendTokens(Core& core, const AppendView& append, const std::string& field, int64_t room,
                                     Retained* retained, std::shared_ptr<Index>* found = nullptr);

// The part of GetServerInfo that is read off memory: all but profiles and files that were passed over.
void DescribeServer(Core& core, v1::GetServerInfoResponse* response);

// Name(core, request, response) of every call.
#define SEINE_DECLARE_CALL(service, name, ...) \
  absl::Status name(Core& core, const v1::name##Request& request, v1::name##Response* response);
SEINE_FOR_EACH_CALL(SEINE_DECLARE_CALL)
#undef SEINE_DECLARE_CALL
// A message of an AppendStream, whose answer grows with each.
absl::Status AppendPiece(Core& core, const v1::AppendStreamRequest& request, v1::AppendStreamResponse* totals);

}  // namespace seine

#endif  // SEINE_SERVICE_CALLS_CALLS_H_
