// SetFamilyState and ListFamilyStates of AdminService, and what calls ask before they change a family.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "index/index.h"
#include "service/access/caller.h"
#include "service/calls/calls.h"
#include "service/families/sequence_families.h"
#include "service/fields/error.h"
#include "service/fields/names.h"
#include "service/kept_families.h"

namespace seine {
namespace {

constexpr int kMostSeconds = 86'400, kFrozenSeconds = 60, kMovedSeconds = 3600, kPage = 256;

absl::Status NotWith(bool given, absl::string_view field, absl::string_view state) {
  return given ? FieldError("CONFLICT", field, absl::StrCat("means nothing with state ", state)) : absl::OkStatus();
}

absl::Status CheckFields(const v1::SetFamilyStateRequest& request) {
  const std::string state = v1::FamilyState_Name(request.state());
  const bool frozen = request.state() == v1::FAMILY_STATE_FROZEN, moved = request.state() == v1::FAMILY_STATE_MOVED;
  if (request.seconds() < 0 || request.seconds() > kMostSeconds) {
    return FieldError("OUT_OF_LIMITS", "seconds",
                      absl::StrCat(request.seconds(), " is not in [0, ", kMostSeconds, "]"));
  }
  if (auto s = NotWith(request.seconds() != 0 && !frozen && !moved, "seconds", state); !s.ok()) return s;
  if (auto s = NotWith(!request.freeze().empty() && frozen, "freeze", state); !s.ok()) return s;
  if (auto s = NotWith(request.generation() != 0 && !frozen && !moved, "generation", state); !s.ok()) return s;
  if (!moved) {
    if (auto s = NotWith(!request.node().empty(), "node", state); !s.ok()) return s;
    if (auto s = NotWith(request.held_size() > 0, "held", state); !s.ok()) return s;
    return NotWith(!request.address().empty(), "address", state);
  }
  if (auto s = CheckId(request.node(), "node"); !s.ok()) return s;
  if (request.held_size() > static_cast<int>(FamilyHome::kMostHeld)) {
    return FieldError("OUT_OF_LIMITS", "held",
                      absl::StrCat(request.held_size(), " names are more than ", FamilyHome::kMostHeld));
  }
  for (int i = 0; i < request.held_size(); ++i) {
    if (auto s = CheckId(request.held(i), absl::StrCat("held[", i, "]")); !s.ok()) return s;
  }
  return CheckId(request.address(), "address");
}

// The family's sequences, by id.
std::vector<SequenceHandle> SequencesOf(const Index& index, const std::string& family) {
  std::vector<SequenceHandle> found;
  const auto take = [&](const std::string& id) {
    const auto sequence = index.GetSequence(SequenceHandle{id, 0});
    if (sequence.ok()) found.push_back(sequence->handle);
  };
  take(family);
  const std::string first = family + "/";
  take(first);
  for (std::string last = first;;) {
    const std::vector<SequenceInfo> page = index.ListSequences(last, kPage);
    for (const SequenceInfo& sequence : page) {
      if (FamilyOfId(sequence.handle.id) != family) return found;
      found.push_back(sequence.handle);
    }
    if (page.size() < kPage) return found;
    last = page.back().handle.id;
  }
}

std::chrono::seconds SecondsOr(int seconds, int usual) { return std::chrono::seconds(seconds > 0 ? seconds : usual); }

absl::Status SetState(Core& core, const FamilyKey& key, const v1::SetFamilyStateRequest& request,
                      v1::SetFamilyStateResponse* response) {
  if (request.state() == v1::FAMILY_STATE_SERVING) return core.families.Thaw(key, request.freeze());
  if (request.state() == v1::FAMILY_STATE_MOVED) {
    const std::chrono::seconds limit = SecondsOr(request.seconds(), kMovedSeconds);
    const auto keep = [&](const FamilyHome& home) { return KeepMoved(core, key, home, absl::FromChrono(limit)); };
    FamilyHome home{
        request.node(), request.address(), request.generation(), {request.held().begin(), request.held().end()}};
    return Explain(core.families.GiveUp(key, request.freeze(), std::move(home), limit, keep), "");
  }
  return core.families.Freeze(key, SecondsOr(request.seconds(), kFrozenSeconds), request.generation(),
                              response->mutable_freeze());
}

void ToProto(const KnownFamily& known, v1::FamilyStateInfo* out) {
  out->set_family(known.family);
  out->set_state(known.frozen  ? v1::FAMILY_STATE_FROZEN
                 : known.moved ? v1::FAMILY_STATE_MOVED
                               : v1::FAMILY_STATE_SERVING);
  out->set_generation(known.home.generation);
  out->set_node(known.home.node);
  out->set_address(known.home.address);
  out->set_seconds_left(known.seconds_left);
  for (const std::string& name : known.home.held) out->add_held(name);
}

}  // namespace

absl::Status BeginChange(Core& core, absl::string_view index, absl::string_view id, SequenceFamilies::Change* change) {
  return core.families.BeginChange({CurrentTenant(), index, FamilyOfId(id)}, change);
}

absl::Status SetFamilyState(Core& core, const v1::SetFamilyStateRequest& request,
                            v1::SetFamilyStateResponse* response) {
  auto index = FindIndex(core, request.index(), "index");
  if (!index.ok()) return index.status();
  if (auto s = CheckId(request.family(), "family"); !s.ok()) return s;
  if (FamilyOfId(request.family()) != request.family()) return FieldError("BAD_ID", "family", "has a '/'");
  if (request.state() == v1::FAMILY_STATE_UNSPECIFIED) return FieldError("EMPTY", "state", "not given");
  if (!v1::FamilyState_IsValid(request.state())) {
    return FieldError("UNKNOWN_ENUM", "state", absl::StrCat("no such value: ", static_cast<int>(request.state())));
  }
  if (auto s = CheckFields(request); !s.ok()) return s;
  const FamilyKey key{CurrentTenant(), request.index(), request.family()};
  if (auto s = core.families.CheckHere(key); !s.ok()) return s;
  if (SequencesOf(**index, request.family()).empty()) {
    return FieldError("FAMILY_NOT_FOUND", "family", absl::StrCat("no such family: ", Quoted(request.family())),
                      absl::StatusCode::kNotFound);
  }
  if (auto s = SetState(core, key, request, response); !s.ok()) return s;
  // Nobody adds sequences to a family that is frozen or has moved, so the list is whole.
  const std::vector<SequenceHandle> sequences = SequencesOf(**index, request.family());
  response->set_sequences(static_cast<int64_t>(sequences.size()));
  response->set_generation(core.families.Generation(key));
  if (request.state() != v1::FAMILY_STATE_MOVED) return absl::OkStatus();
  for (const SequenceHandle& sequence : sequences) {
    const absl::Status deleted = (*index)->DeleteSequence(sequence);
    if (!deleted.ok() && !absl::IsNotFound(deleted)) return Explain(deleted, "family");
  }
  return absl::OkStatus();
}

absl::Status ListFamilyStates(Core& core, const v1::ListFamilyStatesRequest& request,
                              v1::ListFamilyStatesResponse* response) {
  auto index = FindIndex(core, request.index(), "index");
  if (!index.ok()) return index.status();
  if (!request.family().empty()) {
    if (auto s = CheckId(request.family(), "family"); !s.ok()) return s;
  }
  for (const KnownFamily& known : core.families.List(CurrentTenant(), request.index())) {
    if (!request.family().empty() && known.family != request.family()) continue;
    ToProto(known, response->add_families());
    if (static_cast<int64_t>(response->ByteSizeLong()) > core.options.max_message_bytes) {
      return FieldError("OUT_OF_LIMITS", "family", "the families take more than the message limit; ask for one",
                        absl::StatusCode::kOutOfRange);
    }
  }
  return absl::OkStatus();
}

}  // namespace seine
