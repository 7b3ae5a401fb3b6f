// A profile measured layer by layer by the server that holds the tokens.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/cli/input/calibration.h"
#include "profile/moments.h"
#include "profile/rope.h"

namespace seine::cli {

namespace {

Rope RopeOf(const v1::Rope& stated) {
  Rope rope;
  rope.style = stated.style() == v1::ROPE_STYLE_INTERLEAVED ? Rope::Style::kInterleaved : Rope::Style::kHalfSplit;
  rope.inv_freq.assign(stated.inv_freq().begin(), stated.inv_freq().end());
  rope.rotary_dim = stated.rotary_dim();
  return rope;
}

}  // namespace

absl::StatusOr<Profile> CalibrateLive(const LiveOptions& options, client::Client* client,
                                      const std::function<void(int64_t done, int64_t total)>& progress) {
  const absl::StatusOr<v1::IndexInfo> index = client->GetIndex(options.index);
  if (!index.ok()) return index.status();
  std::vector<client::Sequence> sequences;
  for (const std::string& id : options.sequences) sequences.push_back({options.index, id});

  const v1::IndexSpec& spec = index->spec();
  Profile profile;
  for (int layer = 0; layer < spec.geometry().num_layers(); ++layer) {
    absl::StatusOr<Profile> measured = client->MeasureProfile(sequences, layer);
    if (!measured.ok()) return measured.status();
    if (layer == 0) {
      profile = *std::move(measured);
    } else {
      profile.key_tokens = std::min(profile.key_tokens, measured->key_tokens);
      profile.query_tokens = std::min(profile.query_tokens, measured->query_tokens);
      profile.layers.push_back(std::move(measured->layers[0]));
    }
    progress(layer + 1, spec.geometry().num_layers());
  }
  profile.model = spec.model();
  profile.licence = options.licence.empty() ? "unstated" : options.licence;
  for (const std::string& id : options.sequences) {
    profile.texts.push_back(absl::StrCat("sequence ", id, " of index ", options.index));
  }
  const Rope rope = RopeOf(spec.geometry().rope());
  LayerRopes others;
  for (const v1::LayerRope& group : spec.geometry().layer_ropes()) {
    for (const int layer : group.layers()) others[layer] = RopeOf(group.rope());
  }
  profile.rope_style = rope.style;
  profile.rope_json = RopeJson(rope);
  profile.layer_ropes_json = LayerRopesJson(others);
  return profile;
}

}  // namespace seine::cli
