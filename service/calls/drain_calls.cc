// SetDraining of AdminService, and what calls ask before they bring a family.
#include <string>

#include "absl/strings/str_cat.h"
#include "index/index.h"
#include "service/access/caller.h"
#include "service/calls/calls.h"
#include "service/families/sequence_families.h"
#include "service/fields/error.h"

namespace seine {

bool HoldsFamily(const Index& index, absl::string_view family) {
  const std::string first = absl::StrCat(family, "/");
  for (const std::string& id : {std::string(family), first}) {
    if (index.GetSequence(SequenceHandle{id, 0}).ok()) return true;
  }
  const std::vector<SequenceInfo> next = index.ListSequences(first, 1);
  return !next.empty() && FamilyOfId(next[0].handle.id) == family;
}

absl::Status CheckTakesFamily(const Core& core, const Index& index, absl::string_view family) {
  if (!core.draining || (!family.empty() && HoldsFamily(index, family))) return absl::OkStatus();
  return Draining();
}

absl::Status SetDraining(Core& core, const v1::SetDrainingRequest& request, v1::SetDrainingResponse* response) {
  if (!CurrentTenant().empty()) {
    return Explain(absl::PermissionDeniedError("only the server's own tenant drains a server"), "");
  }
  response->set_was_draining(core.draining.exchange(request.draining()));
  return absl::OkStatus();
}

}  // namespace seine
