// See nodes_command.h.
#include "bench/serving/sharded/nodes_command.h"

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
#include "bench/report/table.h"
#include "bench/serving/sharded/nodes_bench.h"

namespace seine::bench {
namespace {

constexpr char kNodesDescription[] =
    "What one layer's step takes of several nodes on this machine, and of the engine that asks them: the constants of "
    "a plan for many more, which python -m seine_kv.sharded.simulate draws. A step attends; keys are synthetic.\n"
    "\n"
    "node: the index of one node, while the others rest. step: the same as the engine sees it. all: all nodes at once, "
    "merged; they share this machine's cores. engine: the engine's processor time of that, a node. merge: of it, the "
    "merging.\n"
    "\n"
    "  seine-bench nodes --spawn build/cpu/bin/seined\n"
    "  seine-bench nodes --spawn build/cpu/bin/seined --nodes 3 --num-keys 8192,65536 -o json";

constexpr int kMostNodes = 64;

struct NodesFlags {
  NodesOptions bench;
  std::string output = "table";
};

void AddFlags(CLI::App* app, NodesFlags* f) {
  NodesOptions& b = f->bench;
  app->add_option("--spawn", b.spawn, "path of seined: start one a node for this run, each with one thread")
      ->required();
  app->add_option("--nodes", b.nodes, "servers")->capture_default_str();
  app->add_option("--num-keys", b.num_keys, "tokens that each node holds")->delimiter(',')->capture_default_str();
  app->add_option("--kv-heads", b.num_kv_heads, "KV heads")->capture_default_str();
  app->add_option("--group", b.group, "query heads a KV head")->capture_default_str();
  app->add_option("--head-dim", b.head_dim, "coordinates of a key")->capture_default_str();
  app->add_option("--top-k", b.top_k, "keys wanted a query head, of each node")->capture_default_str();
  app->add_option("--steps", b.steps, "steps")->capture_default_str();
  app->add_option("--seed", b.seed, "of the synthetic keys")->check(NoSign())->capture_default_str();
  app->add_option("-o,--output", f->output, "table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
}

absl::Status Check(const NodesOptions& b) {
  if (b.nodes < 1 || b.nodes > kMostNodes) return InvalidFlag("nodes", absl::StrCat("not in [1, ", kMostNodes, "]"));
  if (absl::Status s = CheckCounts("num-keys", b.num_keys); !s.ok()) return s;
  return CheckCounts({{"kv-heads", b.num_kv_heads},
                      {"group", b.group},
                      {"head-dim", b.head_dim},
                      {"top-k", b.top_k},
                      {"steps", b.steps}});
}

using Json = nlohmann::ordered_json;

Json ToJson(const NodesOptions& b, const std::vector<NodesPoint>& points) {
  Json j;
  for (const NodesPoint& p : points) {
    j["rows"].push_back({{"num_keys", p.num_keys},
                         {"node_us", p.node_us},
                         {"step_us", p.step_us},
                         {"all_us", p.all_us},
                         {"engine_us", p.engine_us},
                         {"merge_us", p.merge_us},
                         {"bytes_there", p.bytes_there},
                         {"bytes_back", p.bytes_back},
                         {"token_bytes", p.token_bytes}});
  }
  j["nodes"] = b.nodes;
  j["num_kv_heads"] = b.num_kv_heads;
  j["group"] = b.group;
  j["head_dim"] = b.head_dim;
  j["top_k"] = b.top_k;
  j["steps"] = b.steps;
  return j;
}

std::string ToText(const NodesOptions& b, const std::vector<NodesPoint>& points) {
  std::vector<std::vector<std::string>> rows = {
      {"keys a node", "node us", "step us", "all us", "engine us", "merge us", "bytes there", "back", "a token"}};
  for (const NodesPoint& p : points) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(absl::StrCat(p.num_keys));
    for (const double us : {p.node_us, p.step_us, p.all_us, p.engine_us, p.merge_us}) {
      row.push_back(absl::StrFormat("%.1f", us));
    }
    for (const double bytes : {p.bytes_there, p.bytes_back, p.token_bytes}) {
      row.push_back(absl::StrFormat("%.0f", bytes));
    }
  }
  return absl::StrFormat("%d nodes, %d KV heads of %d query heads x %d, top-%d; medians of %d steps\n\n", b.nodes,
                         b.num_kv_heads, b.group, b.head_dim, b.top_k, b.steps) +
         RenderTable(rows) +
         (points.empty()
              ? ""
              : absl::StrFormat("\neach node costs the engine %.1f us of a processor a step, and %.1f us to merge\n",
                                points.back().engine_us, points.back().merge_us));
}

absl::Status Run(const NodesFlags& f) {
  if (absl::Status s = Check(f.bench); !s.ok()) return s;
  const auto points = MeasureNodes(f.bench);
  if (!points.ok()) return points.status();
  if (f.output == "json") {
    std::cout << ToJson(f.bench, *points).dump(2) << std::endl;
  } else {
    std::cout << ToText(f.bench, *points) << std::flush;
  }
  return std::cout ? absl::OkStatus() : absl::UnavailableError("cannot write to standard output");
}

}  // namespace

void AddNodesCommand(CLI::App* app, std::function<absl::Status()>* run) {
  CLI::App* command = app->add_subcommand("nodes", kNodesDescription);
  auto flags = std::make_shared<NodesFlags>();
  AddFlags(command, flags.get());
  command->callback([flags, run] { *run = [flags] { return Run(*flags); }; });
}

}  // namespace seine::bench
