// See idle_command.h.
#include "bench/idle/idle_command.h"

#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/idle/idle_bench.h"
#include "bench/report/table.h"
#include "kernels/types.h"

namespace seine::bench {
namespace {

constexpr char kIdleDescription[] =
    "Answers and first steps where sequences outgrow memory.\n"
    "\n"
    "Sequences of synthetic keys and values take --ratio times what memory may hold. The idle tier has the rest in "
    "files. Decode steps (append a token to every layer, attend) ask them by Zipf's law. Each answer is compared, bit "
    "for bit, with that of an index that holds everything in memory. A first step is one on a sequence that was on "
    "disk. The run fails where an answer is wrong, or a step is refused.\n"
    "\n"
    "  seine-bench idle --sequences 200 --ratio 10 --folder /var/tmp -o json";

struct IdleFlags {
  IdleBenchOptions options;
  std::string output = "table";
};

using OrderedJson = nlohmann::ordered_json;

OrderedJson ToJson(const IdleBenchOptions& o, const IdleBenchResult& r) {
  return {{"sequences", o.sequences},
          {"tokens", o.tokens},
          {"layers", o.layers},
          {"kv_heads", o.kv_heads},
          {"group", o.group},
          {"head_dim", o.head_dim},
          {"threads", o.threads},
          {"zipf", o.zipf},
          {"bytes", r.bytes},
          {"memory_limit_bytes", r.limit_bytes},
          {"disk_bytes", r.disk_bytes},
          {"steps", r.steps},
          {"checked", r.checked},
          {"wrong", r.wrong},
          {"refused", r.refused},
          {"restores", r.restores},
          {"spills", r.spills},
          {"failed", r.failed},
          {"first_steps", r.first_step.count},
          {"first_step_ms_p50", r.first_step.p50_ms},
          {"first_step_ms_p99", r.first_step.p99_ms},
          {"first_step_ms_max", r.first_step.most_ms},
          {"step_ms_p50", r.step.p50_ms},
          {"step_ms_p99", r.step.p99_ms},
          {"step_ms_max", r.step.most_ms}};
}

std::string Render(const IdleBenchOptions& o, const IdleBenchResult& r) {
  const auto row = [](const char* name, const IdleBenchResult::Times& t) {
    return std::vector<std::string>{name, absl::StrCat(t.count), absl::StrFormat("%.2f", t.p50_ms),
                                    absl::StrFormat("%.2f", t.p99_ms), absl::StrFormat("%.2f", t.most_ms)};
  };
  return absl::StrCat(
      absl::StrFormat("%d sequences of %d tokens and %d layers: %.1f MB; memory holds %.1f MB\n\n", o.sequences,
                      o.tokens, o.layers, r.bytes / 1e6, r.limit_bytes / 1e6),
      RenderTable({{"steps", "count", "p50 ms", "p99 ms", "max ms"},
                   row("on disk before", r.first_step),
                   row("in memory", r.step)}),
      absl::StrFormat(
          "\n%d answers checked, %d wrong, %d refused; %d restores, %d spills, %d failed; %.1f MB on disk\n", r.checked,
          r.wrong, r.refused, r.restores, r.spills, r.failed, r.disk_bytes / 1e6),
      r.first_step.count == 0 || r.step.p50_ms <= 0
          ? ""
          : absl::StrFormat("a step of a sequence on disk takes %.1f times one in memory (medians)\n",
                            r.first_step.p50_ms / r.step.p50_ms));
}

absl::Status RunIdle(const IdleFlags& f) {
  const auto result = MeasureIdle(f.options);
  if (!result.ok()) return result.status();
  if (f.output == "json") {
    std::cout << ToJson(f.options, *result).dump(2) << std::endl;
  } else {
    std::cout << Render(f.options, *result) << std::flush;
  }
  if (!std::cout) return absl::UnavailableError("cannot write to standard output");
  if (result->wrong == 0 && result->refused == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(result->wrong, " answers are wrong, ", result->refused, " were refused"));
}

}  // namespace

void AddIdleCommand(CLI::App* app, std::function<absl::Status()>* run) {
  auto f = std::make_shared<IdleFlags>();
  IdleBenchOptions& o = f->options;
  CLI::App* command = app->add_subcommand("idle", kIdleDescription);
  command->add_option("--sequences", o.sequences, "every fourth is a fork")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--ratio", o.ratio, "of all sequences to what memory holds")
      ->check(CLI::Range(1.0, 1000.0))
      ->capture_default_str();
  command->add_option("--tokens", o.tokens, "of each layer of a sequence")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24))
      ->capture_default_str();
  command->add_option("--steps", o.steps)->check(CLI::Range(int64_t{1}, int64_t{1} << 40))->capture_default_str();
  command->add_option("--zipf", o.zipf, "exponent; 0: all are asked alike")
      ->check(CLI::Range(0.0, 4.0))
      ->capture_default_str();
  command->add_option("--threads", o.threads, "that make steps")->check(CLI::Range(1, 256))->capture_default_str();
  command->add_option("--layers", o.layers)->check(CLI::Range(1, 1024))->capture_default_str();
  command->add_option("--kv-heads", o.kv_heads)->check(CLI::Range(1, 128))->capture_default_str();
  command->add_option("--group", o.group, "query heads a KV head")->check(CLI::Range(1, 32))->capture_default_str();
  command->add_option("--head-dim", o.head_dim)
      ->check(CLI::IsMember(std::set<int>(std::begin(kHeadDims), std::end(kHeadDims))))
      ->capture_default_str();
  command->add_option("--folder", o.folder, "that files are written to")->check(CLI::ExistingDirectory);
  command->add_option("-o,--output", f->output, "table or json")->check(CLI::IsMember({"table", "json"}));
  command->callback([f, run] { *run = [f] { return RunIdle(*f); }; });
}

}  // namespace seine::bench
