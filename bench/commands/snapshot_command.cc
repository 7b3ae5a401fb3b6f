// See snapshot_command.h.
#include "bench/commands/snapshot_command.h"

#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/measures/snapshot.h"
#include "bench/report/table.h"
#include "kernels/types.h"

namespace seine::bench {
namespace {

constexpr char kSnapshotDescription[] =
    "Speed of snapshots, and what decode steps feel of them.\n"
    "\n"
    "A sequence of synthetic keys and values is written to a file and restored from it, in turns with a plain write "
    "(one buffer again and again, then fsync) and a plain read (into new memory) of as many bytes. Each read is of the "
    "file of a snapshot that has just been written: dropped from the page cache, or brought into it with --cached. "
    "Then decode steps of one layer (append a token, attend) are timed in turns: alone, while their sequence is "
    "written, and while another one is restored. Last, the sequence is written with forks that share all it has. "
    "Speeds are medians.\n"
    "\n"
    "  seine-bench snapshot --gib 4 --folder /var/tmp -o json";

struct SnapshotFlags {
  SnapshotBenchOptions options;
  std::string output = "table";
};

using OrderedJson = nlohmann::ordered_json;

OrderedJson ToJson(const SnapshotBenchResult::Steps& steps) {
  return {{"count", steps.count}, {"p50_us", steps.p50_us}, {"p99_us", steps.p99_us}, {"max_us", steps.most_us}};
}

OrderedJson ToJson(const SnapshotBenchOptions& o, const SnapshotBenchResult& r) {
  return {{"layers", o.layers},
          {"kv_heads", o.kv_heads},
          {"group", o.group},
          {"head_dim", o.head_dim},
          {"tokens", r.tokens},
          {"bytes", r.bytes},
          {"cached", o.cached},
          {"write_bytes_per_s", r.write},
          {"plain_write_bytes_per_s", r.plain_write},
          {"write_share", r.write / r.plain_write},
          {"restore_bytes_per_s", r.read},
          {"plain_read_bytes_per_s", r.plain_read},
          {"restore_share", r.read / r.plain_read},
          {"steps", ToJson(r.quiet)},
          {"steps_during_snapshot", ToJson(r.beside_write)},
          {"p99_ratio", r.beside_write.p99_us / r.quiet.p99_us},
          {"steps_during_restore", ToJson(r.beside_read)},
          {"restore_p99_ratio", r.beside_read.p99_us / r.quiet.p99_us},
          {"write_beside_steps_bytes_per_s", r.busy_write},
          {"restore_beside_steps_bytes_per_s", r.busy_read},
          {"forks", o.forks},
          {"alone_bytes", r.alone_bytes},
          {"family_bytes", r.family_bytes}};
}

std::string Render(const SnapshotBenchOptions& o, const SnapshotBenchResult& r) {
  const auto speed = [](double bytes) { return absl::StrFormat("%.2f", bytes / 1e9); };
  const auto share = [](double a, double b) { return absl::StrFormat("%.0f %%", 100 * a / b); };
  const auto steps = [](const char* name, const SnapshotBenchResult::Steps& s) {
    return std::vector<std::string>{name, absl::StrCat(s.count), absl::StrFormat("%.0f", s.p50_us),
                                    absl::StrFormat("%.0f", s.p99_us), absl::StrFormat("%.0f", s.most_us)};
  };
  return absl::StrCat(
      absl::StrFormat("%d layers, %d tokens each, %.2f GB in the file\n\n", o.layers, r.tokens, r.bytes / 1e9),
      RenderTable({{"", "GB/s", "plain GB/s", "share", "GB/s beside steps"},
                   {"write", speed(r.write), speed(r.plain_write), share(r.write, r.plain_write), speed(r.busy_write)},
                   {"restore", speed(r.read), speed(r.plain_read), share(r.read, r.plain_read), speed(r.busy_read)}}),
      "\n",
      RenderTable({{"steps", "count", "p50 us", "p99 us", "max us"},
                   steps("alone", r.quiet),
                   steps("during snapshots", r.beside_write),
                   steps("during restores", r.beside_read)}),
      absl::StrFormat("\nwith %d forks: %.3f GB, alone %.3f GB\n", o.forks, r.family_bytes / 1e9, r.alone_bytes / 1e9),
      absl::StrFormat("steps' p99 is %.2f times the usual while a snapshot is written, %.2f times while one is read\n",
                      r.beside_write.p99_us / r.quiet.p99_us, r.beside_read.p99_us / r.quiet.p99_us));
}

absl::Status RunSnapshot(const SnapshotFlags& f) {
  const auto result = MeasureSnapshot(f.options);
  if (!result.ok()) return result.status();
  if (f.output == "json") {
    std::cout << ToJson(f.options, *result).dump(2) << std::endl;
  } else {
    std::cout << Render(f.options, *result) << std::flush;
  }
  return std::cout ? absl::OkStatus() : absl::UnavailableError("cannot write to standard output");
}

}  // namespace

void AddSnapshotCommand(CLI::App* app, std::function<absl::Status()>* run) {
  auto f = std::make_shared<SnapshotFlags>();
  SnapshotBenchOptions& o = f->options;
  CLI::App* command = app->add_subcommand("snapshot", kSnapshotDescription);
  command->add_option("--gib", o.gib, "about so much is written")
      ->check(CLI::Range(.01, 1024.0))
      ->capture_default_str();
  command->add_option("--layers", o.layers)->check(CLI::Range(1, 1024))->capture_default_str();
  command->add_option("--kv-heads", o.kv_heads)->check(CLI::Range(1, 128))->capture_default_str();
  command->add_option("--group", o.group, "query heads a KV head")->check(CLI::Range(1, 32))->capture_default_str();
  command->add_option("--head-dim", o.head_dim)
      ->check(CLI::IsMember(std::set<int>(std::begin(kHeadDims), std::end(kHeadDims))))
      ->capture_default_str();
  command->add_option("--repeat", o.repeat, "rounds")->check(CLI::Range(1, 1000))->capture_default_str();
  command->add_option("--forks", o.forks, "of the family")->check(CLI::Range(1, 1000))->capture_default_str();
  command->add_option("--threads", o.threads, "of the backend; 0: one a core")->check(CLI::Range(0, 1024));
  command->add_flag("--cached", o.cached, "read files from the page cache");
  command->add_option("--folder", o.folder, "that files are written to")->check(CLI::ExistingDirectory);
  command->add_option("-o,--output", f->output, "table or json")->check(CLI::IsMember({"table", "json"}));
  command->callback([f, run] { *run = [f] { return RunSnapshot(*f); }; });
}

}  // namespace seine::bench
