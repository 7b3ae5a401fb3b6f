// What every call of a server works on. It knows no gRPC: calls.h has the calls, server.h puts them on the wire.
#ifndef SEINE_SERVICE_CORE_H_
#define SEINE_SERVICE_CORE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "index/counts/counts.h"
#include "index/idle/idle_tier.h"
#include "index/memory/memory_budget.h"
#include "index/quality/monitor.h"
#include "kernels/backend.h"
#include "service/access/access.h"
#include "service/access/audit_log.h"
#include "service/access/tls_files.h"
#include "service/backends/counted_backend.h"
#include "service/call_counts.h"
#include "service/catalog.h"
#include "service/channel_offers.h"
#include "service/event_log.h"
#include "service/families/family_records.h"
#include "service/families/sequence_families.h"
#include "service/fields/error.h"
#include "service/in_flight.h"
#include "service/open_calls.h"
#include "service/profiles.h"
#include "service/scheduling/executor.h"
#include "service/scheduling/sharing.h"
#include "service/snapshots/files/exit_files.h"
#include "service/snapshots/files/snapshot_bases.h"
#include "service/snapshots/files/snapshot_folder.h"
#include "service/transport/sockets/connections.h"

namespace seine {

struct CoreOptions {
  std::string backend = "auto";  // kernels/backend.h, MakeBackend
  int threads = 0;               // of the backend; 0: one per core
  int workers = 4;               // heavy calls at once
  int queue_capacity = 256;
  int64_t memory_limit_bytes = 0;                 // 0: none
  int64_t device_memory_limit_bytes = 0;          // 0: none; of codes in a device's own memory
  int64_t max_message_bytes = int64_t{64} << 20;  // of a request or an answer
  int64_t in_flight_limit_bytes = 0;              // of requests and answers under way; 0: four of the largest
  int channels = 16;                              // same-host channels at once; 0: none are made
  std::chrono::microseconds channel_spin{150};    // a channel looks for the next step, before it sleeps
  std::chrono::milliseconds unread_for{10'000};   // an answer may be, until its client is cut off
  std::chrono::milliseconds stuck_for{10'000};    // all workers may be at one task, until health says so
  // The process is the server's alone, so that what it holds beyond ConstantBytes and what is stored is under way.
  bool guard_memory = false;
  bool count = true;           // what calls and stages take (metrics)
  QualityOptions quality;      // live quality; needs `count`
  double expected_recall = 0;  // what the operator expects of live quality, for monitors; 0: not stated
  std::shared_ptr<Profiles> profiles = std::make_shared<Profiles>();
};

// How many calls are under way, so that they are not too many; a server that ends takes no more. Thread-safe.
class CallsUnderWay {
 public:
  static constexpr int64_t kMost = 16'384;  // each costs some kilobytes before its first byte has come

  // A call begins. Not OK: it is to be refused, and Leave not called.
  [[nodiscard]] absl::Status Enter() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return absl::UnavailableError("the server is shutting down");
    if (count_ >= kMost) return Overloaded("TOO_MANY_CALLS", "too many calls are open", absl::Milliseconds(100));
    ++count_;
    return absl::OkStatus();
  }
  void Leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    --count_;
  }
  void Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  bool closed() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return closed_;
  }

 private:
  mutable std::mutex mutex_;
  int64_t count_ = 0;    // guarded by mutex_
  bool closed_ = false;  // guarded by mutex_
};

// 16 hexadecimal digits by chance.
inline std::string RandomName() {
  std::random_device chance;
  return absl::StrCat(absl::Hex(chance(), absl::kZeroPad8), absl::Hex(chance(), absl::kZeroPad8));
}

// Thread-safe, as its parts are. Members are destroyed from the last to the first: the executors end their calls first.
struct Core {
  Core(const CoreOptions& o, std::unique_ptr<Backend> chosen)
      : options(o),
        counts(o.count ? std::make_shared<Counts>() : nullptr),
        call_counts(o.count),
        backend(WithCounts(std::move(chosen), counts)),
        budget(std::make_shared<MemoryBudget>(o.memory_limit_bytes, o.device_memory_limit_bytes)),
        channels(o.channels),
        in_flight(o.in_flight_limit_bytes > 0 ? o.in_flight_limit_bytes : 4 * o.max_message_bytes, budget),
        catalog(backend.get(), budget, counts,
                o.quality.sample > 0 ? std::make_shared<QualityMonitor>(o.quality) : nullptr),
        executor(o.workers, o.queue_capacity, sharing, "calls"),
        long_calls(o.workers, o.queue_capacity, sharing, "long-calls", Priority::kLow) {}

  ~Core() {
    if (idle != nullptr) idle->Stop();  // its thread uses the log and the families
  }

  // Calls that wait for a thread, and those that were refused for want of a place.
  int QueuedCalls() const { return executor.waiting() + long_calls.waiting(); }
  int64_t RefusedCalls() const { return executor.refused() + long_calls.refused(); }
  bool StuckFor(std::chrono::milliseconds time) const { return executor.StuckFor(time) || long_calls.StuckFor(time); }

  // Parts of messages that may come before the next look at what the process holds.
  int64_t UnnoticedBytes() const { return 4 * options.max_message_bytes; }
  // What the process may hold besides the memory limit and a tenth: its own, what passes where the limit is full, and
  // parts of messages. Without a limit: besides what is stored; then all that is under way, in messages and around
  // them, comes on top.
  int64_t ConstantBytes() const {
    return base_bytes + (options.memory_limit_bytes > 0 ? MemoryBudget::kLeastPassing + UnnoticedBytes()
                                                        : 2 * in_flight.limit_bytes());
  }

  // Threads, gRPC, code, allocator, 1,000 connections; seined measures its own at start and leaves room for the rest.
  std::atomic<int64_t> base_bytes{int64_t{160} << 20};
  const CoreOptions options;
  const std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  const std::string instance = RandomName();  // of this process: after a restart another
  const std::shared_ptr<Counts> counts;       // nullptr: nothing is counted
  CallCounts call_counts;
  std::unique_ptr<Backend> backend;
  std::string address;                        // where the server listens; set before calls come
  std::string metrics_address;                // where HTTP is served, HOST:PORT; empty: nowhere. Set before calls come
  std::string why_cpu;                        // what backend "auto" lacked for another; set before calls come
  std::unique_ptr<Access> access;             // nullptr: calls need no credentials; set before calls come
  std::unique_ptr<AuditLog> audit;            // nullptr: there is none; set before calls come
  std::unique_ptr<SnapshotFolder> snapshots;  // nullptr: none are made; set before calls come
  std::unique_ptr<FamilyRecords> family_records;  // nullptr: none are kept; set before calls come
  SnapshotCounts snapshot_counts;
  ExitFiles exit_files;
  std::shared_ptr<IdleTier> idle;  // nullptr: sequences stay in memory; set before calls come
  std::shared_ptr<TlsFiles> tls;   // nullptr: there is none; set before calls come
  std::shared_ptr<MemoryBudget> budget;
  ChannelOffers channels;
  InFlight in_flight;
  Catalog catalog;
  SequenceFamilies families;
  SnapshotBases bases;                // of snapshots that others add to
  std::atomic<bool> draining{false};  // no new families are taken (SetDraining)
  Connections connections;
  CallsUnderWay under_way;
  OpenCalls open_calls;
  std::atomic<bool> memory_short{false};  // more is under way than may be: heavy calls are refused unread
  EventLog log;
  std::atomic<int64_t> calls{0};   // answered, a Decode step counting as one
  std::atomic<int64_t> errors{0};  // of them, with a status that is not OK
  Sharing sharing;
  // Heavy calls; those that are likely to be long (sharing.h), such as a tenant's prefill, make way for all others.
  Executor executor, long_calls;
};

}  // namespace seine

#endif  // SEINE_SERVICE_CORE_H_
