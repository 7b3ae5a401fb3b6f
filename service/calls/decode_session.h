// One Decode stream's steps: appends in order, then the items.
#ifndef SEINE_SERVICE_CALLS_DECODE_SESSION_H_
#define SEINE_SERVICE_CALLS_DECODE_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "index/index.h"
#include "seine/v1/retrieval_service.pb.h"
#include "service/access/caller.h"
#include "service/calls/convert/step.h"
#include "service/calls/retriever.h"
#include "service/core.h"

namespace seine {

// Not thread-safe.
class DecodeSession {
 public:
  explicit DecodeSession(Core& core) : core_(core), retriever_(core) {}
  void SetPeer(std::string peer) { peer_ = std::move(peer); }  // for the log
  // Who has opened the stream, and outlives it; nullptr: the server asks for no credentials.
  void SetCaller(const Caller* caller) { caller_ = caller; }
  // Before a step. Not OK: the caller's credential was taken back, or its tenant's quota of steps is used up.
  absl::Status Admit() const;

  // announce() is called, once at most, on this thread, when the answer is near, where the request asks for it.
  void Step(const v1::DecodeRequest& request, v1::DecodeResponse* response, const std::function<void()>& announce);
  // The same without messages; not OK: the step was refused as a whole, and nothing was taken. server_us: time that it
  // took.
  absl::Status Step(const StepView& step, StepTaker* taker, int64_t* server_us);

 private:
  absl::Status Timed(const StepView& step, StepTaker* taker, const std::function<void()>& announce, int64_t* server_us);
  absl::Status TryStep(const StepView& step, StepTaker* taker, const ProgressCallback& progress);

  Core& core_;
  Retriever retriever_;
  std::string peer_;
  const Caller* caller_ = nullptr;
  std::shared_ptr<Index> stepped_;   // during a step that is counted: the first index that it names
  std::vector<AppendView> appends_;  // of a message, used again by the next
  std::vector<ItemView> items_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_CALLS_DECODE_SESSION_H_
