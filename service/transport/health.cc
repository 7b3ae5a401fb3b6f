#include "service/transport/health.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/stop.h"
#include "service/fields/error.h"
#include "service/transport/rpc.h"
#include "service/transport/rpc_methods.h"
#include "service/under_way/calls_under_way.h"
#include "service/under_way/open_calls.h"

namespace seine {
namespace {

enum HealthStatus : char { kServing = 1, kNotServing = 2, kUnknownService = 3 };

grpc::ByteBuffer Say(HealthStatus status) {
  const char bytes[] = {'\x08', status};
  const grpc::Slice slice(bytes, sizeof(bytes));
  return grpc::ByteBuffer(&slice, 1);
}

// False: the bytes are no HealthCheckRequest.
bool ReadName(const grpc::ByteBuffer& request, std::string* name) {
  grpc::Slice bytes;
  if (request.Length() > 1024) return false;
  if (request.Length() > 0 && !request.DumpToSingleSlice(&bytes).ok()) return false;
  const std::string text(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
  if (text.empty()) return true;
  const bool named = text.size() >= 2 && text.size() < 130 && text[0] == '\x0a' &&
                     static_cast<size_t>(static_cast<unsigned char>(text[1])) == text.size() - 2;
  if (named) *name = text.substr(2);
  return named;
}

absl::Status TooManyWatches() {
  return Overloaded(
      "WATCH_LIMIT",
      absl::StrCat("this connection has ", Health::kMostWatches, " watches of health open; end one first"),
      absl::ZeroDuration());
}

bool IsKnown(const std::string& name) {
  const auto& names = ServiceNames();
  return name.empty() || std::any_of(names.begin(), names.end(), [&](const char* known) { return name == known; });
}

}  // namespace

// A Check, or a Watch, which stays and writes once more whenever the status has changed.
class HealthCall final : public OpenCall {
 public:
  HealthCall(Health& health, bool watch) : alive_(health.alive_), health_(health), watch_(watch) {
    context_.AsyncNotifyWhenDone(done_.tag());
    health.service_.Request(watch ? health.watch_ : health.check_, &context_, &wire_, health.queue_, &accepted_);
  }
  void Drain() override {}  // Update ends it
  void Stop(StopReason) override {}
  void CutUnread(SteadyTime before) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (writing_ && written_ < before) context_.TryCancel();
  }
  void CutUnsent(SteadyTime) override {}
  const char* method() const override { return watch_ ? "Watch" : "Check"; }
  void Update() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!known_ || finishing_) return;
    const bool told = !writing_ && said_ == Serving();  // a status is told once
    if (told && health_.core_.under_way.closed()) Finish(ToGrpc(ShuttingDown()));
    if (!told) WriteStatus();
  }

 private:
  bool OnAccepted(bool ok, ThreadRole) {
    if (!ok) {
      delete this;
      return false;
    }
    watch_ ? health_.OfferWatch() : health_.OfferCheck();
    peer_ = context_.peer();
    const bool listed = health_.core_.open_calls.Add(this);
    const bool counted = watch_ && health_.Enter(peer_);
    std::unique_lock<std::mutex> lock(mutex_);
    --pending_;
    listed_ = listed;
    counted_ = counted;
    watch_ && !counted ? Finish(ToGrpc(TooManyWatches())) : Read();
    return Leave(&lock);
  }
  bool OnRead(bool ok, ThreadRole) {
    std::string name;
    const bool legal = ok && ReadName(request_, &name);
    const bool known = legal && IsKnown(name);
    if (watch_ && known) {
      const std::lock_guard<std::mutex> lock(health_.mutex_);
      health_.watchers_.insert(this);
    }
    std::unique_lock<std::mutex> lock(mutex_);
    --pending_;
    known_ = known;
    whole_server_ = name.empty();
    (ok ? received_ : ended_) = true;
    if (!legal) {
      Finish({grpc::StatusCode::INVALID_ARGUMENT, "service: not a name"});
    } else if (watch_) {
      WriteStatus();
    } else if (!known) {
      Finish({grpc::StatusCode::NOT_FOUND, "service name unknown"});
    } else {
      finishing_ = true;
      ++pending_;
      wire_.WriteAndFinish(Say(Serving() ? kServing : kNotServing), grpc::WriteOptions(), grpc::Status::OK,
                           finished_.tag());
    }
    return Leave(&lock);
  }
  bool OnDone(bool, ThreadRole) {
    std::unique_lock<std::mutex> lock(mutex_);
    --pending_;
    cancelled_ = context_.IsCancelled();
    if (cancelled_) Finish({grpc::StatusCode::CANCELLED, "the client is gone"});
    return Leave(&lock);
  }
  bool OnWritten(bool ok, ThreadRole) {
    std::unique_lock<std::mutex> lock(mutex_);
    --pending_;
    writing_ = false;
    if (!ok) {
      Finish({grpc::StatusCode::CANCELLED, "the client is gone"});
    } else if (known_ && said_ != Serving()) {
      WriteStatus();
    } else if (health_.core_.under_way.closed()) {
      Finish(ToGrpc(ShuttingDown()));
    }
    return Leave(&lock);
  }
  bool OnFinished(bool, ThreadRole) {
    std::unique_lock<std::mutex> lock(mutex_);
    --pending_;
    return Leave(&lock);
  }
  // The methods below need mutex_.
  void Read() {
    ++pending_;
    wire_.Read(&request_, read_.tag());
  }
  bool Serving() const { return health_.serving(whole_server_); }
  void WriteStatus() {
    if (std::exchange(writing_, true)) return;  // its end looks again
    said_ = Serving();
    written_ = std::chrono::steady_clock::now();
    ++pending_;
    wire_.Write(Say(!known_ ? kUnknownService : said_ ? kServing : kNotServing), write_.tag());
  }
  void Finish(const grpc::Status& status) {
    if (std::exchange(finishing_, true)) return;
    ++pending_;
    wire_.Finish(status, finished_.tag());
  }
  bool Leave(std::unique_lock<std::mutex>* lock) {
    const bool gone = pending_ == 0;
    lock->unlock();
    if (!gone) return false;
    CountEnd(health_.core_, peer_, EndOf(/*reset=*/(cancelled_ || ended_) && !received_, context_.raw_deadline()));
    {
      const std::lock_guard<std::mutex> watchers(health_.mutex_);
      health_.watchers_.erase(this);
    }
    if (counted_) health_.Left(peer_);
    if (listed_) health_.core_.open_calls.Remove(this);
    delete this;
    return false;
  }

  const AliveCount::One alive_;
  Health& health_;
  const bool watch_;
  bool listed_ = false, counted_ = false;  // in open_calls; in the connection's watches
  grpc::ServerContext context_;
  Wire wire_{&context_};
  grpc::ByteBuffer request_;
  std::string peer_;  // once accepted, as gRPC names it
  std::mutex mutex_;  // guards what follows
  int pending_ = 2;   // operations under way: accepted_ and done_, which may come in any order
  bool whole_server_ = false;
  bool known_ = false, writing_ = false, finishing_ = false, said_ = false, cancelled_ = false;
  bool received_ = false, ended_ = false;  // a name; what the client sends
  SteadyTime written_;
  EventOf<HealthCall> accepted_{this, &HealthCall::OnAccepted}, read_{this, &HealthCall::OnRead};
  EventOf<HealthCall> write_{this, &HealthCall::OnWritten}, done_{this, &HealthCall::OnDone};
  EventOf<HealthCall> finished_{this, &HealthCall::OnFinished};
};

Health::Health(Core& core, AliveCount& alive)
    : core_(core),
      alive_(alive),
      service_("grpc.health.v1.Health"),
      check_(service_.Add("Check")),
      watch_(service_.Add("Watch")) {}

void Health::Start(grpc::ServerCompletionQueue* queue) {
  queue_ = queue;
  OfferCheck();
  OfferWatch();
}

void Health::OfferCheck() { new HealthCall(*this, /*watch=*/false); }  // they delete themselves
void Health::OfferWatch() { new HealthCall(*this, /*watch=*/true); }

void Health::TellWatchers() {
  for (HealthCall* call : watchers_) call->Update();
}

bool Health::Enter(const std::string& peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  int& open = watches_[peer];
  if (open >= kMostWatches) return false;
  ++open;
  return true;
}

void Health::Left(const std::string& peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = watches_.find(peer);
  if (--found->second == 0) watches_.erase(found);
}

void Health::Set(bool serving) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (retired_) return;
  serving_ = serving;
  TellWatchers();
}

void Health::Retire() {
  const std::lock_guard<std::mutex> lock(mutex_);
  retired_ = true;
  // A server that takes no calls any more tells once again: it ends the watches.
  if (serving_.exchange(false) || core_.under_way.closed()) TellWatchers();
}

}  // namespace seine
