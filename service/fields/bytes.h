// Sizes as people write them.
#ifndef SEINE_SERVICE_FIELDS_BYTES_H_
#define SEINE_SERVICE_FIELDS_BYTES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace seine {

// 8GiB, 512MiB, 64KiB, 4GB (powers of ten), 1048576; at least 0.
absl::StatusOr<int64_t> ParseBytes(const std::string& text);
std::string FormatBytes(int64_t bytes);

}  // namespace seine

#endif  // SEINE_SERVICE_FIELDS_BYTES_H_
