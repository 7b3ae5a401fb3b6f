// Small files of text that say of themselves whether they are whole: their last line is "xxh3=" with the checksum of
// all before it.
#ifndef SEINE_SERVICE_FIELDS_CHECKED_TEXT_H_
#define SEINE_SERVICE_FIELDS_CHECKED_TEXT_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "index/bytes/file_ops.h"

namespace seine {

// Returns xxh3-128 of a text as 32 hexadecimal digits.
std::string ChecksumOf(absl::string_view text);
// `body`, which is lines, with its checksum behind it.
std::string WithChecksum(absl::string_view body);
// Takes the checksum off. False: there is none, or the text is torn or damaged.
bool TakeChecksum(absl::string_view* text);

// Absent: it cannot be read.
std::optional<std::string> ReadTextFile(const std::string& path);
// As WriteFile (index/snapshot/snapshot_file.h).
absl::Status WriteTextFile(const std::string& path, const std::string& text, FileOps* files);

}  // namespace seine

#endif  // SEINE_SERVICE_FIELDS_CHECKED_TEXT_H_
