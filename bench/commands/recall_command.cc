// See recall_command.h.
#include "bench/commands/recall_command.h"

#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/commands/invalid_flag.h"
#include "bench/commands/value_flag.h"
#include "bench/measures/recall.h"
#include "bench/methods/method.h"
#include "bench/methods/peers.h"
#include "bench/report/plot_file.h"
#include "bench/report/report.h"
#include "index/config.h"
#include "kernels/codecs/codec_traits.h"
#include "profile/profile.h"
#include "profile/rope.h"

namespace seine::bench {
namespace {

constexpr char kRecallDescription[] =
    "Recall and speed of retrieval against exact attention, on a recorded trace or made-up keys.\n"
    "\n"
    "Keys are the tokens [sink, n - local) of a trace, cut to a multiple of 64 (or of --window); queries are those of "
    "the last `local` positions that the trace holds, one query head at a time. Truth is the exact top-k in fp32. "
    "Figures are means over queries, heads and layers; times are medians of one thread, with the caches emptied before "
    "each answer.\n"
    "\n"
    "  seine-bench recall --trace bench/data/smollm2-135m-kjv-8k.safetensors --beta .05,.10,.25 --compare\n"
    "  seine-bench recall --synthetic rope --num-keys 1048576 --head-dim 128 --beta .02 \\\n"
    "    --peers \"python3 bench/methods/peers.py\"";

struct RecallFlags {
  DatasetOptions data;
  int top_k = 100, window = 64, refine = 200, threads = 1;
  std::string codec, profile, coarse = "sign_ip", centre, scope = "q_head", reduce = "softmax_sum";
  std::optional<int64_t> horizon;
  double coarse_bits = 1, total_bits = 2;
  std::vector<double> betas = {.05};
  std::vector<double> recall_targets;
  double rho = .2;
  std::string backend = "cpu", cache = "cold", output = "table", plot, peers;
  std::vector<std::string> baselines;
  bool compare = false;
};

void AddFlags(CLI::App* app, RecallFlags* f) {
  using CLI::IsMember;
  const char* data = "Data";
  app->add_option("--trace", f->data.trace, "safetensors file of a recorded model (bench/data)")->group(data);
  app->add_option("--layers", f->data.layers, "of the trace; all that it holds if absent")->delimiter(',')->group(data);
  app->add_option("--sink", f->data.sink, "first tokens left out")->capture_default_str()->group(data);
  app->add_option("--local", f->data.local, "last tokens left out; they bring the queries")
      ->capture_default_str()
      ->group(data);
  app->add_option("--synthetic", f->data.synthetic, "gaussian, anisotropic, rope or drift, in place of a trace")
      ->group(data);
  app->add_option("--num-keys", f->data.num_keys, "made-up keys")->capture_default_str()->group(data);
  app->add_option("--head-dim", f->data.head_dim, "of made-up keys")->capture_default_str()->group(data);
  app->add_option("--seed", f->data.seed, "of made-up keys")->capture_default_str()->group(data);
  app->add_option("--num-queries", f->data.num_queries, "positions asked; absent: all of a trace, 64 made up")
      ->group(data);
  app->add_option("--dtype", f->data.dtype,
                  "of the stored keys: fp32, fp16 or bf16; absent: the trace's own, fp32 made up")
      ->transform(ValueOf("DType"))
      ->group(data);
  const char* search = "Search";
  app->add_option("--top-k", f->top_k, "keys wanted a query")->capture_default_str()->group(search);
  app->add_option("--beta", f->betas, "share of the keys kept as candidates; several: .02,.05,.10")
      ->delimiter(',')
      ->capture_default_str()
      ->group(search);
  app->add_option("--recall-target", f->recall_targets,
                  "balanced: also, candidates by the predicted share of the exact top-k that they hold: .9,.99")
      ->delimiter(',')
      ->group(search);
  app->add_option("--refine", f->refine, "survivors of the rerank scored exactly; below top-k: top-k, the paper's")
      ->capture_default_str()
      ->group(search);
  app->add_option("--codec", f->codec, "balanced, or rsq (ParisKV's); absent: balanced with --profile, else rsq")
      ->check(IsMember(CodecNames()))
      ->group(search);
  app->add_option("--profile", f->profile,
                  "balanced: the model's profile; absent: measured on the keys and on queries that are not asked")
      ->group(search);
  app->add_option("--horizon", f->horizon,
                  absl::StrCat("balanced: positions ahead that queries are expected at; absent: ", kDefaultHorizon))
      ->group(search);
  app->add_option("--coarse-bits", f->coarse_bits, "balanced: bits a coordinate of the scanned plane, .5, 1 or 2")
      ->capture_default_str()
      ->group(search);
  app->add_option("--total-bits", f->total_bits, "balanced: bits a coordinate in all, 2 to 4")
      ->capture_default_str()
      ->group(search);
  app->add_option("--coarse", f->coarse, "first stage: sign_ip, or the paper's collision")
      ->transform(ValueOf("Coarse"))
      ->capture_default_str()
      ->group(search);
  app->add_option("--rho", f->rho, "collision: share of the keys that the tiers cover")
      ->capture_default_str()
      ->group(search);
  app->add_option(
         "--centre", f->centre,
         "what keys are encoded against: window, global or none (the paper); absent: window, none for collision")
      ->transform(ValueOf("Centre"))
      ->group(search);
  app->add_option("--window", f->window, "tokens that share a centre")->capture_default_str()->group(search);
  app->add_option("--scope", f->scope, "one answer per q_head or per kv_head")
      ->transform(ValueOf("Scope"))
      ->capture_default_str()
      ->group(search);
  app->add_option("--reduce,--gqa-reduce", f->reduce, "how a kv_head's query heads agree: softmax_sum, max or mean")
      ->transform(ValueOf("GqaReduce"))
      ->capture_default_str()
      ->group(search);
  const char* peers = "Peers in the same run and table";
  app->add_flag("--compare", f->compare, "the paper's pipeline and every FAISS baseline")->group(peers);
  app->add_option("--baseline", f->baselines, "faiss_flat, faiss_pq_fastscan, faiss_ivfpq; several")
      ->delimiter(',')
      ->group(peers);
  app->add_option("--peers", f->peers,
                  "command that runs bench/methods/peers.py with a Python that has numpy and faiss-cpu")
      ->group(peers);
  const char* run = "Run";
  app->add_option("--backend", f->backend, "cpu or cuda")->check(IsMember({"cpu", "cuda"}))->group(run);
  app->add_option("--threads", f->threads, "of the backend; times are of one thread by default")
      ->capture_default_str()
      ->group(run);
  app->add_option("--cache", f->cache, "cold: emptied before each timed answer; warm: not")
      ->check(IsMember({"cold", "warm"}))
      ->capture_default_str()
      ->group(run);
  app->add_option("-o,--output", f->output, "table or json")
      ->check(IsMember({"table", "json"}))
      ->capture_default_str()
      ->group(run);
  app->add_option("--plot", f->plot, "writes recall against time: .svg or .png")->group(run);
}

Centre CentreOf(const std::string& name) {
  return name == "none" ? Centre::kNone : name == "global" ? Centre::kGlobal : Centre::kWindow;
}

// What the data set and the index do not check themselves, under the names of the flags.
absl::Status Check(const RecallFlags& f) {
  const CodecTraits& traits = TraitsOf(f.codec);
  if (f.top_k < 1) return InvalidFlag("top-k", "at least 1");
  for (double beta : f.betas) {
    if (!(beta > 0 && beta <= 1)) return InvalidFlag("beta", absl::StrCat(beta, " is not in (0, 1]"));
  }
  for (double target : f.recall_targets) {
    if (!(target > 0 && target < 1)) return InvalidFlag("recall-target", absl::StrCat(target, " is not in (0, 1)"));
    if (!traits.predicts_noise) {
      return InvalidFlag("recall-target",
                         absl::StrCat("only the ", DefaultCodec(true).name, " code predicts its noise"));
    }
  }
  if (!(f.rho > 0 && f.rho <= 1)) return InvalidFlag("rho", absl::StrCat(f.rho, " is not in (0, 1]"));
  if (f.refine < 0) return InvalidFlag("refine", "at least 0");
  constexpr int kWidestWindow = 2048;  // index/config.h
  if (f.window < kWindowTokens || f.window > kWidestWindow || f.window % kWindowTokens != 0) {
    return InvalidFlag("window",
                       absl::StrCat(f.window, " is no multiple of ", kWindowTokens, " up to ", kWidestWindow));
  }
  if (f.coarse == "collision" && !traits.Supports(Coarse::kCollision))
    return InvalidFlag("coarse", absl::StrCat("the ", traits.name, " code is scanned by sign_ip"));
  if (!f.centre.empty() && !traits.Supports(CentreOf(f.centre)))
    return InvalidFlag("centre", absl::StrCat("the ", traits.name, " code has a centre a window"));
  if (f.coarse == "collision" && f.centre == "window")
    return InvalidFlag("centre", "collision leaves out what windows' centres add; it needs none or global");
  if (!traits.needs_profile && !f.profile.empty()) {
    return InvalidFlag("profile",
                       absl::StrCat(traits.name, " needs none; leave it out, or --codec ", DefaultCodec(true).name));
  }
  if (f.threads < 0) return InvalidFlag("threads", "at least 0 (one a core)");
  if (f.scope == "kv_head" && (f.compare || !f.baselines.empty() || !f.peers.empty())) {
    return InvalidFlag("scope", "peers answer per q_head only");
  }
  return absl::OkStatus();
}

SearchParams Search(const RecallFlags& f) {
  SearchParams p;
  p.top_k = f.top_k;
  p.beta = f.betas.front();
  p.rho = f.rho;
  p.refine = f.refine;
  p.coarse = f.coarse == "collision" ? Coarse::kCollision : Coarse::kSignIp;
  p.scope = f.scope == "kv_head" ? Scope::kPerKvHead : Scope::kPerQHead;
  p.reduce = f.reduce == "max" ? GqaReduce::kMax : f.reduce == "mean" ? GqaReduce::kMean : GqaReduce::kSoftmaxSum;
  return p;
}

std::string NameOf(const SeineOptions& o) {
  const bool collision = o.search.coarse == Coarse::kCollision;
  const std::string centre = o.centre == Centre::kNone     ? "no centre"
                             : o.centre == Centre::kGlobal ? "global centre"
                                                           : absl::StrCat("window ", o.centre_tokens);
  if (TraitsOf(o.codec).needs_profile) {
    return absl::StrFormat("seine %s %g+%g, window %d, %s, refine %d", o.codec, o.coarse_bits,
                           o.total_bits - o.coarse_bits, o.centre_tokens, o.profile ? "profile" : "own profile",
                           std::max(o.search.refine, o.search.top_k));
  }
  return absl::StrCat("seine ", o.codec, ", ", collision ? "collision" : "sign_ip", ", ", centre, ", refine ",
                      std::max(o.search.refine, o.search.top_k));
}

absl::StatusOr<SeineOptions> Primary(const RecallFlags& f, const DatasetInfo& info) {
  SeineOptions o;
  o.data = info;
  if (!f.profile.empty()) {
    auto profile = ReadProfile(f.profile);
    if (!profile.ok())
      return absl::Status(profile.status().code(), absl::StrCat("--profile: ", profile.status().message()));
    o.profile = std::make_shared<const Profile>(*std::move(profile));
  }
  if (TraitsOf(f.codec).needs_profile && !info.rope_json.empty()) {
    auto rope = ParseRope(info.rope_json, info.head_dim, info.rope_style, info.num_tokens);
    if (!rope.ok())
      return absl::Status(rope.status().code(), absl::StrCat("the data's rope: ", rope.status().message()));
    o.rope = *std::move(rope);
  }
  if (f.horizon && !o.rope.stated()) {
    return InvalidFlag("horizon", TraitsOf(f.codec).needs_profile ? "the data state no RoPE, so it would have no effect"
                                                                  : absl::StrCat(f.codec, " has none"));
  }
  o.horizon = f.horizon.value_or(kDefaultHorizon);
  o.coarse_bits = f.coarse_bits;
  o.total_bits = f.total_bits;
  if (TraitsOf(f.codec).needs_profile) {  // before the exact answers, which take long
    CodecConfig bits;
    bits.name = f.codec;
    bits.coarse_bits = f.coarse_bits;
    bits.total_bits = f.total_bits;
    if (absl::Status s = ValidateBits(bits, info.head_dim); !s.ok()) return s;
  }
  o.search = Search(f);
  const std::string centre = !f.centre.empty() ? f.centre : f.coarse == "collision" ? "none" : "window";
  o.centre = CentreOf(centre);
  o.centre_tokens = f.window;
  o.codec = f.codec;
  o.group = o.search.scope == Scope::kPerKvHead ? info.group : 1;
  o.head_dim = info.head_dim;
  o.dtype = info.dtype;
  o.betas = f.betas;
  o.recall_targets = f.recall_targets;
  o.with_exact = true;
  o.name = NameOf(o);
  return o;
}

// ParisKV as published: collision scores, no centres, the rerank's best are the answer.
SeineOptions Paper(const SeineOptions& primary) {
  SeineOptions o = primary;
  o.codec = DefaultCodec(/*with_profile=*/false).name;
  o.recall_targets.clear();
  o.search.coarse = Coarse::kCollision;
  o.centre = Centre::kNone;
  o.search.refine = o.search.top_k;
  o.with_exact = false;
  o.name = absl::StrCat("paper: ", NameOf(o).substr(6));
  return o;
}

absl::StatusOr<std::vector<std::unique_ptr<Method>>> MakeMethods(const RecallFlags& f, const DatasetInfo& info,
                                                                 Backend* backend) {
  const auto made_primary = Primary(f, info);
  if (!made_primary.ok()) return made_primary.status();
  const SeineOptions& primary = *made_primary;
  std::vector<std::unique_ptr<Method>> methods;
  methods.push_back(MakeSeineMethod(primary, backend));
  if (f.compare && TraitsOf(primary.codec).needs_profile) {
    SeineOptions rsq = primary;
    rsq.codec = DefaultCodec(/*with_profile=*/false).name;
    rsq.recall_targets.clear();
    rsq.search.refine = std::max(200, f.top_k);
    rsq.with_exact = false;
    rsq.name = NameOf(rsq);
    methods.push_back(MakeSeineMethod(rsq, backend));
  }
  if (info.dtype == DType::kFloat32) {  // engines keep 16 bits a key, and exact search gains most from that
    SeineOptions narrow = primary;
    narrow.dtype = DType::kFloat16;
    narrow.codec = DefaultCodec(/*with_profile=*/false).name;  // only its exact scan runs
    narrow.betas.clear();
    narrow.recall_targets.clear();
    methods.push_back(MakeSeineMethod(narrow, backend));
  }
  if (f.compare) methods.push_back(MakeSeineMethod(Paper(primary), backend));
  std::vector<std::string> baselines = f.baselines;
  if (f.compare && baselines.empty()) baselines = {"faiss_flat", "faiss_pq_fastscan", "faiss_ivfpq"};
  for (const std::string& name : baselines) {
    auto made = MakeFaissMethods(name, info.head_dim, f.top_k, info.num_keys(), f.betas);
    if (!made.ok()) return made.status();
    for (auto& method : *made) methods.push_back(std::move(method));
  }
  return methods;
}

RecallOptions Options(const RecallFlags& f, const DatasetInfo& info) {
  RecallOptions o;
  o.truth.head_dim = info.head_dim;
  o.truth.group = f.scope == "kv_head" ? info.group : 1;
  o.truth.top_k = f.top_k;
  o.truth.scope = Search(f).scope;
  o.truth.reduce = Search(f).reduce;
  o.truth.softmax_scale = 1 / std::sqrt(static_cast<float>(info.head_dim));
  o.cold = f.cache == "cold";
  return o;
}

absl::Status Print(const RecallFlags& f, const RecallReport& report) {
  if (f.output == "json") {
    std::cout << ToJson(report).dump(2) << std::endl;
  } else {
    std::cout << RenderText(report) << std::flush;
  }
  if (!std::cout) return absl::UnavailableError("cannot write to standard output");
  return WritePlot(MakePlot(report), f.plot);
}

absl::Status Run(RecallFlags f) {
  if (f.codec.empty()) f.codec = DefaultCodec(!f.profile.empty()).name;
  if (absl::Status s = Check(f); !s.ok()) return s;
  if (absl::Status s = CheckPlotPath(f.plot); !s.ok()) return s;
  f.data.granule = f.window;
  f.data.own_queries = TraitsOf(f.codec).needs_profile && f.profile.empty();
  auto dataset = Dataset::Open(f.data);
  if (!dataset.ok()) return dataset.status();
  const DatasetInfo& info = (*dataset)->info();
  if (f.top_k > info.num_keys()) {
    return InvalidFlag("top-k", absl::StrCat(f.top_k, " is more than the ", info.num_keys(), " keys of a head"));
  }
  std::string why;
  const auto host = MakeCpuBackend(f.threads), backend = MakeBackend(f.backend, f.threads, &why);
  if (backend == nullptr) return absl::FailedPreconditionError(absl::StrCat("--backend: ", why));
  auto methods = MakeMethods(f, info, backend.get());
  if (!methods.ok()) return methods.status();
  MemoryProbe probe(host.get());
  if (!probe.ok()) return absl::ResourceExhaustedError("not enough memory to measure the read bandwidth");
  constexpr int kBandwidthPasses = 8;
  probe.Measure(kBandwidthPasses);
  const RecallOptions options = Options(f, info);
  auto rows = MeasureRecall(**dataset, options, *methods, &probe);
  if (!rows.ok()) return rows.status();

  RecallReport report{info,
                      f.top_k,
                      options.truth.scope,
                      options.cold,
                      backend->name(),
                      backend->simd_target(),
                      probe.best_gb_s(),
                      FaissVersion(),
                      "",
                      0,
                      *std::move(rows),
                      "",
                      "",
                      {},
                      0,
                      0};
  if (!f.compare && f.baselines.empty()) report.faiss.clear();
  report.codec = f.codec;
  if (TraitsOf(f.codec).needs_profile) {
    report.profile = f.profile.empty() ? "own" : f.profile;
    if (!info.rope_json.empty()) report.horizon = f.horizon.value_or(kDefaultHorizon);
    report.coarse_bits = f.coarse_bits;
    report.total_bits = f.total_bits;
  }
  for (Row& row : report.rows) row.peer = row.name.rfind("faiss", 0) == 0;
  if (!f.peers.empty()) {
    auto peers = RunPeers(**dataset, {f.peers, f.top_k, f.betas, options.cold});
    if (!peers.ok()) return peers.status();
    report.peers = peers->versions;
    report.rows.insert(report.rows.end(), peers->rows.begin(), peers->rows.end());
  }
  return Print(f, report);
}

}  // namespace

void AddRecallCommand(CLI::App* app, std::function<absl::Status()>* run) {
  CLI::App* command = app->add_subcommand("recall", kRecallDescription);
  auto flags = std::make_shared<RecallFlags>();
  AddFlags(command, flags.get());
  command->callback([flags, run] { *run = [flags] { return Run(*flags); }; });
}

}  // namespace seine::bench
