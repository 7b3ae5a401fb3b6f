#include "service/transport/unknown_calls.h"

#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "service/transport/event.h"
#include "service/transport/rpc.h"
#include "service/under_way/open_calls.h"

namespace seine {
namespace {

grpc::Status Unknown(const std::string& method) {
  constexpr size_t kMostShown = 200;
  return ToGrpc(absl::UnimplementedError(absl::StrCat("this server has no method ", method.substr(0, kMostShown))));
}

}  // namespace

// One call: accept -> answer.
class UnknownCall {
 public:
  explicit UnknownCall(UnknownCalls& calls) : alive_(calls.alive_), calls_(calls) {
    context_.AsyncNotifyWhenDone(done_.tag());
    calls.service_.RequestCall(&context_, &wire_, calls.queue_, calls.queue_, accepted_.tag());
  }

 private:
  bool OnAccepted(bool ok, ThreadRole) {
    if (!ok) {  // the server ends; nothing else comes
      delete this;
      return false;
    }
    calls_.Offer();
    const std::lock_guard<std::mutex> lock(mutex_);  // its end waits until Finish has returned
    CountEnd(calls_.core_, context_.peer(), EndOf(/*reset=*/true, context_.raw_deadline()));
    wire_.Finish(Unknown(context_.method()), finished_.tag());  // in place of accepted_
    return false;
  }
  bool OnEnded(bool, ThreadRole) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (--pending_ > 0) return false;
    lock.unlock();
    delete this;
    return false;
  }

  const AliveCount::One alive_;
  UnknownCalls& calls_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter wire_{&context_};
  std::mutex mutex_;  // guards what follows
  int pending_ = 2;   // finished_ and done_, which may come in any order
  EventOf<UnknownCall> accepted_{this, &UnknownCall::OnAccepted}, finished_{this, &UnknownCall::OnEnded};
  EventOf<UnknownCall> done_{this, &UnknownCall::OnEnded};
};

void UnknownCalls::Start(grpc::ServerCompletionQueue* queue) {
  queue_ = queue;
  Offer();
}

void UnknownCalls::Offer() { new UnknownCall(*this); }  // it deletes itself

}  // namespace seine
