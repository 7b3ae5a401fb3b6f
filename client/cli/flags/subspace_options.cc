#include "client/cli/flags/subspace_options.h"

#include <vector>

#include "client/cli/flags/field_flags.h"

namespace seine::cli {
namespace {

constexpr char kGroup[] = "Subspaces (the zone's keys and values low-rank; needs --kv-store keys_values)";

}  // namespace

// One rank or energy share for all, or ranks by layer: each other option needs one of them, for without it everything
// is stored full-rank.
void AddSubspaceOptions(CLI::App* create, v1::IndexSpec* spec) {
  CLI::Option* const rank = create->add_option_function<int>(
      "--subspace-rank",
      [spec](int value) {
        v1::SubspaceSettings* const s = spec->mutable_subspace();
        if (s->key_rank() == 0) s->set_key_rank(value);
        s->set_value_rank(value);
      },
      "Of values, and of keys without --subspace-key-rank");
  const FlagGroup group{create, "--subspace-", kGroup};
  group.Join(rank);
  AddFieldFlags(group, *v1::SubspaceSettings::descriptor(), [spec] { return spec->mutable_subspace(); });
  CLI::Option* const energy = create->get_option("--subspace-energy");
  energy->excludes(rank);
  create->get_option("--subspace-energy-by-layer")->needs(energy);
  create->get_option("--subspace-key-rank")->needs(rank);
  const std::vector<const CLI::Option*> ranks = {rank, energy, create->get_option("--subspace-key-ranks"),
                                                 create->get_option("--subspace-value-ranks")};
  create->parse_complete_callback([=] {
    bool any = false;
    for (const CLI::Option* option : ranks) any = any || option->count() > 0;
    for (const CLI::Option* option : create->get_options()) {
      if (any || option->get_group() != kGroup || option->count() == 0) continue;
      throw CLI::RequiresError(option->get_name(), "--subspace-rank or --subspace-energy");
    }
    if (!any) return;
    // One rank is for what has no ranks by layer.
    v1::SubspaceSettings* const s = spec->mutable_subspace();
    if (s->key_ranks_size() > 0 && create->get_option("--subspace-key-rank")->count() == 0) s->set_key_rank(0);
    if (s->value_ranks_size() > 0) s->set_value_rank(0);
  });
}

}  // namespace seine::cli
