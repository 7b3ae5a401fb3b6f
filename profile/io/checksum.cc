#include "profile/io/checksum.h"

#include <zlib.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace seine {

uint32_t Checksum(uint32_t crc, absl::string_view bytes) {
  return static_cast<uint32_t>(crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::string ChecksumText(uint32_t crc) { return absl::StrFormat("crc32:%08x", crc); }

size_t FindChecksumDigits(absl::string_view header, absl::string_view value) {
  const size_t key = header.find(absl::StrCat("\"", kChecksumKey, "\""));
  const size_t at = key == absl::string_view::npos ? key : header.find(value, key);
  return at == absl::string_view::npos ? at : at + value.size() - kChecksumDigits;
}

absl::Status VerifyChecksum(absl::string_view file, size_t header_size, absl::string_view value) {
  const bool known = absl::StartsWith(value, "crc32:") && value.size() == sizeof(kChecksumToCome) - 1;
  const size_t at = known ? FindChecksumDigits(file.substr(0, header_size), value) : absl::string_view::npos;
  if (at == absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("checksum: '", value, "' is of no known kind"));
  }
  const std::string found = ChecksumText(Checksum(Checksum(0, file.substr(0, at)), file.substr(at + kChecksumDigits)));
  if (found == value) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("damaged: its checksum is ", value, " and its bytes make ", found));
}

}  // namespace seine
