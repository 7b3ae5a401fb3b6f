// Reads tensors from safetensors and .npy files by mapping them: traces, and vectors for queries.
//
// Formats: https://huggingface.co/docs/safetensors (u64 little-endian header length, JSON header, bytes) and
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html (versions 1 to 3, C order).
// Every size is checked at Open, so a tensor that Get returns lies wholly inside the file.
//
// Thread safety: a TensorFile is read-only once opened; any thread may call const members.
#ifndef SEINE_PROFILE_TENSOR_FILE_H_
#define SEINE_PROFILE_TENSOR_FILE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace seine {

class TensorFile {
 public:
  enum class Type : uint8_t { kBool, kU8, kI8, kU16, kI16, kF16, kBF16, kU32, kI32, kF32, kU64, kI64, kF64 };

  // Row-major, little-endian. `data` points into the mapped file: it lives as long as the TensorFile, and may lie on
  // any byte (use memcpy, not a cast, unless the writer is known to align).
  struct Tensor {
    Type type = Type::kF32;
    std::vector<int64_t> shape;  // empty: a scalar
    const uint8_t* data = nullptr;
    size_t bytes = 0;  // product of shape times SizeOf(type)
    int64_t num_elements() const { return static_cast<int64_t>(bytes / SizeOf(type)); }
  };

  // The one tensor of a .npy file has this name.
  static constexpr char kNpyName[] = "array";

  // Errors open with the path and say what is wrong: NOT_FOUND (no such file), PERMISSION_DENIED, DATA_LOSS (the file
  // is cut short), INVALID_ARGUMENT (another format, or a header that contradicts itself or the file).
  static absl::StatusOr<TensorFile> Open(const std::string& path);

  TensorFile(TensorFile&&) = default;
  TensorFile& operator=(TensorFile&&) = default;

  const std::string& path() const { return path_; }
  const std::vector<std::string>& names() const { return names_; }  // in the order of their bytes
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // NOT_FOUND names the tensor, and the file's own tensors.
  absl::StatusOr<Tensor> Get(absl::string_view name) const;

  // safetensors' name: "F16", "BF16", "F32", ...
  static absl::string_view NameOf(Type type);
  static size_t SizeOf(Type type);

  // Elements [first, first + count) of an F16, BF16, F32 or F64 tensor as fp32; INVALID_ARGUMENT for other types,
  // OUT_OF_RANGE outside the tensor. fp16 and bf16 convert without loss.
  static absl::StatusOr<std::vector<float>> ToFloat32(const Tensor& tensor, int64_t first, int64_t count);
  static absl::StatusOr<std::vector<float>> ToFloat32(const Tensor& tensor);

 private:
  class Mapping;
  TensorFile() = default;
  absl::Status ReadSafetensors();
  absl::Status ReadNpy();

  std::string path_;
  std::shared_ptr<const Mapping> mapping_;
  std::vector<std::string> names_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace seine

#endif  // SEINE_PROFILE_TENSOR_FILE_H_
