// One Decode stream: accept -> read -> (step, write) -> read ... -> finish. Steps run on the lane's thread, or on one
// for long steps; events come on any thread. It deletes itself when all that is under way has come back.
#ifndef SEINE_SERVICE_TRANSPORT_DECODE_STREAM_H_
#define SEINE_SERVICE_TRANSPORT_DECODE_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <optional>

#include "kernels/stop.h"
#include "seine/v1/retrieval_service.pb.h"
#include "service/access/caller.h"
#include "service/calls/decode_session.h"
#include "service/transport/decode_lanes.h"
#include "service/transport/wire_service.h"
#include "service/under_way/in_flight.h"
#include "service/under_way/open_calls.h"

namespace seine {

class DecodeStream final : public OpenCall {
 public:
  DecodeStream(DecodeLanes& lanes, DecodeLanes::Lane* lane);

  void Drain() override;
  void Stop(StopReason reason) override;
  void CutUnread(SteadyTime before) override;
  void CutUnsent(SteadyTime before) override;
  const char* method() const override { return "Decode"; }

  // While the announcement is on its way and the answer waits for it.
  bool AnswerWaits() const;
  const void* announced_tag() { return announced_.tag(); }

 private:
  bool OnAccepted(bool ok, ThreadRole role);
  bool OnRead(bool ok, ThreadRole role);
  bool OnAnnounced(bool ok, ThreadRole role);
  bool OnWritten(bool ok, ThreadRole role);
  bool OnFinished(bool ok, ThreadRole role);
  bool OnDone(bool ok, ThreadRole role);

  void HandOn(std::chrono::nanoseconds expected);  // the step, to another thread
  void RefuseStep();
  void Step(ThreadRole role);
  absl::Status TryStep();  // not OK: the stream ends
  void Announce();         // during a step
  void Read();             // this and those below need mutex_
  void Answer();
  void Finish(const absl::Status& status);
  void Leave(std::unique_lock<std::mutex>* lock);  // may be the end of the stream

  std::chrono::nanoseconds Expected() const;  // processor time of the step that has come

  // A step's message and answer are used again by the next: their buffers grow once, but no larger than this.
  static constexpr int64_t kKeptBytes = 1 << 20;

  DecodeLanes& lanes_;
  DecodeLanes::Lane* const lane_;
  Core& core_;
  AdmittedCaller caller_;  // once accepted; outlives the session
  DecodeSession session_;
  grpc::ServerContext context_;
  Wire wire_{&context_};
  std::optional<StopToken> token_;  // once accepted
  SteadyTime began_;
  std::string peer_;                                            // once accepted, as gRPC names it
  std::optional<std::chrono::nanoseconds> last_, before_last_;  // processor time of steps
  int64_t kept_ = 0;                                            // bytes that the message's buffers hold, about
  v1::DecodeRequest request_;
  v1::DecodeResponse response_;

  mutable std::mutex mutex_;  // guards what follows
  grpc::ByteBuffer read_bytes_, announcement_, answer_;
  InFlightShare request_share_;
  AnswerShare answer_share_;  // also outside mutex_, by the step under way
  int pending_ = 2;           // operations, and a step, under way: accepted_ and done_, which may come in any order
  bool listed_ = false;       // in open_calls
  bool taken_ = false, cancelled_ = false, entered_ = false, reading_ = false, announcing_ = false,
       answer_waits_ = false;
  bool draining_ = false, finishing_ = false;
  bool received_ = false, ended_ = false;                // a step; what the client sends
  SteadyTime read_since_, written_ = SteadyTime::max();  // when what is under way began
  EventOf<DecodeStream> accepted_{this, &DecodeStream::OnAccepted}, read_{this, &DecodeStream::OnRead};
  EventOf<DecodeStream> announced_{this, &DecodeStream::OnAnnounced}, write_{this, &DecodeStream::OnWritten};
  EventOf<DecodeStream> finished_{this, &DecodeStream::OnFinished}, done_{this, &DecodeStream::OnDone};
};

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_DECODE_STREAM_H_
