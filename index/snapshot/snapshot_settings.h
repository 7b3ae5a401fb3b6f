// What an index must be made with to take a snapshot of another's sequences: whatever their bytes, and what they become
// with the next tokens, depend on. Limits, names and the defaults of searches may differ.
#ifndef SEINE_INDEX_SNAPSHOT_SNAPSHOT_SETTINGS_H_
#define SEINE_INDEX_SNAPSHOT_SNAPSHOT_SETTINGS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "index/context.h"

namespace seine {

// Lines "field=value", in the wire's names where it has them. Profiles and filters are told by their checksums.
std::string SettingsText(const Context& context);

// FAILED_PRECONDITION naming the first field that differs. `own`: of the index.
absl::Status CheckSettings(absl::string_view snapshot, absl::string_view own);

}  // namespace seine

#endif  // SEINE_INDEX_SNAPSHOT_SNAPSHOT_SETTINGS_H_
