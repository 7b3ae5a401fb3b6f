// What the demo prints: tables and, last, what it all means on this machine; or JSON.
#ifndef SEINE_CLIENT_DEMO_PRINT_H_
#define SEINE_CLIENT_DEMO_PRINT_H_

#include <optional>
#include <string>
#include <vector>

#include "client/cli/base/output.h"
#include "client/demo/replay.h"
#include "client/demo/timing.h"
#include "client/demo/trace.h"

namespace seine::demo {

struct Measured {
  Report report;
  TimedLengths attention;
};

// The keys are those that kJsonHelp explains.
cli::Json ToJson(const Trace& trace, const ReplayOptions& options, const Measured& measured);
std::string ToText(const Trace& trace, const ReplayOptions& options, const Measured& measured);

// Names of --transport: "auto", "shm", "blocking" and "polling". Absent: the name is none of them.
std::vector<std::string> TransportNames();
std::optional<client::Transport> TransportOf(const std::string& name);

// The JSON's keys, for --help.
extern const char kJsonHelp[];

}  // namespace seine::demo

#endif  // SEINE_CLIENT_DEMO_PRINT_H_
