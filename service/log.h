// seined's log on stderr by spdlog: lines for people, or JSON objects for machines.
//
// A line waits in a queue of kLogLines for a thread that writes it, so that nobody who logs waits for whoever reads
// stderr. Where the queue is full the oldest line is dropped; how many were is counted, and said in a line once stderr
// takes lines again. Every function but StartLog may be called from any thread.
#ifndef SEINE_SERVICE_LOG_H_
#define SEINE_SERVICE_LOG_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace seine {

inline constexpr int kLogLines = 4096;

// `level`: debug, info, warning or error; `format`: text or json. Once, before other threads log. RESOURCE_EXHAUSTED:
// the system has no thread for it.
absl::Status StartLog(const std::string& level, const std::string& format);
// Another level, from now on.
void SetLogLevel(const std::string& level);

// Hands over a line that is written as it is, whatever the level, after those before it. False: there is no log.
bool LogAsItIs(const std::string& line);

// For whoever ends the process: waits until the lines of before are written, at most until `last`, and no longer than
// 300 ms in which stderr takes none. False: some are not.
bool FlushLog(absl::Time last);

// Lines that were lost since the start: dropped, or refused by stderr.
int64_t LostLogLines();

inline constexpr char kLogName[] = "seined";  // of spdlog's default logger, once it is this one

}  // namespace seine

#endif  // SEINE_SERVICE_LOG_H_
