// What a server has written down of its families: kept as families come and go, and recalled at the start.
#ifndef SEINE_SERVICE_KEPT_FAMILIES_H_
#define SEINE_SERVICE_KEPT_FAMILIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "index/index.h"
#include "service/core.h"
#include "service/families/sequence_families.h"

namespace seine {

// Writes down that the family has moved to `home`, of which callers are told for `limit`. Errors as
// FamilyRecords::Write. Nothing, where the server keeps no records; so below.
absl::Status KeepMoved(Core& core, const FamilyKey& key, const FamilyHome& home, absl::Duration limit);

// The sequences' families are here from now on, in `generation`, as SequenceFamilies::Arrive has it. Where that cannot
// be written down the sequences are deleted again. Errors as FamilyRecords::Write.
absl::Status Arrive(Core& core, Index* index, const std::vector<SequenceInfo>& sequences, uint64_t generation);

// The family's last sequence is gone.
void Forget(Core& core, const FamilyKey& key);

// The index is deleted, and so is what the server has written of it for itself.
void ForgetIndexFiles(Core& core, absl::string_view tenant, absl::string_view index);

// Before the first call: reads every record. What an index without files of an older end does not need goes.
void RecallFamilies(Core& core);

}  // namespace seine

#endif  // SEINE_SERVICE_KEPT_FAMILIES_H_
