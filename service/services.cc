#include "service/services.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "index/idle/idle_tier.h"
#include "index/memory/memory_budget.h"
#include "kernels/thread_name.h"
#include "service/event_log.h"
#include "service/process/fallen_peak.h"
#include "service/process/resident.h"
#include "service/scheduling/sharing.h"
#include "service/snapshots/files/snapshot_bases.h"
#include "service/transport/rpc_methods.h"
#include "service/transport/sockets/connections.h"
#include "service/under_way/in_flight.h"
#include "service/under_way/open_calls.h"

namespace seine {
namespace {

constexpr int kDecodeLanes = 8;   // streams that may work at once; a lane without one costs a sleeping thread
constexpr int kFrontThreads = 2;  // one may be descheduled
constexpr auto kMonitorPeriod = std::chrono::milliseconds(20);  // messages come at some 2 GB/s
constexpr int kSlowRounds = 25;                                 // of them to one look at what changes slowly
constexpr auto kMessageTime = std::chrono::milliseconds(200);   // to come whole, where memory is short
// Periods from one look that may trim to the next. It holds the allocator for milliseconds, and steps wait for it.
constexpr int kTrimRounds = 5, kTrimRoundsBesideOthers = 50;
// A memory limit below it leaves no tenth that code and threads fit in. A sanitizer's own memory never does.
#ifdef __SANITIZE_ADDRESS__
constexpr int64_t kSmallServer = int64_t{1} << 50;
#else
constexpr int64_t kSmallServer = 512 << 20;
#endif
constexpr int64_t kWorthTrimming = 16 << 20;  // of messages that have gone

}  // namespace

Services::Services(Core& core, bool polling)
    : core_(core),
      polling_(polling),
      calls_(core, alive_),
      health_(core, alive_),
      reflection_(core, alive_),
      unknown_(core, alive_),
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
  reflection_.Register(builder);
  builder->RegisterAsyncGenericService(unknown_.service());
  if (!polling_) queue_ = builder->AddCompletionQueue();
  // There is no quota of memory: gRPC 1.51 makes room by resetting streams, whosever they are. Monitor chooses better.
}

void Services::Start() {
  lanes_.Start();
  grpc::ServerCompletionQueue* const queue = polling_ ? lanes_.queue(0) : queue_.get();
  calls_.Start(queue);
  health_.Start(queue);
  reflection_.Start(queue);
  unknown_.Start(queue);
  if (!polling_) {
    for (int i = 0; i < kFrontThreads; ++i) threads_.emplace_back([this] { Work(); });
  }
  monitor_ = std::thread([this] { Monitor(); });
}

void Services::Drain() {
  health_.Retire();
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
  NameThread("front");
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) static_cast<Event*>(tag)->OnEvent(ok, ThreadRole::kFront);
}

// Returns the bytes that the process may hold now. They are fewer than it may hold at most.
int64_t Services::AllowedBytes() const {
  const int64_t stored = core_.budget->used_bytes(), limit = core_.options.memory_limit_bytes;
  const int64_t now = stored + stored / 16 + core_.base_bytes + core_.in_flight.limit_bytes() * 3 / 2;
  return limit == 0 ? now : std::min(now, limit + limit / 10 + core_.ConstantBytes() - core_.UnnoticedBytes());
}

// Holds the process to its limit and a tenth. What it holds beyond what is counted, and a share for code, threads and
// parts of messages, counts in the limit as well: less may be stored then. Small servers get a fixed share.
void Services::CountUncounted(bool may_trim) {
  const MemoryBudget& budget = *core_.budget;
  const int64_t limit = budget.limit_bytes();
  if (limit == 0) return;
  const int64_t tenth = limit / 10 - limit / 32;  // the rest is for what comes between two looks
  const int64_t share = limit >= kSmallServer ? tenth - budget.passing_room() : core_.base_bytes.load();
  const auto uncounted = [&] {
    return std::max<int64_t>(0, ResidentBytes() - budget.used_bytes() - budget.passing_bytes() - share);
  };
  int64_t bytes = uncounted();
  const bool nearly_full = budget.used_bytes() + budget.passing_bytes() + bytes > limit - limit / 8;
  if (bytes > 0 && nearly_full && may_trim) {
    malloc_trim(0);  // freed, but kept by the allocator
    bytes = uncounted();
  }
  core_.budget->SetUncounted(bytes);
  if (core_.idle != nullptr && budget.IsTight()) core_.idle->MakeRoomSoon(budget);
}

// Bytes that are on their way into messages are gRPC's and uncounted: what the process holds tells of them.
void Services::GuardMemory() {
  const int64_t allowed = AllowedBytes();
  if (ResidentBytes() <= allowed) {
    core_.memory_short.store(false, std::memory_order_relaxed);
    return;
  }
  malloc_trim(0);  // freed, but kept by the allocator
  const bool is_short = ResidentBytes() > allowed;
  core_.memory_short.store(is_short, std::memory_order_relaxed);
  if (is_short) core_.open_calls.CutUnsent(std::chrono::steady_clock::now() - kMessageTime);
}

void Services::Monitor() {
  NameThread("monitor");
  FallenPeak under_way(kWorthTrimming);
  std::unique_lock<std::mutex> lock(mutex_);
  for (int round = 0; !ended_.wait_for(lock, kMonitorPeriod, [this] { return stopped_; }); ++round) {
    lock.unlock();
    if (core_.options.guard_memory) {
      CountUncounted(/*may_trim=*/round % (core_.sharing.several() ? kTrimRoundsBesideOthers : kTrimRounds) == 0);
      GuardMemory();
    }
    if (round % kSlowRounds == 0) {
      core_.bases.DropEnded();
      core_.open_calls.CutUnread(std::chrono::steady_clock::now() - core_.options.unread_for);
      for (int cut = core_.connections.CutUnread(core_.options.unread_for); cut > 0; --cut) {
        core_.log.CutOff("connection", core_.address);
      }
      health_.Set(!core_.StuckFor(core_.options.stuck_for) && !lanes_.StuckFor(core_.options.stuck_for));
      // The allocator keeps what large messages took, for more of them.
      if (under_way.Fell(core_.in_flight.TakePeak())) malloc_trim(0);
    }
    lock.lock();
  }
}

}  // namespace seine
