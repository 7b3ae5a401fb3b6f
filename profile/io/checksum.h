// The checksum that a safetensors file of ours carries in its metadata: CRC-32 of every byte of the file but the eight
// digits that state it. Python's writer makes the same (seine_kv/tensor_file.py). It finds damage, not an enemy's hand.
#ifndef SEINE_PROFILE_IO_CHECKSUM_H_
#define SEINE_PROFILE_IO_CHECKSUM_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace seine {

inline constexpr char kChecksumKey[] = "seine_checksum";
inline constexpr char kChecksumToCome[] = "crc32:00000000";  // in a header until the digits are known

// Goes on from `crc`, the checksum of what lies before `bytes`; 0 at the start.
uint32_t Checksum(uint32_t crc, absl::string_view bytes);

// "crc32:0f3a9c1b".
std::string ChecksumText(uint32_t crc);

// Offset of the digits in `header`, a file's bytes up to its tensors, whose metadata states `value`; npos: not found.
size_t FindChecksumDigits(absl::string_view header, absl::string_view value);
inline constexpr size_t kChecksumDigits = 8;

// Whether the whole `file` is what its metadata's `value` states; the error says what is wrong, without the path.
// `header_size`: of the bytes before the tensors.
absl::Status VerifyChecksum(absl::string_view file, size_t header_size, absl::string_view value);

}  // namespace seine

#endif  // SEINE_PROFILE_IO_CHECKSUM_H_
