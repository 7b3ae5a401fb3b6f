// See drift_command.h.
#include "bench/commands/drift_command.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/commands/invalid_flag.h"
#include "bench/commands/value_flag.h"
#include "bench/drift/drift.h"
#include "bench/inputs/synthetic.h"
#include "bench/report/plot_file.h"
#include "bench/tables/drift_report.h"
#include "kernels/codecs/codec_traits.h"
#include "profile/profile.h"

namespace seine::bench {
namespace {

constexpr char kDriftDescription[] =
    "Recall over a decode that is longer than the prefill, whose keys drift away from it.\n"
    "\n"
    "A sequence is prefilled, then appended to window by window. At regular lengths the last positions ask, one query "
    "head at a time. Truth is the exact top-k of the keys so far, less the first `sink` and the last `local`. Every "
    "method names equally many candidates, and the best of them by exact scores answer. IVF names fewer where its "
    "lists hold fewer, Quest fills its last page, and Seine scores 200 exactly. The paper's pipeline scores none "
    "exactly; "
    "with --schedule paper its candidates are as many as its authors take at the zone's length.\n"
    "\n"
    "seine: the balanced code of a profile of other texts. rsq: analytic centroids. paper: "
    "ParisKV's pipeline; paper_no_rotation and paper_no_tiers leave out one part. pq: FAISS's product codes of "
    "head_dim / 4 bytes, 4 bits a code; pq8: 8 bits. pqcache: two codes of 6 bits a key, as PQCache sets them. ivf: "
    "inverted lists. All of FAISS's are trained on the prefill alone, and later keys are assigned to these centroids. "
    "pq_all and the like are trained on the whole sequence: what the prefill's centroids lose is the difference. lsh: "
    "MagicPIG's tables, by the most collisions and not by sampling as there; quest: pages of 16 keys; exact: every "
    "key.\n"
    "\n"
    "  bench/data/make_drift.sh > drift.txt\n"
    "  python -m seine_kv.trace --text drift.txt --tokens 8192 --queries-last 8192 \\\n"
    "    --out drift.safetensors\n"
    "  seine-bench drift --trace drift.safetensors --profile bench/data/smollm2-135m.profile.safetensors\n"
    "  seine-bench drift --synthetic drift --prefill 4096 --decode 16384 --plot drift.svg";

struct DriftFlags {
  DatasetOptions data;
  DriftOptions drift;
  std::vector<std::string> methods;
  std::string profile, schedule = "fixed", output = "table", plot;
};

void AddFlags(CLI::App* app, DriftFlags* f) {
  const char* data = "Data";
  app->add_option("--trace", f->data.trace, "safetensors file of a recorded model, with the queries of its decode")
      ->group(data);
  app->add_option("--layers", f->data.layers, "of the trace; all that it holds if absent")->delimiter(',')->group(data);
  app->add_option("--synthetic", f->data.synthetic,
                  "drift, anisotropic or gaussian, in place of a trace; its queries do not drift")
      ->group(data);
  app->add_option("--head-dim", f->data.head_dim, "of synthetic keys")->capture_default_str()->group(data);
  app->add_option("--seed", f->data.seed, "of synthetic keys, signs and hyperplanes")
      ->check(NoSign())
      ->capture_default_str()
      ->group(data);
  const char* sequence = "Sequence";
  app->add_option("--prefill", f->drift.prefill,
                  "tokens; absent: a fifth of the trace with --decode absent, 4096 synthetic")
      ->group(sequence);
  app->add_option("--decode", f->drift.decode, "tokens; absent: four times the prefill")->group(sequence);
  app->add_option("--points", f->drift.points, "of the decode that are measured")
      ->capture_default_str()
      ->group(sequence);
  app->add_option("--queries", f->drift.queries, "positions asked at a point")->capture_default_str()->group(sequence);
  app->add_option("--sink", f->drift.zone.sink, "first tokens left out")->capture_default_str()->group(sequence);
  app->add_option("--local", f->drift.zone.local, "last tokens left out; they bring the queries")
      ->capture_default_str()
      ->group(sequence);
  const char* search = "Search";
  app->add_option("--methods", f->methods,
                  absl::StrCat("of ", absl::StrJoin(StreamMethodNames(), ", "), "; absent: all but the last five"))
      ->delimiter(',')
      ->group(search);
  app->add_option("--top-k", f->drift.top_k, "keys wanted a query")->capture_default_str()->group(search);
  app->add_option("--candidate-fraction,--beta", f->drift.beta,
                  "share of the keys that are candidates; at least 4 * top-k and 256 are, as in every search of ours")
      ->capture_default_str()
      ->group(search);
  app->add_option("--schedule", f->schedule,
                  "fixed: the paper's methods have as many candidates as all; paper: as its authors take by the length "
                  "of the zone")
      ->check(CLI::IsMember({"fixed", "paper"}))
      ->capture_default_str()
      ->group(search);
  app->add_option("--profile", f->profile, "seine: the model's profile; absent: measured on the prefill")
      ->group(search);
  const char* run = "Run";
  app->add_option("-o,--output", f->output, "table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str()
      ->group(run);
  app->add_option("--plot", f->plot, "writes recall over the tokens so far: .svg or .png")->group(run);
}

bool Has(const DriftFlags& f, const std::string& method) {
  return std::find(f.methods.begin(), f.methods.end(), method) != f.methods.end();
}

absl::Status Check(const DriftFlags& f) {
  const DriftOptions& o = f.drift;
  if (o.points < 2) return InvalidFlag("points", "at least 2, the decode's ends");
  if (o.top_k < 1) return InvalidFlag("top-k", "at least 1");
  if (!(o.beta > 0 && o.beta <= 1)) return InvalidFlag("candidate-fraction", absl::StrCat(o.beta, " is not in (0, 1]"));
  if (o.zone.sink < 0) return InvalidFlag("sink", "at least 0");
  if (o.queries < 1 || o.queries > o.zone.local) {
    return InvalidFlag("queries", absl::StrCat(o.queries, " is not in [1, --local ", o.zone.local, "]"));
  }
  if (o.prefill < 0) return InvalidFlag("prefill", "at least 1");
  if (o.decode < 0) return InvalidFlag("decode", "at least 1");
  if (!f.profile.empty() && !Has(f, "seine")) return InvalidFlag("profile", "seine alone uses it, which does not run");
  const bool has_paper = Has(f, "paper") || Has(f, "paper_no_rotation") || Has(f, "paper_no_tiers");
  if (f.schedule == "paper" && !has_paper) return InvalidFlag("schedule", "none of the paper's methods runs");
  return absl::OkStatus();
}

// Tokens of the prefill and the decode, of a trace of `tokens`.
absl::Status FitTrace(const DatasetInfo& info, DriftOptions* o) {
  const int64_t tokens = info.num_tokens;
  if (o->prefill == 0) o->prefill = o->decode > 0 ? tokens - o->decode : tokens / 5;
  if (o->decode == 0) o->decode = std::min(4 * o->prefill, tokens - o->prefill);
  if (o->prefill < 1 || o->decode < 1 || o->prefill + o->decode > tokens) {
    return InvalidFlag("prefill", absl::StrCat(o->prefill, " and --decode ", o->decode, " do not fit the trace's ",
                                               tokens, " tokens"));
  }
  const int64_t needed = o->zone.FitLength(o->prefill) - o->queries;
  if (info.query_start > needed) {
    return InvalidFlag(
        "trace", absl::StrCat("has queries from position ", info.query_start, " on; this decode asks from ", needed,
                              " on; record it with a larger --queries-last"));
  }
  return absl::OkStatus();
}

absl::Status CheckPrefill(const DriftFlags& f, const DatasetInfo& info) {
  constexpr int64_t kFewestKeys = 256;  // as many as an 8-bit code has centroids
  const DriftOptions& o = f.drift;
  const int64_t keys = o.zone.FitLength(o.prefill) - o.zone.sink - o.zone.local;
  const int64_t least = std::max<int64_t>(kFewestKeys, o.top_k);
  if (o.prefill < o.zone.FitLength(o.prefill) || keys < least) {
    return InvalidFlag("prefill", absl::StrCat(o.prefill, " leaves ", keys, " keys between --sink and --local; ", least,
                                               " are needed"));
  }
  if (o.zone.FitLength(o.prefill + o.decode) == o.zone.FitLength(o.prefill)) {
    return InvalidFlag("decode", absl::StrCat(o.decode, " tokens fill no window of ", kWindowTokens, " keys"));
  }
  const bool has_own = info.synthetic || info.query_start < o.zone.FitLength(o.prefill) - o.queries;
  if (Has(f, "seine") && f.profile.empty() && !has_own) {
    return InvalidFlag("profile", "the trace has no queries of the prefill to measure; give a profile");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenData(DriftFlags* f) {
  DriftOptions& o = f->drift;
  if (f->data.trace.empty() && !f->data.synthetic.empty()) {
    auto kind = SyntheticKindOf(f->data.synthetic);
    if (kind.ok() && *kind == SyntheticKind::kRope) {
      return InvalidFlag("synthetic", "rope's queries follow the last key, and cannot ask earlier ones");
    }
    constexpr int64_t kUsualPrefill = 4096;
    if (o.prefill == 0) o.prefill = kUsualPrefill;
    if (o.decode == 0) o.decode = 4 * o.prefill;
    f->data.num_keys = o.zone.FitLength(o.prefill + o.decode);
    f->data.granule = 1;
    f->data.num_queries = o.queries;
    f->data.own_queries = true;
    return Dataset::Open(f->data);
  }
  f->data.all_queries = true;
  f->data.sink = f->data.local = 1;  // the zone is of drift's own shape
  auto dataset = Dataset::Open(f->data);
  if (!dataset.ok()) return dataset;
  if (absl::Status s = FitTrace((*dataset)->info(), &o); !s.ok()) return s;
  f->data.tokens = o.zone.FitLength(o.prefill + o.decode);
  return Dataset::Open(f->data);
}

absl::StatusOr<StreamOptions> MethodOptions(const DriftFlags& f, const DatasetInfo& info) {
  StreamOptions o;
  o.data = info;
  o.top_k = f.drift.top_k;
  o.prefill = f.drift.zone.FitLength(f.drift.prefill);
  o.seed = f.data.seed;
  o.paper_schedule = f.schedule == "paper";
  if (!f.profile.empty()) {
    auto profile = ReadProfile(f.profile);
    if (!profile.ok())
      return absl::Status(profile.status().code(), absl::StrCat("--profile: ", profile.status().message()));
    o.profile = std::make_shared<const Profile>(*std::move(profile));
  }
  if (!info.rope_json.empty()) {
    auto rope = ParseRope(info.rope_json, info.head_dim, info.rope_style, info.num_tokens);
    if (!rope.ok())
      return absl::Status(rope.status().code(), absl::StrCat("the data's rope: ", rope.status().message()));
    o.rope = *std::move(rope);
  }
  return o;
}

absl::Status Run(DriftFlags f) {
  if (f.methods.empty()) f.methods = UsualStreamMethods();
  if (absl::Status s = Check(f); !s.ok()) return s;
  if (absl::Status s = CheckPlotPath(f.plot); !s.ok()) return s;
  auto dataset = OpenData(&f);
  if (!dataset.ok()) return dataset.status();
  const DatasetInfo& info = (*dataset)->info();
  if (absl::Status s = CheckPrefill(f, info); !s.ok()) return s;
  auto options = MethodOptions(f, info);
  if (!options.ok()) return options.status();
  const auto backend = MakeCpuBackend(/*threads=*/1);
  std::vector<NamedMethod> methods;
  for (const std::string& name : f.methods) {
    auto method = MakeStreamMethod(name, *options, backend.get());
    if (!method.ok()) return method.status();
    methods.emplace_back(name, *std::move(method));
  }
  auto rows = MeasureDrift(**dataset, f.drift, methods);
  if (!rows.ok()) return rows.status();
  const std::string profile = !Has(f, "seine") ? "" : f.profile.empty() ? "prefill" : f.profile;
  const DriftReport report{info, f.drift, profile, f.schedule, f.data.seed, *std::move(rows)};
  if (f.output == "json") {
    std::cout << ToJson(report).dump(2) << std::endl;
  } else {
    std::cout << RenderText(report) << std::flush;
  }
  if (!std::cout) return absl::UnavailableError("cannot write to standard output");
  return WritePlot(MakePlot(report), f.plot);
}

}  // namespace

void AddDriftCommand(CLI::App* app, std::function<absl::Status()>* run) {
  CLI::App* command = app->add_subcommand("drift", kDriftDescription);
  auto flags = std::make_shared<DriftFlags>();
  AddFlags(command, flags.get());
  command->callback([flags, run] { *run = [flags] { return Run(*flags); }; });
}

}  // namespace seine::bench
