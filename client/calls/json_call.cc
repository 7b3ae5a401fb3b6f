// A call of any method: every kind of call is a stream to gRPC's generic stub, of one message where it is unary.
#include <grpcpp/generic/generic_stub.h>

#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/channel/channel.h"

namespace seine::client {
namespace {

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& part : slices) bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  return bytes;
}

// gRPC's callbacks set what Write, Read and Finish wait for.
class GenericCall final : public JsonCall, private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  GenericCall(const std::shared_ptr<grpc::Channel>& channel, std::string endpoint, absl::Duration timeout,
              Method method)
      : method_(std::move(method)), endpoint_(std::move(endpoint)), timeout_(timeout), stub_(channel) {
    const bool unary = !method_.streams_requests && !method_.streams_responses;
    if (unary && timeout != absl::InfiniteDuration()) context_.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    stub_.PrepareBidiStreamingCall(&context_, absl::StrCat("/", method_.name), {}, this);
    AddHold();  // until End: what begins outside of a callback must find the call alive
    StartCall();
  }

  ~GenericCall() override {
    if (ended_) return;
    context_.TryCancel();
    End();
  }

  absl::Status Write(absl::string_view request) override {
    const absl::StatusOr<std::string> bytes = BytesOfJson(method_.request, request);
    if (!bytes.ok()) return bytes.status();
    out_ = BufferOf(*bytes);
    write_ = kUnderWay;
    StartWrite(&out_);
    if (Await(&write_)) return absl::OkStatus();
    return absl::UnavailableError("the call has ended");
  }

  void WritesDone() override {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(writes_done_, true)) return;
      changed_.notify_all();  // from now on an answer that does not come is waited for no longer than `timeout_`
    }
    StartWritesDone();
  }

  absl::StatusOr<std::optional<std::string>> Read() override {
    read_ = kUnderWay;
    StartRead(&in_);
    if (!Await(&read_)) return std::nullopt;
    absl::StatusOr<std::string> json = JsonOfBytes(method_.response, BytesOf(in_), !method_.streams_responses);
    if (json.ok()) return *std::move(json);
    context_.TryCancel();  // nobody reads on
    return json.status();
  }

  absl::Status Finish() override {
    if (!ended_) End();
    if (timed_out_) return FromGrpc({grpc::StatusCode::DEADLINE_EXCEEDED, ""}, endpoint_);
    return FromGrpc(status_, endpoint_);
  }

 private:
  enum State : uint8_t { kUnderWay, kSucceeded, kFailed };

  void OnWriteDone(bool ok) override { Set(&write_, ok); }
  void OnReadDone(bool ok) override { Set(&read_, ok); }
  void OnDone(const grpc::Status& status) override {
    const std::lock_guard lock(mutex_);
    status_ = status;
    done_ = kSucceeded;
    changed_.notify_all();
  }

  void Set(State* state, bool ok) {
    const std::lock_guard lock(mutex_);
    *state = ok ? kSucceeded : kFailed;
    changed_.notify_all();
  }

  // A read waits for as long as requests may follow; all else at most for `timeout_`, and then ends the call.
  bool Await(const State* state) {
    std::unique_lock lock(mutex_);
    const auto settled = [&] { return *state != kUnderWay; };
    if (state == &read_) changed_.wait(lock, [&] { return settled() || writes_done_; });
    if (timeout_ != absl::InfiniteDuration() &&
        !changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout_), settled)) {
      timed_out_ = true;
      context_.TryCancel();
    }
    changed_.wait(lock, settled);
    return *state == kSucceeded;
  }

  void End() {
    ended_ = true;
    RemoveHold();
    Await(&done_);
  }

  const Method method_;
  const std::string endpoint_;
  const absl::Duration timeout_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer out_, in_;
  bool ended_ = false;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  State write_ = kSucceeded, read_ = kSucceeded, done_ = kUnderWay;
  bool writes_done_ = false, timed_out_ = false;
  grpc::Status status_;
};

}  // namespace

std::unique_ptr<JsonCall> OpenJsonCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& endpoint,
                                       absl::Duration timeout, const Method& method) {
  return std::make_unique<GenericCall>(channel, endpoint, timeout, method);
}

}  // namespace seine::client
