// See recall_flags.h.
#include "bench/commands/recall/recall_flags.h"

#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "bench/commands/codec_flags.h"
#include "bench/commands/invalid_flag.h"
#include "bench/commands/value_flag.h"
#include "index/config/config.h"
#include "kernels/codecs/codec_traits.h"

namespace seine::bench {
namespace {

constexpr double kUsualBeta = .05;

absl::Status CheckValues(const RecallFlags& f) {
  const CodecTraits& traits = TraitsOf(f.codec);
  if (f.top_k < 1) return InvalidFlag("top-k", "at least 1");
  for (double beta : f.betas) {
    if (!(beta > 0 && beta <= 1)) return InvalidFlag("candidate-fraction", absl::StrCat(beta, " is not in (0, 1]"));
  }
  for (double target : f.recall_targets) {
    if (!(target > 0 && target < 1)) return InvalidFlag("recall-target", absl::StrCat(target, " is not in (0, 1)"));
    if (!traits.predicts_noise) {
      return InvalidFlag("recall-target",
                         absl::StrCat("only the ", DefaultCodec(true).name, " code predicts its noise"));
    }
  }
  if (f.refine < 0) return InvalidFlag("rescore-k", "at least 0");
  constexpr int kWidestWindow = 2048;  // index/config/config.h
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

// What says how many candidates collision has, and by what.
absl::Status CheckShares(const RecallFlags& f) {
  if (f.rho && !(*f.rho > 0 && *f.rho <= 1))
    return InvalidFlag("collision-fraction", absl::StrCat(*f.rho, " is not in (0, 1]"));
  if (f.paper_schedule()) {
    if (!f.collision() && !f.compare) {
      return InvalidFlag("schedule", "paper is collision's: it needs --compare or --coarse collision");
    }
    if (f.rho) return InvalidFlag("collision-fraction", "--schedule paper sets it");
    if (f.collision() && !f.betas.empty())
      return InvalidFlag("candidate-fraction", "--schedule paper sets collision's");
  }
  if (f.rho && !f.collision() && !f.compare) {
    return InvalidFlag("collision-fraction", "is collision's: it needs --compare or --coarse collision");
  }
  for (const double beta : f.betas) {
    if (f.rho && *f.rho < beta)
      return InvalidFlag("collision-fraction", absl::StrCat(*f.rho, " is below --candidate-fraction ", beta));
  }
  return absl::OkStatus();
}

// --candidates runs methods of its own: whatever has no effect beside it is refused.
absl::Status CheckEqual(const RecallFlags& f) {
  const std::pair<const char*, bool> others[] = {
      {"candidate-fraction", !f.betas.empty()},
      {"collision-fraction", f.rho.has_value()},
      {"schedule", f.paper_schedule()},
      {"recall-target", !f.recall_targets.empty()},
      {"compare", f.compare},
      {"baseline", !f.baselines.empty()},
      {"peers", !f.peers.empty()},
      {"plot", !f.plot.empty()},
      {"coarse", f.collision()},
      {"centre", !f.centre.empty()},
      {"codec", !f.codec.empty()},
      {"scope", f.scope == "kv_head"},
  };
  for (const auto& [flag, given] : others) {
    if (given) return InvalidFlag(flag, "has no effect beside --candidates, which names its methods itself");
  }
  return absl::OkStatus();
}

}  // namespace

void AddRecallFlags(CLI::App* app, RecallFlags* f) {
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
  app->add_option("--num-keys", f->data.num_keys, "synthetic keys")->capture_default_str()->group(data);
  app->add_option("--head-dim", f->data.head_dim, "of synthetic keys")->capture_default_str()->group(data);
  app->add_option("--seed", f->data.seed, "of synthetic keys")->check(NoSign())->capture_default_str()->group(data);
  app->add_option("--num-queries", f->data.num_queries, "positions asked; absent: all of a trace, 64 synthetic")
      ->group(data);
  app->add_option("--dtype", f->data.dtype,
                  "of the stored keys: fp32, fp16 or bf16; absent: the trace's own, fp32 where synthetic")
      ->transform(ValueOf("DType"))
      ->group(data);
  const char* search = "Search";
  app->add_option("--top-k", f->top_k, "keys wanted a query")->capture_default_str()->group(search);
  app->add_option("--candidate-fraction,--beta", f->betas,
                  "share of the keys kept as candidates (default .05); several: .02,.05,.10")
      ->delimiter(',')
      ->group(search);
  app->add_option("--recall-target", f->recall_targets,
                  "balanced: also, candidates by the predicted share of the exact top-k that they hold: .9,.99")
      ->delimiter(',')
      ->group(search);
  app->add_option("--rescore-k,--refine", f->refine,
                  "survivors of the rerank scored exactly; below top-k: top-k, the paper's")
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
  AddCodecFlags(app, &f->codec_options, search);
  app->add_option("--coarse", f->coarse, "first stage: sign_ip, or the paper's collision")
      ->transform(ValueOf("Coarse"))
      ->capture_default_str()
      ->group(search);
  app->add_option(
         "--collision-fraction,--rho", f->rho,
         "collision: share of the keys that the tiers cover, no less than candidates; absent: .2, or theirs if more")
      ->group(search);
  app->add_option("--schedule", f->schedule,
                  "fixed: collision's shares are as given; paper: its authors' by the length of the zone")
      ->check(IsMember({"fixed", "paper"}))
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
  app->add_option("--candidates", f->candidates,
                  "compares methods at equal numbers of candidates, in place of all else: 1%,2%,5%,10% or 400; exactly "
                  "so many each, without a floor and without times")
      ->delimiter(',')
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

absl::Status CheckRecall(RecallFlags* f) {
  if (!f->candidates.empty()) {
    if (absl::Status s = CheckEqual(*f); !s.ok()) return s;
    f->codec = DefaultCodec(/*with_profile=*/true).name;
  }
  if (f->codec.empty()) f->codec = DefaultCodec(!f->profile.empty()).name;
  if (absl::Status s = CheckShares(*f); !s.ok()) return s;
  if (f->betas.empty() && f->candidates.empty()) f->betas = {kUsualBeta};
  return CheckValues(*f);
}

SearchParams SearchOf(const RecallFlags& f) {
  SearchParams p;
  p.top_k = f.top_k;
  p.collision_fraction = f.rho.value_or(p.collision_fraction);
  p.rescore_k = f.refine;
  p.coarse = f.collision() ? Coarse::kCollision : Coarse::kSignIp;
  p.scope = f.scope == "kv_head" ? Scope::kPerKvHead : Scope::kPerQHead;
  p.gqa_reduce = f.reduce == "max" ? GqaReduce::kMax : f.reduce == "mean" ? GqaReduce::kMean : GqaReduce::kSoftmaxSum;
  return p;
}

absl::StatusOr<std::vector<int64_t>> CandidatesOf(const RecallFlags& f, int64_t num_keys) {
  std::vector<int64_t> counts;
  for (const std::string& text : f.candidates) {
    absl::string_view number = text;
    double share = 0;
    int64_t count = 0;
    if (absl::ConsumeSuffix(&number, "%")) {
      if (!absl::SimpleAtod(number, &share) || !(share > 0 && share <= 100)) {
        return InvalidFlag("candidates", absl::StrCat(text, " is no share above 0% and up to 100%"));
      }
      count = static_cast<int64_t>(std::ceil(share / 100 * static_cast<double>(num_keys)));
    } else if (!absl::SimpleAtoi(number, &count) || count < 1 || count > num_keys) {
      return InvalidFlag("candidates", absl::StrCat(text, " is neither a number in [1, ", num_keys,
                                                    "], the keys of a head, nor a share such as 2%"));
    }
    counts.push_back(count);
  }
  return counts;
}

}  // namespace seine::bench
