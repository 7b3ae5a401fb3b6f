// See tenants_command.h.
#include "bench/serving/tenants_command.h"

#include <malloc.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/commands/invalid_flag.h"
#include "bench/commands/value_flag.h"
#include "bench/report/table.h"
#include "bench/serving/service_bench.h"
#include "bench/serving/tenants_bench.h"
#include "kernels/types.h"

namespace seine::bench {
namespace {

constexpr char kTenantsDescription[] =
    "What one tenant of a server notices of another. A steady tenant makes decode steps: alone, beside a loud tenant "
    "that "
    "sends several times the steps that its quota allows, and beside a tenant that prefills without a pause. The "
    "phases are repeated by turns, with one of each neighbour alone.\n"
    "\n"
    "  seine-bench tenants --spawn build/cpu/bin/seined\n"
    "  seine-bench tenants --spawn build/cpu/bin/seined --overload 8 --rounds 10 -o json\n"
    "\n"
    "p99_ratio is the steady tenant's p99 beside the other, over its p99 alone. goodput_vs_peak is the loud tenant's "
    "answered steps a second, over those that it gets when it sends what it may. tokens_vs_alone is the same of "
    "prefills. Clients of neighbours run at a lower "
    "priority than the steady one's, as if they were on other machines.";

struct TenantsFlags {
  TenantsOptions bench;
  int64_t memory_limit_mib = 512;
  std::string output = "table";
};

// Makes each client wait for its own socket, and keep the memory of its messages, as if it were a process of its own.
// By gRPC's usual engine a client that waits does whatever the sockets of all others bring.
void KeepClientsApart() {
  setenv("GRPC_POLL_STRATEGY", "poll", /*overwrite=*/0);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that glibc takes
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

void AddTenantFlags(CLI::App* app, TenantsFlags* f) {
  TenantsOptions& b = f->bench;
  app->add_option("--spawn", b.program, "path of seined: one is started for this run, with credentials and a quota")
      ->required();
  app->add_option("--threads", b.threads, "of the server; 0: one a core")->capture_default_str();
  app->add_option("--memory-limit-mib", f->memory_limit_mib, "of the server; prefills go on until it is reached")
      ->capture_default_str();
  app->add_option("--steady-rate", b.steady_steps_per_s, "steps a second of the steady tenant")->capture_default_str();
  app->add_option("--allowed", b.allowed_steps_per_s, "the loud tenant's quota, steps a second")->capture_default_str();
  app->add_option("--overload", b.overload, "times its quota that the loud tenant sends")->capture_default_str();
  app->add_option("--loud-streams", b.loud_streams, "Decode streams of the loud tenant")->capture_default_str();
  app->add_option("--prefill-streams", b.prefill_streams, "prefills at once")->capture_default_str();
  app->add_option("--prefill-tokens", b.prefill_tokens, "tokens of a prefill")->capture_default_str();
  app->add_option("--seconds", b.phase_seconds, "of a phase")->capture_default_str();
  app->add_option("--rounds", b.rounds, "of the five phases")->capture_default_str();
  app->add_option("--num-kv-heads", b.geometry.num_kv_heads, "KV heads")->capture_default_str();
  app->add_option("--group", b.geometry.group, "query heads a KV head")->capture_default_str();
  app->add_option("--head-dim", b.geometry.head_dim, "coordinates of a key")->capture_default_str();
  app->add_option("--num-keys", b.geometry.num_keys, "tokens held before the first step")->capture_default_str();
  app->add_option("--top-k", b.geometry.top_k, "keys wanted a KV head")->capture_default_str();
  app->add_option("--seed", b.seed, "of the synthetic keys")->check(NoSign())->capture_default_str();
  app->add_option("-o,--output", f->output, "table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
}

absl::Status CheckTenantFlags(const TenantsFlags& f) {
  const TenantsOptions& b = f.bench;
  constexpr int64_t kMostTokens = 1 << 22;
  const auto rate = [](double value) { return value > 0 && value <= 1e6; };
  if (!rate(b.steady_steps_per_s)) return InvalidFlag("steady-rate", "not in (0, 1e6]");
  if (!rate(static_cast<double>(b.allowed_steps_per_s))) return InvalidFlag("allowed", "not in [1, 1e6]");
  if (!rate(b.overload)) return InvalidFlag("overload", "not in (0, 1e6]");
  if (b.loud_streams < 1 || b.loud_streams > 256) return InvalidFlag("loud-streams", "not in [1, 256]");
  if (b.prefill_streams < 1 || b.prefill_streams > 256) return InvalidFlag("prefill-streams", "not in [1, 256]");
  if (b.prefill_tokens < 1 || b.prefill_tokens > kMostTokens) return InvalidFlag("prefill-tokens", "not in [1, 2^22]");
  if (!(b.phase_seconds > 0 && b.phase_seconds <= 3600)) return InvalidFlag("seconds", "not in (0, 3600]");
  if (b.rounds < 1 || b.rounds > 10'000) return InvalidFlag("rounds", "not in [1, 10000]");
  if (f.memory_limit_mib < 1 || f.memory_limit_mib > 1 << 20)
    return InvalidFlag("memory-limit-mib", "not in [1, 2^20]");
  if (b.geometry.num_keys < 1 || b.geometry.num_keys > kMostTokens) return InvalidFlag("num-keys", "not in [1, 2^22]");
  if (b.geometry.num_kv_heads < 1 || b.geometry.num_kv_heads > 256)
    return InvalidFlag("num-kv-heads", "not in [1, 256]");
  if (b.geometry.group < 1 || b.geometry.group > kMaxGroup)
    return InvalidFlag("group", absl::StrCat("not in [1, ", kMaxGroup, "]"));
  if (b.geometry.head_dim < 16 || b.geometry.head_dim > kMaxHeadDim || b.geometry.head_dim % 16 != 0)
    return InvalidFlag("head-dim", absl::StrCat("no multiple of 16 in [16, ", kMaxHeadDim, "]"));
  return absl::OkStatus();
}

using TenantsJson = nlohmann::ordered_json;

double Rate(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }
double Ratio(double a, double b) { return b > 0 ? a / b : 0; }

TenantsJson SteadyJson(const LoadResult& load, const LoadResult& alone) {
  TenantsJson j;
  j["steps"] = load.us.size();
  j["refused"] = load.refused;
  j["p50_us"] = Percentile(load.us, 50);
  j["p95_us"] = Percentile(load.us, 95);
  j["p99_us"] = Percentile(load.us, 99);
  if (&load == &alone) return j;
  j["p50_ratio"] = Ratio(Percentile(load.us, 50), Percentile(alone.us, 50));
  j["p99_ratio"] = Ratio(Percentile(load.us, 99), Percentile(alone.us, 99));
  return j;
}

TenantsJson TenantsToJson(const TenantsFlags& f, const TenantsResult& r) {
  const TenantsOptions& b = f.bench;
  const double peak = Rate(static_cast<double>(r.peak.us.size()), r.peak_seconds);
  const double goodput = Rate(static_cast<double>(r.loud.us.size()), r.loud_seconds);
  TenantsJson j;
  j["alone"] = SteadyJson(r.alone, r.alone);
  j["beside_loud"] = SteadyJson(r.beside_loud, r.alone);
  j["beside_prefill"] = SteadyJson(r.beside_prefill, r.alone);
  j["loud"] = {{"allowed_steps_per_s", b.allowed_steps_per_s},
               {"sent_steps_per_s", Rate(static_cast<double>(r.loud.sent), r.loud_seconds)},
               {"refused_steps_per_s", Rate(static_cast<double>(r.loud.refused), r.loud_seconds)},
               {"goodput_steps_per_s", goodput},
               {"peak_steps_per_s", peak},
               {"goodput_vs_peak", Ratio(goodput, peak)}};
  const double prefill_alone = Rate(static_cast<double>(r.prefill_alone.tokens), r.prefill_alone_seconds);
  const double prefill = Rate(static_cast<double>(r.prefill.tokens), r.prefill_seconds);
  j["prefill"] = {{"alone_tokens_per_s", prefill_alone},
                  {"tokens_per_s", prefill},
                  {"tokens_vs_alone", Ratio(prefill, prefill_alone)},
                  {"sequences", r.prefill.sent},
                  {"refused", r.prefill.refused}};
  const int64_t allowed = b.memory_limit_bytes + b.memory_limit_bytes / 10;
  j["memory"] = {{"limit_bytes", b.memory_limit_bytes},
                 {"resident_at_start_bytes", r.resident_at_start_bytes},
                 {"resident_peak_bytes", r.resident_peak_bytes},
                 {"allowed_bytes", allowed},
                 {"peak_vs_allowed", Ratio(static_cast<double>(r.resident_peak_bytes), static_cast<double>(allowed))}};
  j["steady_steps_per_s"] = b.steady_steps_per_s;
  j["overload"] = b.overload;
  j["rounds"] = b.rounds;
  j["phase_seconds"] = b.phase_seconds;
  j["num_kv_heads"] = b.geometry.num_kv_heads;
  j["num_q_heads"] = b.geometry.num_kv_heads * b.geometry.group;
  j["head_dim"] = b.geometry.head_dim;
  j["num_keys"] = b.geometry.num_keys;
  j["prefill_tokens"] = b.prefill_tokens;
  j["processors"] = r.processors;
  j["synthetic"] = true;
  return j;
}

std::string TenantsToText(const TenantsJson& j) {
  const auto row = [&](const char* name, const TenantsJson& of) {
    const auto ratio = [&](const char* key) {
      return of.contains(key) ? absl::StrFormat("%.2f", double(of[key])) : std::string();
    };
    return std::vector<std::string>{name, absl::StrFormat("%.0f", double(of["p50_us"])),
                                    absl::StrFormat("%.0f", double(of["p99_us"])), ratio("p50_ratio"),
                                    ratio("p99_ratio")};
  };
  std::string text = RenderTable({{"the steady tenant", "p50 us", "p99 us", "p50 against alone", "p99 against alone"},
                                  row("alone", j["alone"]),
                                  row("beside the loud tenant", j["beside_loud"]),
                                  row("beside prefills", j["beside_prefill"])});
  absl::StrAppendFormat(&text,
                        "\nloud: %.0f steps/s sent, %.0f refused, %.0f answered: %.2f of its peak\n"
                        "prefill: %.0f tokens/s, %.2f of those alone; memory: %.2f of what it may take\n",
                        double(j["loud"]["sent_steps_per_s"]), double(j["loud"]["refused_steps_per_s"]),
                        double(j["loud"]["goodput_steps_per_s"]), double(j["loud"]["goodput_vs_peak"]),
                        double(j["prefill"]["tokens_per_s"]), double(j["prefill"]["tokens_vs_alone"]),
                        double(j["memory"]["peak_vs_allowed"]));
  absl::StrAppendFormat(&text,
                        "the steady tenant's p99 is %.2f times what it is alone beside the loud one, %.2f times beside "
                        "prefills\n",
                        double(j["beside_loud"]["p99_ratio"]), double(j["beside_prefill"]["p99_ratio"]));
  return text;
}

absl::Status RunTenants(TenantsFlags f) {
  if (absl::Status s = CheckTenantFlags(f); !s.ok()) return s;
  KeepClientsApart();
  f.bench.memory_limit_bytes = f.memory_limit_mib << 20;
  auto result = MeasureTenants(f.bench);
  if (!result.ok()) return result.status();
  const TenantsJson json = TenantsToJson(f, *result);
  std::cout << (f.output == "json" ? json.dump(2) + "\n" : TenantsToText(json)) << std::flush;
  return std::cout ? absl::OkStatus() : absl::UnavailableError("cannot write to standard output");
}

}  // namespace

void AddTenantsCommand(CLI::App* app, std::function<absl::Status()>* run) {
  CLI::App* command = app->add_subcommand("tenants", kTenantsDescription);
  auto flags = std::make_shared<TenantsFlags>();
  AddTenantFlags(command, flags.get());
  command->callback([flags, run] { *run = [flags] { return RunTenants(*flags); }; });
}

}  // namespace seine::bench
