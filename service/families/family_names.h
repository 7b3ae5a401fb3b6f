// Names of families among all of a server's.
#ifndef SEINE_SERVICE_FAMILIES_FAMILY_NAMES_H_
#define SEINE_SERVICE_FAMILIES_FAMILY_NAMES_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "service/families/sequence_families.h"

namespace seine {

// Returns what the names of an index's families begin with. Names that callers give hold no zero byte.
inline std::string FamilyPrefix(absl::string_view tenant, absl::string_view index) {
  return absl::StrCat(tenant, absl::string_view("\0", 1), index, absl::string_view("\0", 1));
}

inline std::string FullName(const FamilyKey& key) {
  return absl::StrCat(FamilyPrefix(key.tenant, key.index), key.family);
}

}  // namespace seine

#endif  // SEINE_SERVICE_FAMILIES_FAMILY_NAMES_H_
