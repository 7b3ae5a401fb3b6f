// seined's log on stderr by spdlog: lines for people, or JSON objects for machines.
#ifndef SEINE_SERVICE_LOG_H_
#define SEINE_SERVICE_LOG_H_

#include <string>

namespace seine {

// `level`: debug, info, warning or error; `format`: text or json. Once, before other threads log.
void StartLog(const std::string& level, const std::string& format);
// Another level, from now on.
void SetLogLevel(const std::string& level);

inline constexpr char kLogName[] = "seined";  // of spdlog's default logger, once it is this one

}  // namespace seine

#endif  // SEINE_SERVICE_LOG_H_
