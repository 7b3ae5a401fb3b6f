// What a server writes down of a family that has moved, so that a restart does not forget it: a small file of text.
#ifndef SEINE_SERVICE_FAMILIES_FAMILY_RECORD_H_
#define SEINE_SERVICE_FAMILIES_FAMILY_RECORD_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "service/families/sequence_families.h"

namespace seine {

struct FamilyRecord {
  std::string family;
  FamilyHome home;     // node, address and held are empty where the family is here
  absl::Time until{};  // callers are told of the home; of a family that has moved
  bool moved() const { return !home.node.empty(); }
};

// Lines "name=value", the last one a checksum of those before.
std::string ToText(const FamilyRecord& record);
// DATA_LOSS: torn or damaged. FAILED_PRECONDITION: of a newer build.
absl::StatusOr<FamilyRecord> ParseFamilyRecord(absl::string_view text);

// Returns the name of a family's file: 32 hexadecimal digits that follow from the family's name.
std::string FileOfFamily(absl::string_view family);

}  // namespace seine

#endif  // SEINE_SERVICE_FAMILIES_FAMILY_RECORD_H_
