#include "client/fleet/families.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "client/fleet/placement.h"

namespace seine::client {
namespace {

void Add(const SequenceInfo& sequence, Family* family) {
  ++family->sequences;
  const std::vector<int64_t>& tokens = sequence.layer_tokens;
  if (!tokens.empty()) family->tokens += *std::max_element(tokens.begin(), tokens.end());
  family->bytes += sequence.code_bytes + sequence.store_bytes;
}

}  // namespace

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
  const absl::StatusOr<std::vector<IndexInfo>> indexes = client->ListIndexes();
  if (!indexes.ok()) return indexes.status();
  std::vector<Family> all;
  for (const IndexInfo& index : *indexes) {
    absl::StatusOr<std::vector<Family>> families = ListFamilies(client, index.spec.name);
    if (!families.ok()) return families.status();
    std::move(families->begin(), families->end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace seine::client
