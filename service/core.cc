#include "service/core.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "index/counts/counts.h"
#include "index/idle/idle_tier.h"
#include "index/memory/memory_budget.h"
#include "index/quality/monitor.h"
#include "kernels/backend.h"
#include "kernels/priority.h"
#include "service/access/access.h"
#include "service/access/audit_log.h"
#include "service/access/tls_files.h"
#include "service/backends/counted_backend.h"
#include "service/catalog.h"
#include "service/channel_offers.h"
#include "service/event_log.h"
#include "service/families/family_records.h"
#include "service/families/sequence_families.h"
#include "service/fleet/fleet_watch.h"
#include "service/scheduling/executor.h"
#include "service/scheduling/sharing.h"
#include "service/snapshots/files/exit_files.h"
#include "service/snapshots/files/snapshot_bases.h"
#include "service/snapshots/files/snapshot_folder.h"
#include "service/transport/sockets/connections.h"
#include "service/under_way/call_counts.h"
#include "service/under_way/calls_under_way.h"
#include "service/under_way/in_flight.h"
#include "service/under_way/open_calls.h"

namespace seine {

namespace {

// 16 hexadecimal digits by chance.
std::string RandomName() {
  std::random_device chance;
  return absl::StrCat(absl::Hex(chance(), absl::kZeroPad8), absl::Hex(chance(), absl::kZeroPad8));
}

}  // namespace

// They go from the last to the first: the executors end their calls before what these work on.
struct Core::Parts {
  static std::shared_ptr<QualityMonitor> MakeMonitor(const QualityOptions& options, EventLog* log) {
    return std::make_shared<QualityMonitor>(
        options, [log](const IndexConfig& index, int layer, double lost) { log->SteppedBack(index, layer, lost); });
  }
  Parts(const CoreOptions& o, std::unique_ptr<Backend> chosen)
      : counts(o.count ? std::make_shared<Counts>() : nullptr),
        call_counts(o.count),
        backend(WithCounts(std::move(chosen), counts)),
        budget(std::make_shared<MemoryBudget>(o.memory_limit_bytes, o.device_memory_limit_bytes)),
        channels(o.channels),
        in_flight(o.in_flight_limit_bytes > 0 ? o.in_flight_limit_bytes : 4 * o.max_message_bytes, budget),
        catalog(backend.get(), budget, counts, MakeMonitor(o.quality, &log)),
        executor(o.workers, o.queue_capacity, sharing, "calls"),
        long_calls(o.workers, o.queue_capacity, sharing, "long-calls", Priority::kLow) {}

  const std::shared_ptr<Counts> counts;
  CallCounts call_counts;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Access> access;
  std::unique_ptr<AuditLog> audit;
  std::unique_ptr<SnapshotFolder> snapshots;
  std::unique_ptr<FamilyRecords> family_records;
  SnapshotCounts snapshot_counts;
  ExitFiles exit_files;
  std::shared_ptr<IdleTier> idle;
  std::shared_ptr<TlsFiles> tls;
  std::unique_ptr<FleetWatch> fleet;
  std::shared_ptr<MemoryBudget> budget;
  EventLog log;  // whom the catalog tells
  ChannelOffers channels;
  InFlight in_flight;
  Catalog catalog;
  SequenceFamilies families;
  SnapshotBases bases;
  Connections connections;
  CallsUnderWay under_way;
  OpenCalls open_calls;
  Sharing sharing;
  Executor executor;
  Executor long_calls;
};

Core::Core(const CoreOptions& o, std::unique_ptr<Backend> chosen)
    : options(o),
      instance(RandomName()),
      parts_(std::make_unique<Parts>(o, std::move(chosen))),
      counts(parts_->counts),
      call_counts(parts_->call_counts),
      backend(parts_->backend),
      access(parts_->access),
      audit(parts_->audit),
      snapshots(parts_->snapshots),
      family_records(parts_->family_records),
      snapshot_counts(parts_->snapshot_counts),
      exit_files(parts_->exit_files),
      idle(parts_->idle),
      tls(parts_->tls),
      fleet(parts_->fleet),
      budget(parts_->budget),
      channels(parts_->channels),
      in_flight(parts_->in_flight),
      catalog(parts_->catalog),
      families(parts_->families),
      bases(parts_->bases),
      connections(parts_->connections),
      under_way(parts_->under_way),
      open_calls(parts_->open_calls),
      log(parts_->log),
      sharing(parts_->sharing),
      executor(parts_->executor),
      long_calls(parts_->long_calls) {}

Core::~Core() {
  if (idle != nullptr) idle->Stop();  // its thread uses the log and the families
}

int Core::QueuedCalls() const { return executor.waiting() + long_calls.waiting(); }
int64_t Core::RefusedCalls() const { return executor.refused() + long_calls.refused(); }
bool Core::StuckFor(std::chrono::milliseconds time) const {
  return executor.StuckFor(time) || long_calls.StuckFor(time);
}

int64_t Core::ConstantBytes() const {
  return base_bytes + (options.memory_limit_bytes > 0 ? MemoryBudget::kLeastPassing + UnnoticedBytes()
                                                      : 2 * in_flight.limit_bytes());
}

}  // namespace seine
