// One step of a Decode stream, however it came: run under the stream's token, refused where it must be, and counted.
#ifndef SEINE_SERVICE_TRANSPORT_COUNTED_STEP_H_
#define SEINE_SERVICE_TRANSPORT_COUNTED_STEP_H_

#include <functional>
#include <new>

#include "kernels/stop.h"
#include "service/calls/decode_session.h"
#include "service/core.h"
#include "service/fields/error.h"

namespace seine {

// `refused`: not OK: the step is not run, and its answer says why. `parsed`: the request is this step's; else it is one
// that was not read, and the answer has no number.
inline void CountedStep(Core& core, DecodeSession& session, const StopToken& token, absl::Status refused, bool parsed,
                        const v1::DecodeRequest& request, v1::DecodeResponse* response,
                        const std::function<void()>& announce) {
  if (refused.ok()) refused = session.Admit();
  if (refused.ok()) {
    const StopScope scope(&token);
    try {
      session.Step(request, response, announce);
    } catch (const std::bad_alloc&) {
      refused = NoMemory();
    }
  }
  if (!refused.ok()) {
    response->Clear();
    response->set_step(parsed ? request.step() : 0);
    ToProto(refused, response->mutable_status());
  }
  core.calls.fetch_add(1, std::memory_order_relaxed);
  if (response->has_status()) core.errors.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_COUNTED_STEP_H_
