// What every call of a server works on. It knows no gRPC: calls.h has the calls, server.h puts them on the wire.
// Whoever uses a part of it includes that part's header.
#ifndef SEINE_SERVICE_CORE_H_
#define SEINE_SERVICE_CORE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "service/core_options.h"

namespace seine {

class Access;
class AuditLog;
class Backend;
class CallCounts;
class CallsUnderWay;
class Catalog;
class ChannelOffers;
class Connections;
class Counts;
class EventLog;
class Executor;
class ExitFiles;
class FamilyRecords;
class FleetWatch;
class IdleTier;
class InFlight;
class MemoryBudget;
class OpenCalls;
class SequenceFamilies;
class Sharing;
class SnapshotBases;
class SnapshotFolder;
class TlsFiles;
struct SnapshotCounts;

// Thread-safe, as its parts are.
struct Core {
  Core(const CoreOptions& o, std::unique_ptr<Backend> chosen);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Calls that wait for a thread, and those that were refused for want of a place.
  int QueuedCalls() const;
  int64_t RefusedCalls() const;
  bool StuckFor(std::chrono::milliseconds time) const;

  // Parts of messages that may come before the next look at what the process holds.
  int64_t UnnoticedBytes() const { return 4 * options.max_message_bytes; }
  // What the process may hold besides the memory limit and a tenth: its own, what passes where the limit is full, and
  // parts of messages. Without a limit: besides what is stored; then all that is under way, in messages and around
  // them, comes on top.
  int64_t ConstantBytes() const;

  // Threads, gRPC, code, allocator, 1,000 connections; seined measures its own at start and leaves room for the rest.
  std::atomic<int64_t> base_bytes{int64_t{160} << 20};
  const CoreOptions options;
  const std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  const std::string instance;             // of this process, 16 hexadecimal digits: after a restart another
  std::string address;                    // where the server listens; set before calls come
  std::string metrics_address;            // where HTTP is served, HOST:PORT; empty: nowhere. Set before calls come
  std::string page;                       // address of its page; empty: it serves none. Set before calls come
  std::string why_cpu;                    // what backend "auto" lacked for another; set before calls come
  std::atomic<bool> draining{false};      // no new families are taken (SetDraining)
  std::atomic<bool> memory_short{false};  // more is under way than may be: heavy calls are refused unread
  std::atomic<int64_t> calls{0};          // answered, a Decode step counting as one
  std::atomic<int64_t> errors{0};         // of them, with a status that is not OK

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;

 public:
  const std::shared_ptr<Counts>& counts;  // nullptr: nothing is counted
  CallCounts& call_counts;
  std::unique_ptr<Backend>& backend;
  std::unique_ptr<Access>& access;                 // nullptr: calls need no credentials; set before calls come
  std::unique_ptr<AuditLog>& audit;                // nullptr: there is none; set before calls come
  std::unique_ptr<SnapshotFolder>& snapshots;      // nullptr: none are made; set before calls come
  std::unique_ptr<FamilyRecords>& family_records;  // nullptr: none are kept; set before calls come
  SnapshotCounts& snapshot_counts;
  ExitFiles& exit_files;
  std::shared_ptr<IdleTier>& idle;     // nullptr: sequences stay in memory; set before calls come
  std::shared_ptr<TlsFiles>& tls;      // nullptr: there is none; set before calls come
  std::unique_ptr<FleetWatch>& fleet;  // nullptr: no file names a fleet; set before calls come
  std::shared_ptr<MemoryBudget>& budget;
  ChannelOffers& channels;
  InFlight& in_flight;
  Catalog& catalog;
  SequenceFamilies& families;
  SnapshotBases& bases;  // of snapshots that others add to
  Connections& connections;
  CallsUnderWay& under_way;
  OpenCalls& open_calls;
  EventLog& log;
  Sharing& sharing;
  // Heavy calls; those that are likely to be long (sharing.h), such as a tenant's prefill, make way for all others.
  Executor &executor, &long_calls;
};

}  // namespace seine

#endif  // SEINE_SERVICE_CORE_H_
