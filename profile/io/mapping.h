// Files that are mapped into memory, and what happens where somebody cuts one short while it is read: a touch of bytes
// that it no longer has is SIGBUS, which ends the process without a word unless the program has asked to be told.
#ifndef SEINE_PROFILE_IO_MAPPING_H_
#define SEINE_PROFILE_IO_MAPPING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"

namespace seine {

// Told of DATA_LOSS "PATH: cut short while it is read", on the thread that touched the bytes. It must not return. The
// signal comes of a plain read, never of a call that holds a lock of the C library, so it may do what other code may.
using CutShort = void (*)(const absl::Status& error);

// For programs that a person runs: from now on `tell` is called in place of SIGBUS. A SIGBUS that is not of a mapped
// file goes on as before. Once, before threads start.
void TellOfCutFiles(CutShort tell);

// Maps `count` bytes, above zero, of a file; nullptr: errno says why.
std::shared_ptr<const uint8_t> MapFile(int fd, size_t count, const std::string& path);

}  // namespace seine

#endif  // SEINE_PROFILE_IO_MAPPING_H_
