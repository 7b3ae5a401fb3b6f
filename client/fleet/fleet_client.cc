#include "client/fleet/fleet_client.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/convert/convert.h"
#include "client/fleet/claim.h"
#include "client/fleet/families.h"
#include "client/fleet/placement.h"

namespace seine::client {
namespace {

constexpr absl::Duration kFirstFollowWait = absl::Milliseconds(20);
constexpr absl::Duration kLongestFollowWait =
    absl::Milliseconds(100);  // a decoder stands still no longer than its family

// Whether NodeOf has found that a node has given the family up, and no node that has it. It may be held by one that
// does not bring it up.
bool HasLeft(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  if (reason == "SEQUENCE_LOST" || reason == "NO_NODE" || reason == "NOT_IN_FLEET" || reason == "MOVING") return true;
  return !absl::IsNotFound(status) && !absl::IsUnavailable(status);
}

}  // namespace

std::unique_ptr<FleetClient> FleetClient::Create(FleetDescription fleet, const Options& options,
                                                 absl::Duration patience) {
  return std::unique_ptr<FleetClient>(new FleetClient(std::move(fleet), options, patience));
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
  absl::Status silent, left;
  std::vector<std::string> holders;
  for (const FleetNode& node : fleet_.nodes) {
    if (node.state == NodeState::kLost) continue;
    const absl::StatusOr<Client*> client = At(node.name);
    const absl::Status answer = client.ok() ? (*client)->GetSequence({index, id, 0}).status() : client.status();
    if (answer.ok()) holders.push_back(node.name);
    if (!answer.ok() && !absl::IsNotFound(answer)) (ReasonOf(answer) == "MOVED" ? left : silent) = answer;
  }
  if (holders.size() > 1) return Newest(std::move(holders), index, std::string(FamilyOf(id)));
  if (!holders.empty()) return holders.front();
  absl::StatusOr<std::string> reached = absl::NotFoundError(absl::StrCat("handle: not found: '", id, "'"));
  if (!left.ok()) reached = Reached(index, id);
  return reached.ok() || silent.ok() ? reached : silent;  // a node that does not answer may have it
}

absl::StatusOr<FamilyState> FleetClient::StateAt(const FleetNode& node, const std::string& index,
                                                 const std::string& family) {
  absl::StatusOr<Client*> client = At(node.name);
  std::unique_ptr<Client> stranger;
  if (absl::IsNotFound(client.status())) {
    absl::StatusOr<std::unique_ptr<Client>> made = Client::Connect(node.address, options_);
    if (!made.ok()) return made.status();
    stranger = *std::move(made);
    client = stranger.get();
  }
  if (!client.ok()) return client.status();
  const absl::StatusOr<std::vector<FamilyState>> known = ListFamilyStates(*client, index, family);
  if (!known.ok() && !absl::IsNotFound(known.status())) return known.status();
  return known.ok() && !known->empty() ? known->front() : FamilyState();  // the index may not be there
}

absl::StatusOr<std::optional<FamilyTrail>> FleetClient::Trail(const std::string& index, const std::string& family,
                                                              bool making) {
  const auto ask = [&](const FleetNode& node) { return StateAt(node, index, family); };
  std::optional<FamilyState> newest;
  for (const FleetNode& node : fleet_.nodes) {
    const absl::StatusOr<FamilyState> known = ask(node);
    if (!known.ok() || !known->moved) continue;
    if (!newest || newest->generation < known->generation) newest = *known;
  }
  if (!newest) return std::nullopt;
  const auto claim = [&](const FleetNode& node, const FamilyState& left) {
    const absl::StatusOr<Client*> client = At(node.name);
    return client.ok() ? ClaimFamily(*client, index, left, absl::Now()).status() : client.status();
  };
  absl::StatusOr<FamilyTrail> trail = FollowFamily(fleet_, *std::move(newest), ask, claim, making);
  if (!trail.ok()) return trail.status();
  return *std::move(trail);
}

// It may have come only after that node was asked, or by Trail.
absl::StatusOr<std::string> FleetClient::Reached(const std::string& index, const std::string& id) {
  const std::string family(FamilyOf(id));
  const absl::StatusOr<std::optional<FamilyTrail>> trail = Trail(index, family, /*making=*/false);
  if (!trail.ok()) return trail.status();
  if (!trail->has_value()) return SentAround(id);  // it has come back meanwhile
  const FamilyTrail& reached = **trail;
  const std::string& node = reached.node.name;
  const absl::StatusOr<Client*> client = At(node);
  if (!reached.answers || !client.ok()) {
    return WithReason(absl::UnavailableError(absl::StrCat("handle: the family ", family, " has moved to ", node,
                                                          ", which does not answer")),
                      "NO_NODE");
  }
  const absl::StatusOr<std::vector<Family>> there = ListFamilies(*client, index);
  if (!there.ok() && !absl::IsNotFound(there.status())) return there.status();
  const auto is_it = [&](const Family& one) { return one.name == family; };
  if (there.ok() && !reached.sends_on && std::any_of(there->begin(), there->end(), is_it)) return node;
  return WithReason(absl::NotFoundError(absl::StrCat("handle: lost with node ", node, ": family ", family,
                                                     "; create the sequences again and append their tokens")),
                    "SEQUENCE_LOST");
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
  return Place(index, id, {});
}

absl::StatusOr<std::string> FleetClient::Place(const std::string& index, const std::string& id,
                                               const std::set<std::string>& refused) {
  if (id.empty()) return absl::InvalidArgumentError("id: a fleet places sequences by their ids; give one");
  const std::string family(FamilyOf(id));
  bool left = false;
  for (const std::string& known : {id, family}) {
    absl::StatusOr<std::string> node = NodeOf(index, known);
    if (node.ok()) return node;
    left = left || HasLeft(node.status());
  }
  std::vector<std::string> names;
  for (const FleetNode& node : fleet_.nodes) {
    if (node.state == NodeState::kUp) names.push_back(node.name);
  }
  names = RankNodes(family, std::move(names));
  if (left) {
    const absl::StatusOr<std::optional<FamilyTrail>> trail = Trail(index, family, /*making=*/true);
    if (!trail.ok()) return trail.status();
    const auto first = [&](const std::string& name) {
      return *trail && (*trail)->may_have_it() && (*trail)->node.name == name;
    };
    std::stable_partition(names.begin(), names.end(), first);
  }
  for (const std::string& name : names) {
    if (refused.contains(name)) continue;
    const absl::StatusOr<Client*> client = At(name);
    if (client.ok() && (*client)->IsServing("").value_or(false)) return name;  // not one that drains
  }
  return WithReason(absl::UnavailableError(
                        absl::StrCat("no node of the fleet ", fleet_.fleet, " serves and takes the family ", family)),
                    "NO_NODE");
}

absl::StatusOr<Sequence> FleetClient::CreateAt(const std::string& node, const std::string& index,
                                               const std::string& id) {
  const absl::StatusOr<Client*> client = At(node);
  if (!client.ok()) return client.status();
  absl::StatusOr<Sequence> made = (*client)->CreateSequence(index, id);
  if (!made.ok()) return made;
  const std::lock_guard<std::mutex> lock(mutex_);
  nodes_[{index, std::string(FamilyOf(id))}] = node;
  return made;
}

absl::StatusOr<Sequence> FleetClient::CreateSequence(const std::string& index, const std::string& id) {
  for (Following following = Begin();;) {
    const absl::StatusOr<std::string> node = Place(index, id, following.refused);
    absl::StatusOr<Sequence> made = node.ok() ? CreateAt(*node, index, id) : node.status();
    if (made.ok()) return made;
    if (Follow(id, made.status(), node.value_or(""), &following)) continue;
    if (ReasonOf(made.status()) == "MOVED") return SentAround(id);
    return made;
  }
}

FleetClient::Following FleetClient::Begin() const {
  return {.end = absl::Now() + patience_, .wait = kFirstFollowWait, .refused = {}};
}

bool FleetClient::Follow(const std::string& id, const absl::Status& status, const std::string& node,
                         Following* following) {
  const std::string reason = ReasonOf(status);
  if (reason == "MOVED" || reason == "DRAINING") {
    Forget(id);
    if (following->refused.insert(node).second) return true;
  } else if (reason == "NO_NODE") {
    if (following->refused.empty()) return false;
    following->refused.clear();  // one may take it by then, or another may serve again
  } else if (reason != "MOVING") {
    return false;
  }
  absl::Duration wait = RetryDelayOf(status);
  if (wait == absl::ZeroDuration()) {
    wait = following->wait;
    following->wait = std::min(2 * wait, kLongestFollowWait);
  }
  if (absl::Now() + wait >= following->end) return false;
  absl::SleepFor(wait);
  return true;
}

absl::Status FleetClient::SentAround(const std::string& id) {
  const std::string text = absl::StrCat("handle: the family ", FamilyOf(id), " moves from node to node; try again");
  return WithReason(absl::UnavailableError(text), "MOVING");
}

void FleetClient::Forget(const std::string& id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(nodes_, [&](const auto& known) { return known.first.second == FamilyOf(id); });
}

}  // namespace seine::client
