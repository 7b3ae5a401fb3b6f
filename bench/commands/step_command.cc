// See step_command.h.
#include "bench/commands/step_command.h"

#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "bench/commands/codec_flags.h"
#include "bench/commands/invalid_flag.h"
#include "bench/commands/value_flag.h"
#include "bench/inputs/layer_data.h"
#include "bench/measures/step.h"
#include "bench/report/plot_file.h"
#include "bench/tables/step_report.h"
#include "kernels/codecs/codec_traits.h"

namespace seine::bench {
namespace {

constexpr char kStepDescription[] =
    "Time of one layer's decode step in process, by stage, beside exact attention.\n"
    "\n"
    "A step asks the queries of all heads at one position. Retrieve finds the keys; Attend also computes the attention "
    "over them, with the tail, one set a query head. The peer is exact attention over every fp16 key and value, by our "
    "own SIMD, each row read once a group. The three take turns, each with other queries on the next layer; times are "
    "medians. The floor is what the bytes alone take: codes, records of candidates and exact rows, each read once a "
    "group at the bandwidth measured in the same run. Break-even is the zone length from which on a step is faster "
    "than "
    "exact attention.\n"
    "\n"
    "  seine-bench step --kv-heads 8 --group 4 --num-keys 2048,8192,32768,131072,1048576 --plot step.svg\n"
    "  seine-bench step --trace bench/data/smollm2-135m-kjv-8k.safetensors --layers 3 -o json";

struct StepFlags {
  LayerDataOptions data;
  StepOptions options;
  std::optional<int> kv_heads, group, head_dim;
  std::string codec = "balanced", scope = "q_head", cache = "cold", output = "table", plot;
  std::string synthetic;
};

void AddFlags(CLI::App* app, StepFlags* f) {
  using CLI::IsMember;
  f->options.num_keys = {2048, 8192, 32768, 131072};
  SearchParams& search = f->options.search;
  const char* data = "Data";
  app->add_option("--trace", f->data.trace, "safetensors file of a recorded model; absent: synthetic keys")
      ->group(data);
  app->add_option("--synthetic", f->synthetic, "synthetic keys: gaussian, anisotropic, rope or drift; absent: rope")
      ->group(data);
  app->add_option("--num-keys", f->options.num_keys,
                  "keys of the zone, multiples of 64; several. A trace cuts them to what it holds")
      ->delimiter(',')
      ->capture_default_str()
      ->group(data);
  app->add_option("--layers", f->data.layers, "that steps take in turns; of a trace, its first ones")
      ->capture_default_str()
      ->group(data);
  app->add_option("--kv-heads", f->kv_heads, "of synthetic keys; absent: 8")->group(data);
  app->add_option("--group", f->group, "query heads a KV head, of synthetic keys; absent: 4")->group(data);
  app->add_option("--head-dim", f->head_dim, "of synthetic keys; absent: 128")->group(data);
  app->add_option("--sink", f->data.sink, "dense tokens before the zone")->capture_default_str()->group(data);
  app->add_option("--local", f->data.local, "dense tokens after the zone")->capture_default_str()->group(data);
  app->add_option("--seed", f->data.seed, "of synthetic keys")->check(NoSign())->capture_default_str()->group(data);
  const char* group = "Search";
  app->add_option("--top-k", search.top_k, "keys wanted a query")->capture_default_str()->group(group);
  app->add_option("--candidate-fraction,--beta", search.candidate_fraction,
                  "share of the keys kept as candidates (default: the codec's)")
      ->group(group);
  app->add_option("--recall-target", search.recall_target,
                  "balanced: in place of it, the predicted share of the exact top-k that the candidates hold")
      ->group(group);
  app->add_option("--rescore-k,--refine", search.rescore_k,
                  "survivors of the rerank scored exactly; below top-k: top-k")
      ->capture_default_str()
      ->group(group);
  app->add_option("--scope", f->scope, "Retrieve's: one answer per q_head or per kv_head")
      ->transform(ValueOf("Scope"))
      ->capture_default_str()
      ->group(group);
  app->add_option("--codec", f->codec, "balanced, with a profile measured on the keys, or rsq")
      ->check(IsMember(CodecNames()))
      ->capture_default_str()
      ->group(group);
  AddCodecFlags(app, &f->options.codec, group);
  const char* run = "Run";
  app->add_option("--cache", f->cache, "cold: emptied before each step, as the rest of a model does; warm: not")
      ->check(IsMember({"cold", "warm"}))
      ->capture_default_str()
      ->group(run);
  app->add_option("--threads", f->options.threads, "of the backend")->capture_default_str()->group(run);
  app->add_option("--repeat", f->options.repeat, "steps of each kind; 0: 51, or fewer where they take long")
      ->capture_default_str()
      ->group(run);
  app->add_option("-o,--output", f->output, "table or json")
      ->check(IsMember({"table", "json"}))
      ->capture_default_str()
      ->group(run);
  app->add_option("--plot", f->plot, "writes time against keys: .svg or .png")->group(run);
}

absl::Status CheckFlags(const StepFlags& f) {
  const SearchParams& s = f.options.search;
  const CodecTraits& traits = TraitsOf(f.codec);
  if (absl::Status wrong = Validate(s); !wrong.ok()) {  // "top_k: ..." is the flag top-k's
    const std::pair<std::string, std::string> said = absl::StrSplit(wrong.message(), absl::MaxSplits(": ", 1));
    return InvalidFlag(absl::StrReplaceAll(said.first, {{"_", "-"}}), said.second);
  }
  if (s.recall_target > 0 && !traits.predicts_noise) {
    return InvalidFlag("recall-target", absl::StrCat("the ", traits.name, " code does not predict its noise"));
  }
  if (f.options.threads < 1) return InvalidFlag("threads", "at least 1");
  if (f.options.repeat < 0) return InvalidFlag("repeat", "at least 0");
  if (f.options.num_keys.empty()) return InvalidFlag("num-keys", "at least one");
  if (f.data.trace.empty()) return absl::OkStatus();
  if (!f.synthetic.empty()) return absl::InvalidArgumentError("give one of --trace FILE and --synthetic KIND");
  for (const auto& [name, given] : {std::pair("kv-heads", f.kv_heads), {"group", f.group}, {"head-dim", f.head_dim}}) {
    if (given) return InvalidFlag(name, "only synthetic keys take it; a trace has its own");
  }
  return absl::OkStatus();
}

// Ascending, each once, and no longer than the source's.
absl::Status TakeLengths(const LayerSource& source, StepFlags* f) {
  std::vector<int64_t>& lengths = f->options.num_keys;
  for (int64_t& keys : lengths) {
    if (keys < kWindowTokens || keys % kWindowTokens != 0) {
      return InvalidFlag("num-keys", absl::StrCat(keys, " is no multiple of ", kWindowTokens));
    }
    if (!f->data.trace.empty()) keys = std::min(keys, source.most_keys());
    if (keys > source.most_keys()) {
      return InvalidFlag("num-keys", absl::StrCat(keys, " is more than ", source.most_keys()));
    }
    if (keys <= f->options.search.top_k) {
      return InvalidFlag("top-k",
                         absl::StrCat(f->options.search.top_k, " is not less than the zone's ", keys, " keys"));
    }
  }
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return absl::OkStatus();
}

// The processor as Linux names it; empty where it does not.
std::string MachineName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

absl::StatusOr<std::unique_ptr<LayerSource>> Prepare(StepFlags* f) {
  if (absl::Status s = CheckFlags(*f); !s.ok()) return s;
  if (absl::Status s = CheckPlotPath(f->plot); !s.ok()) return s;
  if (!f->synthetic.empty()) f->data.synthetic = f->synthetic;
  f->data.kv_heads = f->kv_heads.value_or(f->data.kv_heads);
  f->data.group = f->group.value_or(f->data.group);
  f->data.head_dim = f->head_dim.value_or(f->data.head_dim);
  f->data.profile = TraitsOf(f->codec).needs_profile;
  f->data.top_k = f->options.search.top_k;
  f->data.scope = f->options.search.scope = f->scope == "kv_head" ? Scope::kPerKvHead : Scope::kPerQHead;
  f->options.codec.name = f->codec;
  f->options.cold = f->cache == "cold";
  auto source = LayerSource::Open(f->data);
  if (!source.ok()) return source.status();
  if (f->data.profile) {  // before the data, which take long
    absl::Status s = ValidateOptions(f->options.codec, (*source)->options().head_dim);
    if (!s.ok()) return s;
  }
  if (absl::Status s = TakeLengths(**source, f); !s.ok()) return s;
  return source;
}

absl::Status Run(StepFlags f) {
  auto source = Prepare(&f);
  if (!source.ok()) return source.status();
  const auto backend = MakeCpuBackend(f.options.threads);
  MemoryProbe probe(backend.get());
  if (!probe.ok()) return absl::ResourceExhaustedError("not enough memory to measure the read bandwidth");
  constexpr int kBandwidthPasses = 8;
  probe.Measure(kBandwidthPasses, f.options.threads);
  auto rows = MeasureStep(**source, f.options, backend.get(), &probe);
  if (!rows.ok()) return rows.status();
  const StepReport report{(*source)->info(),      (*source)->options(), f.options,
                          backend->simd_target(), MachineName(),        probe.best_gb_s(),
                          LastLevelCacheBytes(),  *std::move(rows)};
  std::cout << (f.output == "json" ? ToJson(report).dump(2) + "\n" : RenderText(report)) << std::flush;
  if (!std::cout) return absl::UnavailableError("cannot write to standard output");
  return WritePlot(MakePlot(report), f.plot);
}

}  // namespace

void AddStepCommand(CLI::App* app, std::function<absl::Status()>* run) {
  CLI::App* command = app->add_subcommand("step", kStepDescription);
  auto flags = std::make_shared<StepFlags>();
  AddFlags(command, flags.get());
  command->callback([flags, run] { *run = [flags] { return Run(*flags); }; });
}

}  // namespace seine::bench
