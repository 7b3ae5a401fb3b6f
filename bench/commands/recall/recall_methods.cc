// See recall_methods.h.
#include "bench/commands/recall/recall_methods.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/commands/invalid_flag.h"
#include "bench/methods/paper_schedule.h"
#include "index/config/config.h"
#include "kernels/codecs/codec_traits.h"
#include "profile/profile.h"
#include "profile/rope.h"

namespace seine::bench {
namespace {

std::string NameOf(const SeineOptions& o) {
  const bool collision = o.search.coarse == Coarse::kCollision;
  const std::string centre = o.centre == Centre::kNone     ? "no centre"
                             : o.centre == Centre::kGlobal ? "global centre"
                                                           : absl::StrCat("window ", o.centre_window);
  if (TraitsOf(o.codec).needs_profile) {
    const CodecOptions& bits = o.codec_options;
    return absl::StrFormat("seine %s %g+%g, window %d, %s, refine %d", o.codec, bits.coarse_bits,
                           bits.total_bits - bits.coarse_bits, o.centre_window, o.profile ? "profile" : "own profile",
                           std::max(o.search.rescore_k, o.search.top_k));
  }
  return absl::StrCat("seine ", o.codec, ", ", collision ? "collision" : "sign_ip", ", ", centre, ", refine ",
                      std::max(o.search.rescore_k, o.search.top_k));
}

absl::Status CheckOptions(const SeineOptions& options) {
  CodecConfig codec;
  codec.name = options.codec;
  static_cast<CodecOptions&>(codec) = options.codec_options;
  return ValidateOptions(codec, options.head_dim);
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
  o.codec_options = f.codec_options;
  o.codec = f.codec;
  o.head_dim = info.head_dim;
  if (absl::Status s = CheckOptions(o); !s.ok()) return s;  // before the exact answers, which take long
  o.search = SearchOf(f);
  const std::string centre = !f.centre.empty() ? f.centre : f.collision() ? "none" : "window";
  o.centre = CentreOf(centre);
  o.centre_window = f.window;
  o.group = o.search.scope == Scope::kPerKvHead ? info.group : 1;
  o.dtype = info.dtype;
  o.betas = f.paper_schedule() && f.collision() ? std::vector<double>{PaperSchedule(info.num_keys()).beta} : f.betas;
  if (f.paper_schedule() && f.collision()) o.search.collision_fraction = PaperSchedule(info.num_keys()).rho;
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
  o.search.rescore_k = o.search.top_k;
  o.with_exact = false;
  o.name = absl::StrCat("paper: ", NameOf(o).substr(6));
  return o;
}

// The same at its authors' shares.
SeineOptions PaperBySchedule(const SeineOptions& primary) {
  const PaperShares shares = PaperSchedule(primary.data.num_keys());
  SeineOptions o = Paper(primary);
  o.betas = {shares.beta};
  o.search.collision_fraction = shares.rho;
  o.candidates.clear();
  absl::StrAppendFormat(&o.name, ", authors' schedule (beta %g, rho %g)", shares.beta, shares.rho);
  return o;
}

// The code without a profile beside it.
SeineOptions Rsq(const SeineOptions& primary) {
  SeineOptions o = primary;
  o.codec = DefaultCodec(/*with_profile=*/false).name;
  o.recall_targets.clear();
  o.search.rescore_k = std::max(200, primary.search.top_k);
  o.with_exact = false;
  o.name = NameOf(o);
  return o;
}

// Another split of a key's bits.
SeineOptions WithBits(const SeineOptions& primary, double coarse_bits, double total_bits) {
  SeineOptions o = primary;
  o.codec_options.coarse_bits = coarse_bits;
  o.codec_options.total_bits = total_bits;
  o.name = NameOf(o);
  return o;
}

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Method>>> MakeRecallMethods(const RecallFlags& f, const DatasetInfo& info,
                                                                       Backend* backend) {
  const auto made_primary = Primary(f, info);
  if (!made_primary.ok()) return made_primary.status();
  const SeineOptions& primary = *made_primary;
  std::vector<std::unique_ptr<Method>> methods;
  methods.push_back(MakeSeineMethod(primary, backend));
  if (f.compare && TraitsOf(primary.codec).needs_profile) {
    methods.push_back(MakeSeineMethod(Rsq(primary), backend));
  }
  if (info.dtype == DType::kFloat32) {  // engines keep 16 bits a key, and exact search gains most from that
    SeineOptions narrow = primary;
    narrow.dtype = DType::kFloat16;
    narrow.codec = DefaultCodec(/*with_profile=*/false).name;  // only its exact scan runs
    narrow.betas.clear();
    narrow.recall_targets.clear();
    methods.push_back(MakeSeineMethod(narrow, backend));
  }
  if (f.compare) {
    methods.push_back(MakeSeineMethod(f.paper_schedule() ? PaperBySchedule(primary) : Paper(primary), backend));
  }
  std::vector<std::string> baselines = f.baselines;
  if (f.compare && baselines.empty()) baselines = {"faiss_flat", "faiss_pq_fastscan", "faiss_ivfpq"};
  for (const std::string& name : baselines) {
    auto made = MakeFaissMethods(name, info.head_dim, f.top_k, info.num_keys(), f.betas);
    if (!made.ok()) return made.status();
    for (auto& method : *made) methods.push_back(std::move(method));
  }
  return methods;
}

absl::StatusOr<std::vector<std::unique_ptr<Method>>> MakeEqualMethods(const RecallFlags& f, const DatasetInfo& info,
                                                                      Backend* backend,
                                                                      std::vector<std::string>* left_out) {
  auto candidates = CandidatesOf(f, info.num_keys());
  if (!candidates.ok()) return candidates.status();
  auto base = Primary(f, info);
  if (!base.ok()) return base.status();
  base->with_exact = false;
  base->candidates = *candidates;
  std::vector<std::unique_ptr<Method>> methods;
  for (const auto& [coarse, total] : {std::pair(1.0, 2.0), std::pair(2.0, 2.125)}) {
    const SeineOptions balanced = WithBits(*base, coarse, total);
    if (absl::Status s = CheckOptions(balanced); s.ok()) {
      methods.push_back(MakeSeineMethod(balanced, backend));
    } else {
      left_out->push_back(absl::StrCat(balanced.name, ": ", MessageOf(s)));
    }
  }
  methods.push_back(MakeSeineMethod(Rsq(*base), backend));
  methods.push_back(MakeSeineMethod(Paper(*base), backend));
  methods.push_back(MakeSeineMethod(PaperBySchedule(*base), backend));
  for (const int bytes : {4, 8, 16}) {
    if (info.head_dim % (2 * bytes) != 0) {
      left_out->push_back(absl::StrCat("faiss_pq_fastscan ", bytes, " B: ", 2 * bytes, " codes do not divide head_dim ",
                                       info.head_dim));
      continue;
    }
    auto pq = MakeFaissPq(info, bytes, f.top_k, *candidates);
    if (pq.ok()) {
      methods.push_back(*std::move(pq));
    } else {
      left_out->push_back(absl::StrCat("faiss_pq_fastscan ", bytes, " B: ", MessageOf(pq.status())));
    }
  }
  for (const int page : {16, 32}) methods.push_back(MakeQuestMethod(info, page, f.top_k, *candidates));
  return methods;
}

}  // namespace seine::bench
