// What this build is.
#ifndef SEINE_SERVICE_METRICS_BUILD_INFO_H_
#define SEINE_SERVICE_METRICS_BUILD_INFO_H_

namespace seine {

const char* BuildVersion();  // "0.1.0"
const char* BuildCommit();   // of git, short; "unknown" where CMake found none when it configured

}  // namespace seine

#endif  // SEINE_SERVICE_METRICS_BUILD_INFO_H_
