// Writes a safetensors file whole or not at all: beside the path, then renamed into place.
#ifndef SEINE_PROFILE_IO_TENSOR_WRITER_H_
#define SEINE_PROFILE_IO_TENSOR_WRITER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "profile/io/tensor_file.h"

namespace seine {

struct OutputTensor {
  std::string name;
  TensorFile::Type type = TensorFile::Type::kF32;
  std::vector<int64_t> shape;
  std::string bytes;  // row-major, little-endian: product of shape times the type's size
};

// Tensors and metadata stand in the file in the order given, so equal input makes equal bytes; a checksum of the whole
// goes before the metadata (checksum.h). Errors open with the
// path: INVALID_ARGUMENT (metadata that is not UTF-8), NOT_FOUND (no such folder), PERMISSION_DENIED, UNAVAILABLE (the
// disk is full, say); whatever stood at the path is then as it was.
absl::Status WriteTensors(const std::vector<OutputTensor>& tensors,
                          const std::vector<std::pair<std::string, std::string>>& metadata, const std::string& path);

}  // namespace seine

#endif  // SEINE_PROFILE_IO_TENSOR_WRITER_H_
