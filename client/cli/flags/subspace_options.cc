#include "client/cli/flags/subspace_options.h"

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "client/cli/base/names.h"

namespace seine::cli {
namespace {

using client::Subspace;

constexpr char kGroup[] = "Subspaces (the zone's keys and values low-rank; needs --kv-store keys_values)";

Subspace& In(client::IndexSpec* spec) {
  if (!spec->subspace) spec->subspace.emplace();
  return *spec->subspace;
}

template <typename T>
struct ValueOf {
  using Type = T;
};
template <typename T>
struct ValueOf<std::optional<T>> {
  using Type = T;
};

class Flags {
 public:
  Flags(CLI::App* create, client::IndexSpec* spec) : create_(create), spec_(spec) {}

  template <typename Member>
  CLI::Option* Add(const char* flag, Member Subspace::*member, const char* help) {
    using Value = typename ValueOf<Member>::Type;
    client::IndexSpec* const spec = spec_;
    const auto set = [spec, member](const Value& value) { In(spec).*member = value; };
    CLI::Option* option = nullptr;
    if constexpr (std::is_same_v<Value, bool>) {
      option = create_->add_flag_callback(
          flag, [set] { set(true); }, help);
    } else {
      option = create_->add_option_function<Value>(flag, set, help);
    }
    return option->group(kGroup);
  }

 private:
  CLI::App* create_;
  client::IndexSpec* spec_;
};

// One rank or energy share for all, or ranks by layer. Returns those of which a subspace needs one.
std::vector<const CLI::Option*> AddRanks(CLI::App* create, client::IndexSpec* spec, Flags* flags) {
  CLI::Option* rank = create->add_option_function<int>(
      "--subspace-rank",
      [spec](int value) {
        Subspace& s = In(spec);
        if (s.key_rank == 0) s.key_rank = value;
        s.value_rank = value;
      },
      "Of values, and of keys without --subspace-key-rank");
  rank->group(kGroup);
  CLI::Option* energy =
      flags->Add("--subspace-energy", &Subspace::energy,
                 "In place of ranks: the smallest that hold this share of a profile's energy in every layer and head");
  energy->excludes(rank);
  flags->Add("--subspace-energy-by-layer", &Subspace::energy_by_layer, "It finds each layer's own ranks")
      ->needs(energy);
  flags->Add("--subspace-key-rank", &Subspace::key_rank, "Of keys (default: --subspace-rank)")->needs(rank);
  CLI::Option* key_ranks = flags->Add("--subspace-key-ranks", &Subspace::key_ranks,
                                      "Of keys, layer by layer: 20,24,... (default: --subspace-rank)");
  CLI::Option* value_ranks = flags->Add("--subspace-value-ranks", &Subspace::value_ranks,
                                        "Of values, layer by layer (default: --subspace-rank)");
  for (CLI::Option* ranks : {key_ranks, value_ranks}) ranks->delimiter(',');
  return {rank, energy, key_ranks, value_ranks};
}

void AddLearning(Flags* flags) {
  flags->Add("--subspace-interval", &Subspace::interval, "Tokens between updates, 1 to 256 (default: 32)");
  flags->Add("--subspace-learning-rate", &Subspace::learning_rate,
             "Of an update, relative to the covariance's trace (default: 0.05)");
  flags->Add("--subspace-max-gain", &Subspace::max_gain, "Bound of an update (default: 0.5)");
  flags->Add("--subspace-absolute-rate", &Subspace::absolute_rate,
             "Learning rates are OjaKV's own, neither relative nor bounded (then 0.1 by default)");
  flags->Add("--subspace-prompt-pool", &Subspace::prompt_pool,
             "A prompt makes one update of its own, its rows averaged over so many neighbours; 0: it is learnt from as "
             "all is (default: 0)");
  flags->Add("--subspace-prompt-learning-rate", &Subspace::prompt_learning_rate, "Of that update (default: 0.1)");
  flags->Add("--subspace-threshold", &Subspace::error_threshold,
             "Update only where more of the energy is left out; 1: never (default: 0)");
  flags->Add("--subspace-min-spacing", &Subspace::min_spacing, "Tokens at least between such updates (default: 0)");
  flags->Add("--subspace-version-tokens", &Subspace::version_tokens, "That share a version (default: 16384)");
}

void AddFullRank(Flags* flags) {
  flags->Add("--subspace-full-rank", &Subspace::full_rank, "Share of the tokens that stay full-rank (default: 0.02)");
  flags->Add("--subspace-full-rank-queries", &Subspace::full_rank_queries,
             "Positions, the last ones, whose queries choose them; 0: the profile's moment does (default: 0)");
  flags->Add("--subspace-full-rank-pool", &Subspace::full_rank_pool,
             "Neighbours that what tokens lose is averaged over, odd (default: 1)");
}

void AddStart(CLI::App* create, client::IndexSpec* spec, Flags* flags) {
  create
      ->add_option_function<int>(
          "--subspace-frame", [spec](int value) { In(spec).frame = static_cast<client::KeyFrame>(value); },
          "post_rope or pre_rope, which needs --rope-theta or --rope (default: post_rope)")
      ->transform(Names(kKeyFrameNames))
      ->group(kGroup);
  flags->Add("--subspace-profile", &Subspace::profile,
             "Model profile that bases begin with (default: a sequence's first tokens)");
  flags->Add("--subspace-carried-to", &Subspace::carried_to,
             "Positions that a profile's moments are carried to (default: 32768)");
  flags->Add("--subspace-stack-queries", &Subspace::stack_queries,
             "Keys' bases begin with the profile's of queries and keys stacked");
}

template <typename T>
Json Field(const T& value) {
  return Json(value);
}
template <typename T>
Json Field(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace

// Each option but the ranks' needs them, as a rank or an energy share: without either everything is stored full-rank.
void AddSubspaceOptions(CLI::App* create, client::IndexSpec* spec) {
  Flags flags(create, spec);
  const std::vector<const CLI::Option*> ranks = AddRanks(create, spec, &flags);
  AddStart(create, spec, &flags);
  AddLearning(&flags);
  AddFullRank(&flags);
  create->parse_complete_callback([=] {
    bool any = false;
    for (const CLI::Option* option : ranks) any = any || option->count() > 0;
    for (const CLI::Option* option : create->get_options()) {
      if (any || option->get_group() != kGroup || option->count() == 0) continue;
      throw CLI::RequiresError(option->get_name(), "--subspace-rank or --subspace-energy");
    }
    if (!any) return;
    // One rank is for what has no ranks by layer.
    Subspace& s = In(spec);
    if (!s.key_ranks.empty() && create->get_option("--subspace-key-rank")->count() == 0) s.key_rank = 0;
    if (!s.value_ranks.empty()) s.value_rank = 0;
  });
}

void AddSubspaceFields(const std::optional<Subspace>& subspace, Json* json) {
  const auto add = [&](const char* name, auto member) {
    (*json)[std::string("subspace_") + name] = subspace ? Field((*subspace).*member) : Json();
  };
  add("key_rank", &Subspace::key_rank);
  add("value_rank", &Subspace::value_rank);
  add("key_ranks", &Subspace::key_ranks);
  add("value_ranks", &Subspace::value_ranks);
  add("energy", &Subspace::energy);
  add("energy_by_layer", &Subspace::energy_by_layer);
  (*json)["subspace_frame"] = subspace ? Json(NameOf(kKeyFrameNames, subspace->frame)) : Json();
  add("profile", &Subspace::profile);
  add("carried_to", &Subspace::carried_to);
  add("stack_queries", &Subspace::stack_queries);
  add("interval", &Subspace::interval);
  add("learning_rate", &Subspace::learning_rate);
  add("max_gain", &Subspace::max_gain);
  add("absolute_rate", &Subspace::absolute_rate);
  add("prompt_pool", &Subspace::prompt_pool);
  add("prompt_learning_rate", &Subspace::prompt_learning_rate);
  add("threshold", &Subspace::error_threshold);
  add("min_spacing", &Subspace::min_spacing);
  add("version_tokens", &Subspace::version_tokens);
  add("full_rank", &Subspace::full_rank);
  add("full_rank_queries", &Subspace::full_rank_queries);
  add("full_rank_pool", &Subspace::full_rank_pool);
}

}  // namespace seine::cli
