// See sharded_command.h.
#include "bench/serving/sharded/sharded_command.h"

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
#include "bench/report/table.h"
#include "bench/serving/server_process.h"
#include "bench/serving/service_bench.h"
#include "bench/serving/sharded/sharded_bench.h"
#include "client/cli/flags/security_flags.h"

namespace seine::bench {
namespace {

constexpr char kShardedDescription[] =
    "A layer of a trace striped over several servers, beside the same layer on one of them: what Attend takes, how "
    "near both come to attention over every token, and whether exact answers merge to one node's.\n"
    "\n"
    "The error is |output - dense| / |dense| of a query head, as a mean; one node's beside it, at the same top-k and "
    "at as many attended tokens. Servers of one machine share its cores, so times there say what the merging costs, "
    "not what shards gain.\n"
    "\n"
    "  seine-bench sharded --trace TRACE --spawn build/cpu/bin/seined --choose-first\n"
    "  seine-bench sharded --trace TRACE --servers 10.0.0.1:7465,10.0.0.2:7465 --shards 2 -o json";

constexpr int kMostShards = 64;

struct ShardedFlags {
  ShardedBenchOptions bench;
  std::string spawn, output = "table";
};

void AddFlags(CLI::App* app, ShardedFlags* f) {
  using CLI::IsMember;
  ShardedBenchOptions& b = f->bench;
  app->add_option("--trace", b.trace, "safetensors file of a recorded model, with values")->required();
  app->add_option("--layer", b.layer, "of the trace (default: its last)");
  app->add_option("--servers", b.endpoints, "running servers; shards beyond them take turns")->delimiter(',');
  cli::AddSecurityFlags(app, &b.security);
  app->add_option("--spawn", f->spawn, "path of seined: start one a shard for this run, each with one thread");
  app->add_option("--shards", b.shards, "numbers of shards to measure")->delimiter(',')->capture_default_str();
  app->add_option("--run", b.run, "positions of a run, a multiple of 64")->capture_default_str();
  app->add_option("--top-k", b.top_k, "keys wanted a query head, of the whole")->capture_default_str();
  app->add_flag("--full-top-k", b.full_top_k, "ask each shard for all of top-k, in place of its share");
  app->add_flag("--choose-first", b.choose_first, "choose the best top-k of all shards, then attend: two round trips");
  app->add_option("--steps", b.steps, "questions, spread over the trace's")->capture_default_str();
  app->add_option("-o,--output", f->output, "table or json")->check(IsMember({"table", "json"}))->capture_default_str();
}

absl::Status Check(const ShardedFlags& f) {
  if (f.spawn.empty() == f.bench.endpoints.empty()) {
    return absl::InvalidArgumentError("give one of --servers ADDRESSES and --spawn PROGRAM");
  }
  for (const int shards : f.bench.shards) {
    if (shards < 1 || shards > kMostShards) return InvalidFlag("shards", absl::StrCat("not in [1, ", kMostShards, "]"));
  }
  if (f.bench.run < 64 || f.bench.run % 64 != 0) return InvalidFlag("run", "no multiple of 64");
  if (f.bench.top_k < 1 || f.bench.top_k > 4096) return InvalidFlag("top-k", "not in [1, 4096]");
  return CheckCounts({{"steps", f.bench.steps}});
}

using Json = nlohmann::ordered_json;

Json ToJson(const ShardedFlags& f, const ShardedBenchResult& r) {
  Json j;
  for (const ShardedPoint& p : r.points) {
    Json one;
    one["shards"] = p.shards;
    one["p50_us"] = Percentile(p.step_us, 50);
    one["p99_us"] = Percentile(p.step_us, 99);
    one["one_node_p50_us"] = Percentile(p.node_us, 50);
    one["one_node_p99_us"] = Percentile(p.node_us, 99);
    one["exact_p50_us"] = Percentile(p.exact_us, 50);
    one["attended_tokens_a_head"] = p.attended;
    one["error"] = p.error;
    one["one_node_error"] = p.node_error;
    one["one_node_error_as_many"] = p.node_error_as_many;
    one["exact_merge_error"] = p.merge_error;
    j["points"].push_back(std::move(one));
  }
  j["trace"] = r.source;
  j["num_tokens"] = r.num_tokens;
  j["num_q_heads"] = r.num_q_heads;
  j["num_kv_heads"] = r.num_kv_heads;
  j["head_dim"] = r.head_dim;
  j["run"] = f.bench.run;
  j["top_k"] = f.bench.top_k;
  j["full_top_k"] = f.bench.full_top_k;
  j["choose_first"] = f.bench.choose_first;
  j["steps"] = r.points.empty() ? 0 : r.points[0].step_us.size();
  return j;
}

std::string ToText(const ShardedFlags& f, const ShardedBenchResult& r) {
  std::string text =
      absl::StrFormat("%s: %d tokens, %d query and %d KV heads x %d; runs of %d, top-%d\n\n", r.source, r.num_tokens,
                      r.num_q_heads, r.num_kv_heads, r.head_dim, f.bench.run, f.bench.top_k);
  std::vector<std::vector<std::string>> rows = {{"shards", "Attend p50 us", "p99 us", "one node", "exact", "attended",
                                                 "error %", "one node's", "as many", "exact merge"}};
  for (const ShardedPoint& p : r.points) {
    rows.push_back({absl::StrCat(p.shards), absl::StrFormat("%.0f", Percentile(p.step_us, 50)),
                    absl::StrFormat("%.0f", Percentile(p.step_us, 99)),
                    absl::StrFormat("%.0f", Percentile(p.node_us, 50)),
                    absl::StrFormat("%.0f", Percentile(p.exact_us, 50)), absl::StrFormat("%.0f", p.attended),
                    absl::StrFormat("%.2f", 100 * p.error), absl::StrFormat("%.2f", 100 * p.node_error),
                    absl::StrFormat("%.2f", 100 * p.node_error_as_many), absl::StrFormat("%.1e", p.merge_error)});
  }
  text += RenderTable(rows);
  if (r.points.empty()) return text;
  const ShardedPoint& last = r.points.back();
  return text + absl::StrFormat(
                    "\nover %d shards answers err by %.2f%%, on one node by %.2f%%; a step takes %.2f of one "
                    "node's time\n",
                    last.shards, 100 * last.error, 100 * last.node_error,
                    Percentile(last.step_us, 50) / Percentile(last.node_us, 50));
}

absl::Status Run(ShardedFlags f) {
  if (absl::Status s = Check(f); !s.ok()) return s;
  f.bench.security = client::WithEnvironment(f.bench.security);
  std::vector<std::unique_ptr<ServerProcess>> servers;
  const int most = *std::max_element(f.bench.shards.begin(), f.bench.shards.end());
  for (int s = 0; s < most && !f.spawn.empty(); ++s) {
    auto started = ServerProcess::Start(f.spawn, {"--threads", "1", "--log-level", "warning"});
    if (!started.ok()) return started.status();
    f.bench.endpoints.push_back((*started)->endpoint());
    f.bench.wait_for_server = true;
    servers.push_back(*std::move(started));
  }
  const auto result = MeasureSharded(f.bench);
  if (!result.ok()) return result.status();
  if (f.output == "json") {
    std::cout << ToJson(f, *result).dump(2) << std::endl;
  } else {
    std::cout << ToText(f, *result) << std::flush;
  }
  return std::cout ? absl::OkStatus() : absl::UnavailableError("cannot write to standard output");
}

}  // namespace

void AddShardedCommand(CLI::App* app, std::function<absl::Status()>* run) {
  CLI::App* command = app->add_subcommand("sharded", kShardedDescription);
  auto flags = std::make_shared<ShardedFlags>();
  AddFlags(command, flags.get());
  command->callback([flags, run] { *run = [flags] { return Run(*flags); }; });
}

}  // namespace seine::bench
