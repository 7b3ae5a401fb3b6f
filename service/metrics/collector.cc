#include "service/metrics/collector.h"

#include <prometheus/text_serializer.h>

#include "index/counts/counts.h"
#include "index/idle/idle_tier.h"
#include "index/index.h"
#include "kernels/backend.h"
#include "profile/scorer_list.h"
#include "service/catalog.h"
#include "service/channel_offers.h"
#include "service/event_log.h"
#include "service/families/sequence_families.h"
#include "service/log.h"
#include "service/metrics/build_info.h"
#include "service/metrics/families.h"
#include "service/metrics/tenant_families.h"
#include "service/snapshots/files/exit_files.h"
#include "service/snapshots/files/snapshot_bases.h"
#include "service/snapshots/files/snapshot_folder.h"
#include "service/transport/sockets/connections.h"
#include "service/under_way/call_counts.h"
#include "service/under_way/in_flight.h"

namespace seine {
namespace {

using Labels = Families::Labels;

// gRPC's names of codes, by number.
constexpr const char* kCodeNames[CallCounts::kCodes] = {
    "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};

Labels MethodLabels(int number) {
  const CallCounts::Method& method = CallCounts::MethodOf(number);
  const char* type = !method.client_streams ? "unary" : method.server_streams ? "bidi_stream" : "client_stream";
  return {{"grpc_type", type}, {"grpc_service", method.service}, {"grpc_method", method.name}};
}

// The server's own indexes have no tenant.
Labels IndexLabels(const std::string& tenant, const std::string& index) {
  Labels labels = {{"index", index}};
  if (!tenant.empty()) labels.emplace_back("tenant", tenant);
  return labels;
}

double Number(int64_t value) { return static_cast<double>(value); }

void AddCalls(const CallCounts& calls, Families* out) {
  const auto each = [out](auto value) {
    for (int m = 0; m < CallCounts::size(); ++m) out->Add(MethodLabels(m), Number(value(m)));
  };
  out->Counter("grpc_server_started_total", "Calls begun.");
  each([&](int m) { return calls.started(m); });
  out->Counter("grpc_server_handled_total", "Calls ended, by code. A Decode stream is one call.");
  for (int m = 0; m < CallCounts::size(); ++m) {
    for (int code = 0; code < CallCounts::kCodes; ++code) {
      const int64_t ended = calls.ended(m, code);
      if (ended == 0 && code != 0) continue;  // a series from its first call on
      Labels labels = MethodLabels(m);
      labels.emplace_back("grpc_code", kCodeNames[code]);
      out->Add(labels, Number(ended));
    }
  }
  out->Histogram("grpc_server_handling_seconds", "From a call's beginning to its end at the server.");
  for (int m = 0; m < CallCounts::size(); ++m) {
    if (calls.started(m) > 0) out->Add(MethodLabels(m), calls.times(m));
  }
  out->Counter("grpc_server_msg_received_total", "Messages received. A Decode step is one.");
  each([&](int m) { return calls.received(m); });
  out->Counter("grpc_server_msg_sent_total", "Messages sent. A Decode step's answer is one, its announcement another.");
  each([&](int m) { return calls.sent(m); });
}

void AddSnapshots(const SnapshotCounts& counts, Families* out) {
  out->Counter("seine_snapshots_total", "Snapshots written and restored, those that failed included.");
  out->Add({{"operation", "write"}}, Number(counts.written.load()));
  out->Add({{"operation", "restore"}}, Number(counts.restored.load()));
  out->Counter("seine_snapshots_failed_total", "Snapshots of these that were not written, or not restored.");
  out->Add({{"operation", "write"}}, Number(counts.writes_failed.load()));
  out->Add({{"operation", "restore"}}, Number(counts.restores_failed.load()));
  out->Counter("seine_snapshot_bytes_total", "Bytes of snapshots written and restored.");
  out->Add({{"operation", "write"}}, Number(counts.bytes_written.load()));
  out->Add({{"operation", "restore"}}, Number(counts.bytes_restored.load()));
  out->Counter("seine_family_records_total", "Records of families that the start has found.");
  out->Add({{"state", "read"}}, Number(counts.records_read.load()));
  out->Add({{"state", "damaged"}}, Number(counts.records_damaged.load()));
}

void AddPassedOver(const std::vector<PassedOverFile>& files, Families* out) {
  int64_t count[kPassedOverReasons] = {}, bytes[kPassedOverReasons] = {};
  for (const PassedOverFile& file : files) {
    ++count[static_cast<int>(file.reason)];
    bytes[static_cast<int>(file.reason)] += file.bytes;
  }
  const auto each = [out](const int64_t* values) {
    for (int i = 0; i < kPassedOverReasons; ++i) {
      out->Add({{"reason", std::string(ToString(static_cast<PassedOver>(i)))}}, Number(values[i]));
    }
  };
  out->Counter("seine_exit_snapshots_passed_over_total",
               "Files of an earlier end that the start has left where they are.");
  each(count);
  out->Gauge("seine_exit_snapshots_passed_over_bytes", "Bytes of these files.");
  each(bytes);
}

void AddIdle(const IdleReading& idle, Families* out) {
  out->Gauge("seine_spilled_families", "Families of sequences that the idle tier has on disk.");
  out->Add({}, Number(idle.families));
  out->Gauge("seine_spilled_bytes", "Bytes of their files.");
  out->Add({}, Number(idle.bytes));
  out->Counter("seine_spills_total", "Families written out, by cause.");
  out->Add({{"cause", "idle"}}, Number(idle.spills_idle));
  out->Add({{"cause", "memory"}}, Number(idle.spills_memory));
  out->Counter("seine_spills_failed_total", "Families that stayed in memory, for they could not be written.");
  out->Add({}, Number(idle.spills_failed));
  out->Counter("seine_spill_restores_failed_total", "Times that a spilled family could not be brought back.");
  out->Add({}, Number(idle.restores_failed));
  out->Histogram("seine_spill_restore_seconds", "What a call waits for while a spilled family is brought back.");
  out->Add({}, idle.restore_times);
}

void AddCounts(const Counts& counts, Families* out) {
  out->Histogram("seine_stage_seconds",
                 "Time of one call in a stage; of a search's stages summed over its items, heads and threads.");
  for (int s = 0; s < kStages; ++s) {
    const auto stage = static_cast<Stage>(s);
    out->Add({{"stage", NameOf(stage)}}, counts.stage(stage));
  }
  out->Counter("seine_evictions_total", "Layers cut back.");
  out->Add({}, Number(counts.evictions()));
  out->Counter("seine_evicted_tokens_total", "Tokens evicted, each counted once a KV head.");
  const auto& scorers = AllScorers();
  for (size_t i = 0; i < scorers.size(); ++i) {
    out->Add({{"scorer", scorers[i].name}}, Number(counts.evicted_tokens(static_cast<int>(i))));
  }
  out->Counter("seine_reencoded_keys_total",
               "Keys given new codes in the background, each counted once for all heads.");
  out->Add({{"cause", "outgrown"}}, Number(counts.reencoded_keys(false)));
  out->Add({{"cause", "unfit"}}, Number(counts.reencoded_keys(true)));
  out->Counter("seine_subspace_updates_total", "Updates of learnt bases, of keys and of values, by KV head.");
  out->Add({}, Number(counts.subspace_updates()));
  out->Counter("seine_quality_busy_seconds_total", "Time of a core that comparisons with exact answers have taken.");
  out->Add({}, Number(counts.quality_busy_ns()) * 1e-9);
  out->Counter("seine_quality_dropped_total", "Sampled items that were not compared with exact answers, by cause.");
  for (int c = 0; c < kQualityDrops; ++c) {
    const auto cause = static_cast<QualityDrop>(c);
    out->Add({{"cause", NameOf(cause)}}, Number(counts.quality_dropped(cause)));
  }
  out->Histogram("seine_sequence_lifetime_seconds", "From a sequence's making to its deletion.");
  out->Add({}, counts.lifetimes());
  out->Histogram("seine_sequence_idle_seconds", "From a sequence's last use to its deletion.");
  out->Add({}, counts.idle());
  out->Histogram("seine_sequence_reuse_gap_seconds",
                 "Between two retrievals of the layer that a sequence is first asked.");
  out->Add({}, counts.gaps());
}

}  // namespace

void Collector::IndexReading::AddGauges(const IndexReading& o) {
  sequences += o.sequences;
  tokens += o.tokens;
  gate_layers += o.gate_layers;
  for (const auto& [tier, held] : o.bytes) bytes[tier] += held;
}

void Collector::IndexReading::AddCounters(const IndexReading& o) {
  steps += o.steps;
  totals += o.totals;
  quality += o.quality;
  gate_checks += o.gate_checks;
  gate_lost += o.gate_lost;
  gate_answers += o.gate_answers;
}

Collector::IndexReading Collector::Read(const Index& index) const {
  IndexReading out;
  const IndexStats stats = index.stats();
  out.sequences = stats.num_sequences;
  out.tokens = index.num_tokens();
  out.gate_checks = stats.gate_checks;
  out.gate_lost = stats.gate_lost;
  out.gate_answers = stats.gate_answers;
  out.gate_layers = static_cast<int64_t>(stats.gate_layers.size());
  out.bytes = {{core_.backend->codes_on_device() ? "device" : "codes", stats.code_bytes},
               {"store", stats.store_bytes - stats.subspace_bytes},
               {"subspace", stats.subspace_bytes},
               {"queries", stats.query_bytes},
               {"other", stats.other_bytes}};
  const IndexCounts* const counts = index.counts();
  if (counts == nullptr) return out;
  out.steps = counts->steps();
  out.totals = counts->totals();
  out.quality = counts->quality();
  return out;
}

Collector::Readings Collector::ReadIndexes() const {
  const IndexKey other = {"", kOther};
  Readings out;
  std::map<uint64_t, bool> named;
  std::map<uint64_t, IndexReading> last;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto indexes = core_.catalog.List();
  size_t count = 0;
  for (const auto& index : indexes) {
    const auto found = index->counts() == nullptr ? named_.end() : named_.find(index->counts()->serial());
    if (found != named_.end() && found->second) ++count;
  }
  for (const auto& index : indexes) {
    if (index->counts() == nullptr) continue;
    const uint64_t serial = index->counts()->serial();
    const auto found = named_.find(serial);
    // Once told together with others it stays so: their counters must never fall.
    const bool own = found != named_.end() ? found->second : count < kMostNamed && index->config().name != kOther;
    if (own && found == named_.end()) ++count;
    named[serial] = own;
    IndexReading reading = Read(*index);
    if (own) {
      out.emplace(IndexKey{index->config().tenant, index->config().name}, std::move(reading));
      continue;
    }
    out[other].AddGauges(reading);
    last.emplace(serial, std::move(reading));
  }
  for (const auto& [serial, reading] : last_) {
    if (!last.contains(serial)) gone_.AddCounters(reading);
  }
  if (!last.empty() || out.contains(other) || gone_.steps.count() + gone_.totals.appended > 0) {
    out[other].AddCounters(gone_);
    for (const auto& [serial, reading] : last) out[other].AddCounters(reading);
    if (!std::exchange(said_, true)) core_.log.SeriesTogether(kMostNamed, kOther);
  }
  named_ = std::move(named);
  last_ = std::move(last);
  return out;
}

std::vector<prometheus::MetricFamily> Collector::Collect() const {
  Families out;
  out.Gauge("seine_build_info", "1; what this server is.");
  out.Add({{"version", BuildVersion()},
           {"commit", BuildCommit()},
           {"backend", core_.backend->name()},
           {"simd", core_.backend->simd_target()}},
          1);
  AddCalls(core_.call_counts, &out);
  if (core_.counts != nullptr) AddCounts(*core_.counts, &out);
  AddSnapshots(core_.snapshot_counts, &out);
  AddPassedOver(core_.exit_files.List(), &out);
  AddIdle(core_.idle != nullptr ? core_.idle->Read() : IdleReading(), &out);
  const Readings indexes = ReadIndexes();
  out.Histogram("seine_decode_step_seconds",
                "A Decode step, over gRPC or a same-host channel, from parsed to answered.");
  for (const auto& [key, i] : indexes) out.Add(IndexLabels(key.tenant, key.name), i.steps);
  const auto each = [&](auto value) {
    for (const auto& [key, i] : indexes) out.Add(IndexLabels(key.tenant, key.name), Number(value(i)));
  };
  out.Gauge("seine_sequences", "Sequences held.");
  each([](const IndexReading& i) { return i.sequences; });
  out.Gauge("seine_tokens", "Tokens of the sequences held, the longest layer of each counting.");
  each([](const IndexReading& i) { return i.tokens; });
  out.Counter("seine_tokens_appended_total", "Tokens appended, each counted once a layer.");
  each([](const IndexReading& i) { return i.totals.appended; });
  out.Counter("seine_candidates_total", "Keys that outlived the scan, of all query heads.");
  each([](const IndexReading& i) { return i.totals.candidates; });
  out.Counter("seine_attended_tokens_total", "Tokens attended, of all query heads.");
  each([](const IndexReading& i) { return i.totals.attended; });
  out.Counter("seine_quality_samples_total", "Retrieved items that were compared with exact answers.");
  each([](const IndexReading& i) { return i.quality.samples; });
  const auto shares = [&](const char* name, const char* help, auto reading) {
    out.Histogram(name, help);
    for (const auto& [key, i] : indexes) out.Add(IndexLabels(key.tenant, key.name), reading(i.quality));
  };
  shares("seine_quality_recall", "Share of the exact set that was found, of each set of the items compared.",
         [](const QualityReading& q) { return q.recall; });
  shares("seine_quality_attention_mass", "Share of the exact softmax on what is attended, of each set compared.",
         [](const QualityReading& q) { return q.attention_mass; });
  shares("seine_quality_predicted_recall", "Recall that the index's profile predicts of each set compared.",
         [](const QualityReading& q) { return q.predicted_recall; });
  out.Counter("seine_gate_checks_total", "Answers that layers' gates have compared with exact ones.");
  each([](const IndexReading& i) { return i.gate_checks; });
  out.Counter("seine_gate_lost_total", "Shares of attention that these answers lost, summed.");
  for (const auto& [key, i] : indexes) out.Add(IndexLabels(key.tenant, key.name), i.gate_lost);
  out.Counter("seine_gate_exact_answers_total",
              "Answers of layers that attend exactly, for their codes lose too much.");
  each([](const IndexReading& i) { return i.gate_answers; });
  out.Gauge("seine_gate_exact_layers", "Layers that attend exactly now, for their codes lose too much.");
  each([](const IndexReading& i) { return i.gate_layers; });
  out.Gauge("seine_quality_expected_recall",
            "Mean recall that the operator expects (quality.expected); 0: not stated.");
  out.Add({}, core_.options.expected_recall);
  out.Gauge("seine_memory_bytes", "Memory that is held for an index, by tier.");
  for (const auto& [key, i] : indexes) {
    for (const auto& [tier, bytes] : i.bytes) {
      Labels labels = IndexLabels(key.tenant, key.name);
      labels.emplace_back("tier", tier);
      out.Add(labels, Number(bytes));
    }
  }
  out.Gauge("seine_memory_limit_bytes", "Limit of all indexes together; 0: none.");
  out.Add({{"memory", "host"}}, Number(core_.options.memory_limit_bytes));
  out.Add({{"memory", "device"}}, Number(core_.options.device_memory_limit_bytes));
  out.Gauge("seine_executor_queue", "Heavy calls that wait for a worker.");
  out.Add({}, Number(core_.QueuedCalls()));
  out.Counter("seine_executor_refused_total", "Heavy calls refused because the queue was full.");
  out.Add({}, Number(core_.RefusedCalls()));
  AddTenants(core_, &out);
  out.Gauge("seine_connections", "Connections of clients.");
  out.Add({}, Number(core_.connections.count()));
  out.Counter("seine_connections_cut_total", "Connections cut off, because their clients did not read or sent resets.");
  out.Add({{"reason", "unread"}}, Number(core_.connections.cut_unread()));
  out.Add({{"reason", "resets"}}, Number(core_.connections.cut_resets()));
  out.Counter("seine_log_lines_lost_total", "Lines of the log that stderr did not take in time, or refused.");
  out.Add({}, Number(LostLogLines()));
  out.Gauge("seine_channels", "Same-host channels that are open.");
  out.Add({}, Number(core_.channels.open()));
  out.Gauge("seine_in_flight_bytes", "Bytes of requests and answers under way, and of channels' rings.");
  out.Add({}, Number(core_.in_flight.used_bytes()));
  out.Gauge("seine_in_flight_limit_bytes", "What may be under way at once.");
  out.Add({}, Number(core_.in_flight.limit_bytes()));
  const FamilyCounts families = core_.families.Count();
  out.Gauge("seine_draining", "1 while the server takes no new families.");
  out.Add({}, core_.draining ? 1 : 0);
  out.Gauge("seine_families_frozen", "Families that take no changes while they move.");
  out.Add({}, Number(families.frozen));
  out.Gauge("seine_families_moved", "Families whose callers are told of another node.");
  out.Add({}, Number(families.moved));
  out.Counter("seine_stale_generations_refused_total", "Calls refused with the reason STALE_GENERATION.");
  out.Add({}, Number(families.stale));
  const BaseCounts bases = core_.bases.Count();
  out.Gauge("seine_snapshot_bases", "Snapshots that are kept for others that add to them.");
  out.Add({{"side", "written"}}, Number(bases.written));
  out.Add({{"side", "read"}}, Number(bases.read));
  return out.Take();
}

std::string Collector::Text() const { return prometheus::TextSerializer().Serialize(Collect()); }

}  // namespace seine
