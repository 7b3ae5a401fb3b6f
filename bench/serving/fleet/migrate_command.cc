// See migrate_command.h.
#include "bench/serving/fleet/migrate_command.h"

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
#include "bench/serving/fleet/migrate_bench.h"

namespace seine::bench {
namespace {

constexpr char kDescription[] =
    "What a family that moves keeps its decoder waiting. Two servers on this machine share a folder of snapshots. A "
    "family of one layer moves there and back, while a decoder appends to it token by token and follows it.\n"
    "\n"
    "pause: how long the family was frozen, as the mover saw it. stall: the longest append of each move, as the "
    "decoder "
    "saw it: it tries again after 20 ms, then after twice as long, at most 100 ms. Both as median and 99th percentile "
    "of all moves. A move copies the family while it serves, and writes what came since while it is frozen (MB "
    "frozen). whole: moves that wrote all of it then.\n"
    "\n"
    "  seine-bench migrate --spawn build/cpu/bin/seined\n"
    "  seine-bench migrate --spawn build/cpu/bin/seined --num-keys 131072 --moves 50 --folder /var/tmp -o json";

struct Flags {
  MigrateOptions bench;
  std::string output = "table";
};

void AddFlags(CLI::App* app, Flags* f) {
  MigrateOptions& b = f->bench;
  app->add_option("--spawn", b.spawn, "path of seined: start two for this run, each with one thread")->required();
  app->add_option("--folder", b.folder, "where snapshots are written (default: the folder for temporary files)");
  app->add_option("--num-keys", b.num_keys, "tokens of the family")->delimiter(',')->capture_default_str();
  app->add_option("--kv-heads", b.num_kv_heads, "KV heads")->capture_default_str();
  app->add_option("--head-dim", b.head_dim, "coordinates of a key")->capture_default_str();
  app->add_option("--moves", b.moves, "moves, there and back")->capture_default_str();
  app->add_option("--seed", b.seed, "of the synthetic keys")->check(NoSign())->capture_default_str();
  app->add_option("-o,--output", f->output, "table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
}

absl::Status Check(const MigrateOptions& b) {
  if (absl::Status s = CheckCounts("num-keys", b.num_keys); !s.ok()) return s;
  return CheckCounts({{"kv-heads", b.num_kv_heads}, {"head-dim", b.head_dim}, {"moves", b.moves}});
}

using Json = nlohmann::ordered_json;

Json ToJson(const MigrateOptions& b, const std::vector<MigratePoint>& points) {
  Json j;
  for (const MigratePoint& p : points) {
    j["rows"].push_back({{"num_keys", p.num_keys},
                         {"pause_p50_ms", p.pause_p50_ms},
                         {"pause_p99_ms", p.pause_p99_ms},
                         {"stall_p50_ms", p.stall_p50_ms},
                         {"stall_p99_ms", p.stall_p99_ms},
                         {"append_p50_ms", p.append_p50_ms},
                         {"snapshot_bytes", p.snapshot_bytes},
                         {"last_bytes", p.last_bytes},
                         {"whole", p.whole},
                         {"appends", p.appends},
                         {"failed", p.failed}});
  }
  j["num_kv_heads"] = b.num_kv_heads;
  j["head_dim"] = b.head_dim;
  j["moves"] = b.moves;
  return j;
}

std::string ToText(const MigrateOptions& b, const std::vector<MigratePoint>& points) {
  std::vector<std::vector<std::string>> rows = {{"keys", "pause p50 ms", "p99", "stall p50 ms", "p99", "append p50 ms",
                                                 "MB a move", "MB frozen", "whole", "appends", "failed"}};
  for (const MigratePoint& p : points) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(absl::StrCat(p.num_keys));
    for (const double value : {p.pause_p50_ms, p.pause_p99_ms, p.stall_p50_ms, p.stall_p99_ms, p.append_p50_ms,
                               p.snapshot_bytes / 1e6, p.last_bytes / 1e6}) {
      row.push_back(absl::StrFormat("%.2f", value));
    }
    row.push_back(absl::StrCat(p.whole));
    row.push_back(absl::StrCat(p.appends));
    row.push_back(absl::StrCat(p.failed));
  }
  return absl::StrFormat("%d moves of a family of one layer, %d KV heads x %d\n\n", b.moves, b.num_kv_heads,
                         b.head_dim) +
         RenderTable(rows) +
         (points.empty()
              ? ""
              : absl::StrFormat("\na family of %d keys takes no appends for %.2f ms while it moves, in the "
                                "middle; usually one takes %.2f ms\n",
                                points.back().num_keys, points.back().stall_p50_ms, points.back().append_p50_ms));
}

absl::Status Run(const Flags& f) {
  if (absl::Status s = Check(f.bench); !s.ok()) return s;
  const auto points = MeasureMigration(f.bench);
  if (!points.ok()) return points.status();
  if (f.output == "json") {
    std::cout << ToJson(f.bench, *points).dump(2) << std::endl;
  } else {
    std::cout << ToText(f.bench, *points) << std::flush;
  }
  return std::cout ? absl::OkStatus() : absl::UnavailableError("cannot write to standard output");
}

}  // namespace

void AddMigrateCommand(CLI::App* app, std::function<absl::Status()>* run) {
  CLI::App* command = app->add_subcommand("migrate", kDescription);
  auto flags = std::make_shared<Flags>();
  AddFlags(command, flags.get());
  command->callback([flags, run] { *run = [flags] { return Run(*flags); }; });
}

}  // namespace seine::bench
