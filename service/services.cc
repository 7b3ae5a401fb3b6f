#include "service/services.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "service/rpc_methods.h"

namespace seine {
namespace {

constexpr int kDecodeLanes = 8;   // streams that may work at once; a lane without one costs a sleeping thread
constexpr int kFrontThreads = 2;  // one may be descheduled
constexpr int kReflectionThreads = 8;  // gRPC's own reflection is synchronous; beyond them it is refused
constexpr auto kMonitorPeriod = std::chrono::milliseconds(500);
constexpr auto kUnreadFor = std::chrono::seconds(10);  // an answer, until its client is cut off
constexpr auto kStuckFor = std::chrono::seconds(10);   // all workers, until health says so
constexpr int64_t kWorthTrimming = 64 << 20;

}  // namespace

Services::Services(Core& core, bool polling)
    : core_(core),
      polling_(polling),
      calls_(core, alive_),
      health_(core, alive_),
      lanes_(core, polling ? 1 : kDecodeLanes, polling ? DecodeLanes::Wait::kSpin : DecodeLanes::Wait::kLinger) {
  for (const char* name : ServiceNames()) wires_.push_back(std::make_unique<WireService>(name));
}

Services::~Services() { Stop(); }

void Services::Register(grpc::ServerBuilder* builder) {
  grpc::EnableDefaultHealthCheckService(false);
  for (const auto& wire : wires_) {
    calls_.Register(wire.get());
    if (strcmp(wire->full_name(), kDecodeService) == 0) lanes_.Register(builder, wire.get());
    builder->RegisterService(wire.get());
  }
  builder->RegisterService(health_.service());
  if (!polling_) queue_ = builder->AddCompletionQueue();
  builder->SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder->SetResourceQuota(grpc::ResourceQuota("seine")
                                .Resize(static_cast<size_t>(core_.in_flight.limit_bytes()))
                                .SetMaxThreads(kReflectionThreads));
}

void Services::Start() {
  lanes_.Start();
  grpc::ServerCompletionQueue* const queue = polling_ ? lanes_.queue(0) : queue_.get();
  calls_.Start(queue);
  health_.Start(queue);
  if (!polling_) {
    for (int i = 0; i < kFrontThreads; ++i) threads_.emplace_back([this] { Work(); });
  }
  monitor_ = std::thread([this] { Monitor(); });
}

void Services::Drain() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    draining_ = true;
  }
  health_.Set(false);
  core_.open_calls.Drain();
}

void Services::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(stopped_, true) || !monitor_.joinable()) return;
  }
  ended_.notify_all();
  monitor_.join();
  alive_.WaitUntilNone();  // a queue takes no operation once it is shut down
  if (queue_ != nullptr) queue_->Shutdown();
  for (std::thread& thread : threads_) thread.join();
  lanes_.Stop();
}

void Services::Work() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) static_cast<Event*>(tag)->Come(ok, Taker::kFront);
}

void Services::Monitor() {
  int64_t peak = 0;  // of bytes under way since memory was given back
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ended_.wait_for(lock, kMonitorPeriod, [this] { return stopped_; })) {
    const bool draining = draining_;
    lock.unlock();
    core_.open_calls.CutUnread(std::chrono::steady_clock::now() - kUnreadFor);
    if (!draining) health_.Set(!core_.executor.StuckFor(kStuckFor) && !lanes_.StuckFor(kStuckFor));
    // The allocator keeps what large messages took, for more of them.
    peak = std::max(peak, core_.in_flight.TakePeak());
    if (peak >= kWorthTrimming && core_.in_flight.used_bytes() < peak / 4) {
      malloc_trim(0);
      peak = 0;
    }
    lock.lock();
  }
}

}  // namespace seine
