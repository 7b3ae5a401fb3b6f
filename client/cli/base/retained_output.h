// What an append reports of the positions that a layer's heads retain, for people and programs.
#ifndef SEINE_CLIENT_CLI_BASE_RETAINED_OUTPUT_H_
#define SEINE_CLIENT_CLI_BASE_RETAINED_OUTPUT_H_

#include <string>
#include <vector>

#include "client/cli/base/output.h"
#include "client/types.h"

namespace seine::cli {

// The one report of an append of one layer; null, and nothing, where none was asked for.
Json RetainedJson(const std::vector<client::LayerRetained>& reports);
std::string RetainedText(const std::vector<client::LayerRetained>& reports);

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_BASE_RETAINED_OUTPUT_H_
