// Parts in processes of their own, and the files that they leave.
#ifndef SEINE_TESTS_DEVICE_CHILD_H_
#define SEINE_TESTS_DEVICE_CHILD_H_

#include <functional>
#include <string>

#include "tests/device/suite.h"

namespace seine::device {

// No JSON where there is no file, or half of one.
Json ReadJson(const std::string& path);
// Whole or not at all, for whoever copies the folder meanwhile.
void WriteJson(const std::string& path, const Json& json);

// run()'s result by a child process, through a file at `path`. One that ends without a result, or is not back
// grace_s after its limit, which ends it, has failed: "error" says how.
Json RunInChild(const Part& part, double limit_s, double grace_s, const std::string& path,
                const std::function<Json()>& run);

}  // namespace seine::device

#endif  // SEINE_TESTS_DEVICE_CHILD_H_
