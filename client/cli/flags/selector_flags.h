// Flags of what a call selects.
#ifndef SEINE_CLIENT_CLI_FLAGS_SELECTOR_FLAGS_H_
#define SEINE_CLIENT_CLI_FLAGS_SELECTOR_FLAGS_H_

#include <string>
#include <vector>

#include "client/cli/flags/field_flags.h"
#include "seine/v1/retrieval_service.pb.h"

namespace seine::cli {

inline constexpr char kSelection[] = "What to select";  // the group's name

inline void AddSelectorFlags(const FlagGroup& group, v1::Selector* selector, const std::vector<std::string>& but = {}) {
  AddFieldFlags(
      group, *v1::Selector::descriptor(), [selector] { return selector; }, but);
  group.command->get_option("--recall-target")->excludes(group.command->get_option("--candidate-fraction"));
}

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_FLAGS_SELECTOR_FLAGS_H_
