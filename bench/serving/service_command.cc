// See service_command.h.
#include "bench/serving/service_command.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/commands/invalid_flag.h"
#include "bench/commands/value_flag.h"
#include "bench/report/plot_file.h"
#include "bench/report/table.h"
#include "bench/serving/server_process.h"
#include "bench/serving/service_bench.h"
#include "client/cli/flags/security_flags.h"
#include "kernels/types.h"

namespace seine::bench {
namespace {

constexpr char kServiceDescription[] =
    "Latency of a decode step (append a token, retrieve for every KV head) against a running server, beside the same "
    "steps in process: the difference is what the wire costs. Also prefill over the wire and append in process.\n"
    "\n"
    "  seine-bench service --spawn build/cpu/bin/seined --transport stream\n"
    "  seine-bench service --spawn build/cpu/bin/seined --transport stream --polling\n"
    "  seine-bench service --spawn build/cpu/bin/seined --transport shm --polling\n"
    "  seine-bench service --spawn build/cpu/bin/seined --transport shm --polling --layers 32\n"
    "  seine-bench service --server /run/user/1000/seine.sock --steps 500 -o json\n"
    "\n"
    "--transport shm also measures an empty step there and back (empty_step_p50_us), beside a counter that two "
    "processes "
    "pass to and fro in memory (bare_futex_p50_us), which spins or sleeps likewise.";

struct ServiceFlags {
  ServiceOptions bench;
  std::string spawn, transport = "stream", output = "table", plot;
  int threads = 1, spin_us = 100;
  bool polling = false;
};

void AddFlags(CLI::App* app, ServiceFlags* f) {
  using CLI::IsMember;
  ServiceOptions& b = f->bench;
  app->add_option("--server,--endpoint", b.endpoint,
                  "a running server: unix:///path, /path or host:port; absent, and without --spawn: SEINE_SERVER, or "
                  "where seined listens by itself");
  cli::AddSecurityFlags(app, &b.security);
  app->add_option("--spawn", f->spawn, "path of seined: start one for this run, on a Unix socket");
  app->add_option("--threads", f->threads, "of the spawned server and of the work in process; 0: one a core")
      ->capture_default_str();
  app->add_option("--transport", f->transport,
                  "stream (Decode), shm (the same over shared memory) or unary (Append, then Retrieve)")
      ->check(IsMember({"stream", "shm", "unary"}))
      ->capture_default_str();
  app->add_flag("--polling", f->polling, "spin while waiting: here, and in a spawned server");
  app->add_option(
         "--spin", f->spin_us,
         "shm: microseconds that each side spins before it sleeps, here and in a spawned server; 0: sleeps at once")
      ->capture_default_str();
  app->add_option("--layers", b.num_layers, "layers, a step each a token")->capture_default_str();
  app->add_option("--num-kv-heads", b.num_kv_heads, "KV heads")->capture_default_str();
  app->add_option("--group", b.group, "query heads a KV head")->capture_default_str();
  app->add_option("--head-dim", b.head_dim, "coordinates of a key")->capture_default_str();
  app->add_option("--num-keys", b.num_keys, "tokens held before the first step")->capture_default_str();
  app->add_option("--steps", b.steps, "timed steps")->capture_default_str();
  app->add_option("--top-k", b.top_k, "keys wanted a KV head")->capture_default_str();
  app->add_option("--candidate-fraction,--beta", b.beta, "share of the keys kept as candidates")->capture_default_str();
  app->add_option("--seed", b.seed, "of the synthetic keys")->check(NoSign())->capture_default_str();
  app->add_option("-o,--output", f->output, "table or json")->check(IsMember({"table", "json"}))->capture_default_str();
  app->add_option("--plot", f->plot, "writes the distribution of latencies: .svg or .png");
}

absl::Status Check(const ServiceFlags& f) {
  constexpr int64_t kMostTokens = 1 << 22;
  if (!f.bench.endpoint.empty() && !f.spawn.empty()) {
    return absl::InvalidArgumentError("give one of --server ADDRESS and --spawn PROGRAM");
  }
  if (f.bench.steps < 1 || f.bench.steps > kMostTokens)
    return InvalidFlag("steps", absl::StrCat("not in [1, ", kMostTokens, "]"));
  if (f.bench.num_keys < 1 || f.bench.num_keys > kMostTokens) {
    return InvalidFlag("num-keys", absl::StrCat("not in [1, ", kMostTokens, "]"));
  }
  if (f.bench.num_layers < 1 || f.bench.num_layers > 256) return InvalidFlag("layers", "not in [1, 256]");
  if (f.bench.num_kv_heads < 1 || f.bench.num_kv_heads > 256) return InvalidFlag("num-kv-heads", "not in [1, 256]");
  if (f.bench.group < 1 || f.bench.group > kMaxGroup)
    return InvalidFlag("group", absl::StrCat("not in [1, ", kMaxGroup, "]"));
  if (f.bench.head_dim < 16 || f.bench.head_dim > kMaxHeadDim || f.bench.head_dim % 16 != 0) {
    return InvalidFlag("head-dim", absl::StrCat("no multiple of 16 in [16, ", kMaxHeadDim, "]"));
  }
  if (f.polling && f.transport == "unary") return InvalidFlag("polling", "only --transport stream and shm can spin");
  if (f.spin_us < 0 || f.spin_us > 1'000'000) return InvalidFlag("spin", "not in [0, 1000000]");
  return absl::OkStatus();
}

using Json = nlohmann::ordered_json;

Json ToJson(const ServiceFlags& f, const ServiceResult& r) {
  Json j;
  j["p50_us"] = Percentile(r.remote_us, 50);
  j["p99_us"] = Percentile(r.remote_us, 99);
  j["steps_per_s"] = r.steps_per_s;
  j["tokens_per_s_append"] = r.tokens_per_s_append;
  j["errors"] = r.errors;
  if (!r.first_error.empty()) j["first_error"] = r.first_error;
  j["in_process_p50_us"] = Percentile(r.local_us, 50);
  j["in_process_p99_us"] = Percentile(r.local_us, 99);
  j["rpc_overhead_p50_us"] = Percentile(r.remote_us, 50) - Percentile(r.local_us, 50);
  j["token_p50_us"] = Percentile(r.remote_token_us, 50);
  j["token_in_process_p50_us"] = Percentile(r.local_token_us, 50);
  j["token_overhead_p50_us"] = Percentile(r.remote_token_us, 50) - Percentile(r.local_token_us, 50);
  j["bare_socket_p50_us"] = r.bare_socket_us;
  if (f.transport == "shm") {
    j["empty_step_p50_us"] = r.empty_step_us;
    j["bare_futex_p50_us"] = r.bare_futex_us;
    j["spin_us"] = f.spin_us;
  }
  j["beyond_server_p50_us"] = r.wire_us.empty() ? Json(nullptr) : Json(Percentile(r.wire_us, 50));
  j["append_keys_per_s_core"] = r.append_keys_per_s_core;
  j["steps"] = r.remote_us.size();
  j["transport"] = f.transport;
  j["polling"] = f.polling;
  j["layers"] = f.bench.num_layers;
  j["num_kv_heads"] = f.bench.num_kv_heads;
  j["num_q_heads"] = f.bench.num_kv_heads * f.bench.group;
  j["head_dim"] = f.bench.head_dim;
  j["num_keys"] = f.bench.num_keys;
  j["top_k"] = f.bench.top_k;
  j["beta"] = f.bench.beta;
  j["synthetic"] = true;
  j["backend"] = r.backend;
  j["simd_target"] = r.simd_target;
  j["threads"] = r.server_threads;
  return j;
}

std::string ToText(const ServiceFlags& f, const ServiceResult& r) {
  const auto us = [](double v) { return absl::StrFormat("%.1f", v); };
  const double remote = Percentile(r.remote_us, 50), local = Percentile(r.local_us, 50);
  std::string text = absl::StrFormat(
      "decode steps over %s%s: append 1 token, retrieve top-%d of %d synthetic keys for %d KV heads x %d, head_dim %d\n"
      "%s backend, %s, %d thread(s) in the server and in process\n\n",
      f.transport, f.polling ? ", polling" : "", f.bench.top_k, f.bench.num_keys, f.bench.num_kv_heads, f.bench.group,
      f.bench.head_dim, r.backend, r.simd_target, r.server_threads);
  text += RenderTable({{"step", "p50 us", "p99 us"},
                       {"over the wire", us(remote), us(Percentile(r.remote_us, 99))},
                       {"in process", us(local), us(Percentile(r.local_us, 99))},
                       {"the wire's share", us(remote - local), ""},
                       {"a bare socket's", us(r.bare_socket_us), ""}});
  if (f.bench.num_layers > 1) {
    const double token = Percentile(r.remote_token_us, 50), own = Percentile(r.local_token_us, 50);
    absl::StrAppendFormat(&text, "\na token of %d layers: p50 %.0f us over the wire, %.0f in process, %.0f beyond\n",
                          f.bench.num_layers, token, own, token - own);
  }
  if (!r.wire_us.empty()) {
    absl::StrAppendFormat(&text, "\nbeyond what the server says its index took: p50 %.1f us\n",
                          Percentile(r.wire_us, 50));
  }
  if (f.transport == "shm") {
    absl::StrAppendFormat(&text, "an empty step, there and back: p50 %.1f us; a bare futex pair: %.1f us\n",
                          r.empty_step_us, r.bare_futex_us);
  }
  absl::StrAppendFormat(&text,
                        "\n%.0f steps/s; prefill %.0f tokens/s over the wire; append in process %.2f M keys/s a core\n",
                        r.steps_per_s, r.tokens_per_s_append, r.append_keys_per_s_core / 1e6);
  if (local > 0) {
    absl::StrAppendFormat(&text, "a step over the wire takes %.2f times one in process (medians)\n", remote / local);
  }
  if (r.errors > 0) absl::StrAppend(&text, "errors: ", r.errors, ", first: ", r.first_error, "\n");
  return text;
}

// Share of steps that took at most x, cut at the 99.5th percentile, where a tail would squeeze the rest.
Series Distribution(const std::string& name, std::vector<double> us) {
  constexpr int kPoints = 200;
  std::sort(us.begin(), us.end());
  Series series{name, {}, true, false};
  for (int i = 0; i <= kPoints && !us.empty(); ++i) {
    const double share = .995 * i / kPoints;
    series.points.emplace_back(us[static_cast<size_t>(share * static_cast<double>(us.size() - 1))], share);
  }
  return series;
}

Plot MakePlot(const ServiceFlags& f, const ServiceResult& r) {
  Plot plot;
  plot.title = "Decode step latency";
  plot.subtitle = absl::StrCat(f.bench.num_kv_heads, " KV heads x ", f.bench.head_dim, ", ", f.bench.num_keys,
                               " synthetic keys, top-", f.bench.top_k);
  plot.x_label = "microseconds a step (log)";
  plot.y_label = "share of steps";
  plot.log_x = true;
  plot.series = {Distribution(absl::StrCat(f.transport, f.polling ? ", polling" : ""), r.remote_us),
                 Distribution("in process", r.local_us)};
  return plot;
}

absl::Status Run(ServiceFlags f) {
  if (absl::Status s = Check(f); !s.ok()) return s;
  if (absl::Status s = CheckPlotPath(f.plot); !s.ok()) return s;
  if (f.spawn.empty() && f.bench.endpoint.empty()) f.bench.endpoint = client::EndpointFromEnvironment();
  if (f.spawn.empty()) f.bench.security = client::WithEnvironment(f.bench.security);
  f.bench.unary = f.transport == "unary";
  f.bench.transport = f.polling ? client::Transport::kPolling : client::Transport::kBlocking;
  if (f.transport == "shm") {
    f.bench.transport = f.polling ? client::Transport::kSharedMemoryPolling : client::Transport::kSharedMemory;
    f.bench.spin = absl::Microseconds(f.spin_us);
  }
  std::unique_ptr<ServerProcess> server;
  if (!f.spawn.empty()) {
    std::vector<std::string> arguments = {"--threads", absl::StrCat(f.threads), "--log-level", "warning"};
    if (f.polling) arguments.push_back("--polling");
    if (f.transport == "shm") {
      arguments.insert(arguments.end(), {"--channel-spin", absl::StrCat(f.spin_us)});
    }
    auto started = ServerProcess::Start(f.spawn, arguments);
    if (!started.ok()) return started.status();
    server = *std::move(started);
    f.bench.endpoint = server->endpoint();
    f.bench.wait_for_server = true;
  }
  auto result = MeasureService(f.bench);
  if (!result.ok()) return result.status();
  if (f.output == "json") {
    std::cout << ToJson(f, *result).dump(2) << std::endl;
  } else {
    std::cout << ToText(f, *result) << std::flush;
  }
  if (!std::cout) return absl::UnavailableError("cannot write to standard output");
  if (absl::Status s = WritePlot(MakePlot(f, *result), f.plot); !s.ok()) return s;
  return result->errors == 0 ? absl::OkStatus()
                             : absl::AbortedError(absl::StrCat(result->errors, " steps failed: ", result->first_error));
}

}  // namespace

void AddServiceCommand(CLI::App* app, std::function<absl::Status()>* run) {
  CLI::App* command = app->add_subcommand("service", kServiceDescription);
  auto flags = std::make_shared<ServiceFlags>();
  AddFlags(command, flags.get());
  command->callback([flags, run] { *run = [flags] { return Run(*flags); }; });
}

}  // namespace seine::bench
