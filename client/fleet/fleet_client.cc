#include "client/fleet/fleet_client.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/fleet/families.h"
#include "client/fleet/placement.h"

namespace seine::client {
namespace {

constexpr absl::Duration kLongestFollowWait =
    absl::Milliseconds(100);  // a decoder stands still no longer than its family

}  // namespace

std::unique_ptr<FleetClient> FleetClient::Create(FleetDescription fleet, const Options& options) {
  return std::unique_ptr<FleetClient>(new FleetClient(std::move(fleet), options));
}

absl::StatusOr<Client*> FleetClient::At(const std::string& node) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = clients_.find(node); found != clients_.end()) return found->second.get();
  }
  for (const FleetNode& known : fleet_.nodes) {
    if (known.name != node) continue;
    absl::StatusOr<std::unique_ptr<Client>> made = Client::Connect(known.address, options_);
    if (!made.ok()) return made.status();
    const std::lock_guard<std::mutex> lock(mutex_);
    return clients_.try_emplace(node, *std::move(made)).first->second.get();
  }
  return absl::NotFoundError(absl::StrCat("node: the fleet ", fleet_.fleet, " has no ", node));
}

absl::StatusOr<std::string> FleetClient::Ask(const std::string& index, const std::string& id) {
  absl::Status silent;
  std::vector<std::string> holders;
  for (const FleetNode& node : fleet_.nodes) {
    if (node.state == NodeState::kLost) continue;
    const absl::StatusOr<Client*> client = At(node.name);
    const absl::Status answer = client.ok() ? (*client)->GetSequence({index, id, 0}).status() : client.status();
    if (answer.ok()) holders.push_back(node.name);
    if (!answer.ok() && !absl::IsNotFound(answer)) silent = answer;
  }
  if (holders.size() > 1) return Newest(std::move(holders), index, std::string(FamilyOf(id)));
  if (!holders.empty()) return holders.front();
  if (!silent.ok()) return silent;
  return absl::NotFoundError(absl::StrCat("handle: not found: '", id, "'"));
}

std::string FleetClient::Newest(std::vector<std::string> holders, const std::string& index, const std::string& family) {
  std::map<std::string, FamilyState> states;
  for (const std::string& node : holders) {
    const absl::StatusOr<Client*> client = At(node);
    if (!client.ok()) continue;
    const absl::StatusOr<std::vector<FamilyState>> known = ListFamilyStates(*client, index, family);
    if (known.ok() && !known->empty()) states[node] = known->front();
  }
  std::stable_sort(holders.begin(), holders.end(), [&](const std::string& a, const std::string& b) {
    return states[a].generation < states[b].generation;
  });
  const auto serves = [&](const std::string& node) { return !states[node].frozen && !states[node].moved; };
  const auto newest = std::find_if(holders.rbegin(), holders.rend(), serves);
  return newest != holders.rend() ? *newest : holders.front();
}

absl::StatusOr<std::string> FleetClient::NodeOf(const std::string& index, const std::string& id) {
  const std::pair<std::string, std::string> family(index, FamilyOf(id));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = nodes_.find(family); found != nodes_.end()) return found->second;
  }
  absl::StatusOr<std::string> node = Ask(index, id);
  if (!node.ok()) return node;
  const std::lock_guard<std::mutex> lock(mutex_);
  return nodes_.try_emplace(family, *std::move(node)).first->second;
}

absl::StatusOr<Client*> FleetClient::ClientOf(const std::string& index, const std::string& id) {
  const absl::StatusOr<std::string> node = NodeOf(index, id);
  if (!node.ok()) return node.status();
  return At(*node);
}

absl::StatusOr<std::string> FleetClient::PlaceFor(const std::string& index, const std::string& id) {
  if (id.empty()) return absl::InvalidArgumentError("id: a fleet places sequences by their ids; give one");
  for (const std::string& known : {id, std::string(FamilyOf(id))}) {
    if (absl::StatusOr<std::string> node = NodeOf(index, known); node.ok()) return node;
  }
  std::vector<std::string> names;
  for (const FleetNode& node : fleet_.nodes) {
    if (node.state == NodeState::kUp) names.push_back(node.name);
  }
  for (const std::string& name : RankNodes(FamilyOf(id), std::move(names))) {
    const absl::StatusOr<Client*> client = At(name);
    if (client.ok() && (*client)->IsServing("").value_or(false)) return name;  // not one that drains
  }
  return absl::UnavailableError(absl::StrCat("no node of the fleet ", fleet_.fleet, " serves and takes new families"));
}

absl::StatusOr<Sequence> FleetClient::CreateOnce(const std::string& index, const std::string& id) {
  const absl::StatusOr<std::string> node = PlaceFor(index, id);
  if (!node.ok()) return node.status();
  const absl::StatusOr<Client*> client = At(*node);
  if (!client.ok()) return client.status();
  absl::StatusOr<Sequence> made = (*client)->CreateSequence(index, id);
  if (!made.ok()) return made;
  const std::lock_guard<std::mutex> lock(mutex_);
  nodes_[{index, std::string(FamilyOf(id))}] = *node;
  return made;
}

absl::StatusOr<Sequence> FleetClient::CreateSequence(const std::string& index, const std::string& id) {
  for (Following following;;) {
    absl::StatusOr<Sequence> made = CreateOnce(index, id);
    if (!Follow(id, made.status(), &following)) return made;
  }
}

bool FleetClient::Follow(const std::string& id, const absl::Status& status, Following* following) {
  const std::string reason = ReasonOf(status);
  if (reason == "MOVED" && !following->moved) {
    following->moved = true;
    Forget(id);
    return true;
  }
  // A node that has begun to drain is passed over next time.
  if ((reason != "MOVING" && reason != "DRAINING") || following->left < following->wait) return false;
  absl::SleepFor(following->wait);
  following->left -= following->wait;
  following->wait = std::min(2 * following->wait, kLongestFollowWait);
  return true;
}

void FleetClient::Forget(const std::string& id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(nodes_, [&](const auto& known) { return known.first.second == FamilyOf(id); });
}

}  // namespace seine::client
