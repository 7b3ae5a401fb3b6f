// Files that are written beside their place and renamed, so that there is never half of one; read in large steps.
//
// Errors tell no path: a server's folders are none of its clients' business. Whoever knows the path adds it.
#ifndef SEINE_INDEX_BYTES_FILES_H_
#define SEINE_INDEX_BYTES_FILES_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "index/bytes/byte_stream.h"
#include "index/bytes/file_ops.h"

namespace seine {

// Names of files that are not whole yet end so; no finished one's does.
inline constexpr char kPartialSuffix[] = ".partial";

// Writes what `write` gives its sink to `path`, in place of what was there; where that is a link, to what it leads to,
// as OpenFile reads it. INVALID_ARGUMENT, and nothing written: `path` is no regular file, or holds a NUL. Once it
// returns OK the file is there also after a loss of power. An error leaves what was there before, and nothing beside
// it: RESOURCE_EXHAUSTED where the disk is full, NOT_FOUND where there is no folder, PERMISSION_DENIED, UNAVAILABLE, or
// those of `write`. Only where the folder cannot be written through is the file the new one, and not known to last:
// UNAVAILABLE.
absl::Status WriteFile(const std::string& path, const std::function<absl::Status(ByteSink*)>& write,
                       FileOps* files = nullptr);

// NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (no regular file), UNAVAILABLE.
absl::StatusOr<std::unique_ptr<ByteSource>> OpenFile(const std::string& path);

// Removes what processes that have ended have left half written in a folder; returns how many files. What another
// process is writing stays.
int RemovePartialFiles(const std::string& folder, FileOps* files = nullptr);

}  // namespace seine

#endif  // SEINE_INDEX_BYTES_FILES_H_
