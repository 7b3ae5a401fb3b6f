#include "client/fleet/families.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "absl/strings/numbers.h"
#include "client/fleet/ask.h"
#include "client/fleet/placement.h"

namespace seine::client {
namespace {

void Add(const SequenceInfo& sequence, Family* family) {
  ++family->sequences;
  const std::vector<int64_t>& tokens = sequence.layer_tokens;
  if (!tokens.empty()) family->tokens += *std::max_element(tokens.begin(), tokens.end());
  family->bytes += sequence.code_bytes + sequence.store_bytes;
}

FamilyState StateOf(const nlohmann::json& json) {
  FamilyState state;
  state.family = json.value("family", "");
  state.frozen = json.value("state", "") == "FAMILY_STATE_FROZEN";
  state.moved = json.value("state", "") == "FAMILY_STATE_MOVED";
  if (!absl::SimpleAtoi(json.value("generation", "0"), &state.generation)) state.generation = 0;
  state.node = json.value("node", "");
  state.address = json.value("address", "");
  state.held = json.value("held", std::vector<std::string>());
  return state;
}

}  // namespace

absl::StatusOr<std::vector<FamilyState>> ListFamilyStates(Client* client, const std::string& index,
                                                          const std::string& family) {
  const absl::StatusOr<nlohmann::json> answer = Ask(client, "ListFamilyStates", {{"index", index}, {"family", family}});
  if (!answer.ok()) return answer.status();
  std::vector<FamilyState> states;
  for (const nlohmann::json& one : answer->value("families", nlohmann::json::array())) states.push_back(StateOf(one));
  return states;
}

absl::StatusOr<std::vector<Family>> ListFamilies(Client* client, const std::string& index) {
  const absl::StatusOr<std::vector<SequenceInfo>> sequences = client->ListSequences(index);
  if (!sequences.ok()) return sequences.status();
  std::map<std::string, Family> by_name;
  for (const SequenceInfo& one : *sequences) Add(one, &by_name[std::string(FamilyOf(one.handle.id))]);
  std::vector<Family> families;
  for (auto& [name, family] : by_name) {
    family.index = index;
    family.name = name;
    families.push_back(std::move(family));
  }
  return families;
}

absl::StatusOr<std::vector<Family>> ListFamilies(Client* client) {
  const absl::StatusOr<std::vector<v1::IndexInfo>> indexes = client->ListIndexes();
  if (!indexes.ok()) return indexes.status();
  std::vector<Family> all;
  for (const v1::IndexInfo& index : *indexes) {
    absl::StatusOr<std::vector<Family>> families = ListFamilies(client, index.spec().name());
    if (ReasonOf(families.status()) == "INDEX_NOT_FOUND") continue;  // it is deleted, or the server started again
    if (!families.ok()) return families.status();
    std::move(families->begin(), families->end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace seine::client
