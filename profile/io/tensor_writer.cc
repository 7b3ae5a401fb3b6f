// The safetensors header, and a file that appears at once.
#include "profile/io/tensor_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "profile/io/checksum.h"
#include "profile/io/output_path.h"

namespace seine {
namespace {

using OrderedJson = nlohmann::ordered_json;

absl::Status WriteError(const std::string& path, int error) {
  const std::string text = absl::StrCat(path, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == EACCES || error == EPERM || error == EROFS) return absl::PermissionDeniedError(text);
  if (error == EISDIR) return absl::InvalidArgumentError(text);
  return absl::UnavailableError(text);
}

// Length, then JSON with the checksum of all that is to be written, padded so that the tensors begin on 8 bytes.
absl::StatusOr<std::string> MakeHeader(const std::vector<OutputTensor>& tensors,
                                       const std::vector<std::pair<std::string, std::string>>& metadata,
                                       const std::string& path) {
  OrderedJson header;
  header["__metadata__"][kChecksumKey] = kChecksumToCome;
  for (const auto& [key, value] : metadata) {
    if (key != kChecksumKey) header["__metadata__"][key] = value;  // that of a file it was copied from
  }
  uint64_t begin = 0;
  for (const OutputTensor& tensor : tensors) {
    const uint64_t end = begin + tensor.bytes.size();
    header[tensor.name] = {{"dtype", std::string(TensorFile::NameOf(tensor.type))},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const OrderedJson::type_error&) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": metadata that is not UTF-8 cannot be written"));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t size = text.size();
  std::string bytes = std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text;
  const size_t digits = FindChecksumDigits(bytes, kChecksumToCome), rest = digits + kChecksumDigits;
  uint32_t crc = Checksum(0, bytes.substr(0, digits));
  crc = Checksum(crc, bytes.substr(rest));
  for (const OutputTensor& tensor : tensors) crc = Checksum(crc, tensor.bytes);
  bytes.replace(rest - (sizeof(kChecksumToCome) - 1), sizeof(kChecksumToCome) - 1, ChecksumText(crc));
  return bytes;
}

// 0, or an errno.
int WriteAll(int fd, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = write(fd, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno != EINTR) return errno;
    if (count > 0) done += count;
  }
  return 0;
}

}  // namespace

absl::Status WriteTensors(const std::vector<OutputTensor>& tensors,
                          const std::vector<std::pair<std::string, std::string>>& metadata, const std::string& path) {
  const absl::StatusOr<std::string> header = MakeHeader(tensors, metadata, path);
  if (!header.ok()) return header.status();

  const absl::StatusOr<std::string> place = ResolveOutput(path);
  if (!place.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", place.status().message()));
  const std::string partial = PartialPath(*place, ".partial");
  const int fd = open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return WriteError(path, errno);
  int error = WriteAll(fd, *header);
  for (const OutputTensor& tensor : tensors) {
    assert(tensor.bytes.size() % TensorFile::SizeOf(tensor.type) == 0);
    if (error == 0) error = WriteAll(fd, tensor.bytes);
  }
  if (error == 0 && fsync(fd) < 0) error = errno;
  if (close(fd) < 0 && error == 0) error = errno;
  if (error == 0 && rename(partial.c_str(), place->c_str()) < 0) error = errno;
  if (error == 0) return absl::OkStatus();
  unlink(partial.c_str());
  return WriteError(path, error);
}

}  // namespace seine
