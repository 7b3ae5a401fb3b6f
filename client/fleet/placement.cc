#include "client/fleet/placement.h"

#include <openssl/sha.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"

namespace seine::client {

absl::string_view FamilyOf(absl::string_view id) { return id.substr(0, id.find('/')); }

uint64_t PlacementScore(absl::string_view family, absl::string_view node) {
  const std::string text = absl::StrCat(family, absl::string_view("\0", 1), node);
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  uint64_t score = 0;
  for (int i = 0; i < 8; ++i) score = score << 8 | digest[i];
  return score;
}

std::vector<std::string> RankNodes(absl::string_view family, std::vector<std::string> nodes) {
  std::vector<std::pair<uint64_t, std::string>> scored;
  for (std::string& node : nodes) {
    const uint64_t score = PlacementScore(family, node);
    scored.emplace_back(~score, std::move(node));
  }
  std::sort(scored.begin(), scored.end());
  for (size_t i = 0; i < nodes.size(); ++i) nodes[i] = std::move(scored[i].second);
  return nodes;
}

std::string ChooseNode(absl::string_view family, const std::map<std::string, int64_t>& loads) {
  assert(!loads.empty());
  std::vector<std::string> nodes;
  int64_t families = 1;  // with the new one
  for (const auto& [node, load] : loads) {
    nodes.push_back(node);
    families += load;
  }
  const int64_t shares = 4 * static_cast<int64_t>(nodes.size());
  const int64_t bound = (5 * families + shares - 1) / shares;  // rounded up: one node is below it
  nodes = RankNodes(family, std::move(nodes));
  const auto below = [&](const std::string& node) { return loads.at(node) < bound; };
  return *std::find_if(nodes.begin(), nodes.end(), below);
}

}  // namespace seine::client
