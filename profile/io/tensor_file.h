// Reads tensors from safetensors and .npy files: traces by mapping them, profiles and vectors into memory.
//
// Formats: https://huggingface.co/docs/safetensors (u64 little-endian header length, JSON header, bytes) and
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html (versions 1 to 3, C order).
// Every size is checked at Open, so a tensor that Get returns lies wholly inside the file.
//
// Thread safety: a TensorFile is read-only once opened; any thread may call const members.
#ifndef SEINE_PROFILE_IO_TENSOR_FILE_H_
#define SEINE_PROFILE_IO_TENSOR_FILE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "profile/io/file.h"

namespace seine {

class TensorFile {
 public:
  enum class Type : uint8_t { kBool, kU8, kI8, kU16, kI16, kF16, kBF16, kU32, kI32, kF32, kU64, kI64, kF64 };

  // Row-major, little-endian. `data` points into the file's bytes: it lives as long as the TensorFile, and may lie on
  // any byte (use memcpy, not a cast, unless the writer is known to align). nullptr after ReadHeader.
  struct Tensor {
    Type type = Type::kF32;
    std::vector<int64_t> shape;  // empty: a scalar
    const uint8_t* data = nullptr;
    size_t bytes = 0;  // product of shape times SizeOf(type)
    int64_t num_elements() const { return static_cast<int64_t>(bytes / SizeOf(type)); }
  };

  // The one tensor of a .npy file has this name.
  static constexpr char kNpyName[] = "array";

  // Maps the file, of any size: for traces, in programs that a person runs. Where somebody cuts it short meanwhile, a
  // read of it goes as mapping.h says, and no checksum is looked at. Errors open with the path and say what is wrong:
  // NOT_FOUND (no such file), PERMISSION_DENIED, DATA_LOSS (the file is cut short), INVALID_ARGUMENT (no regular file,
  // another format, or a header that contradicts itself or the file).
  static absl::StatusOr<TensorFile> Open(const std::string& path);
  // Copies the file into memory, of at most 2 GiB: for what a server reads. DATA_LOSS also where it changes meanwhile
  // or is not what its checksum states.
  static absl::StatusOr<TensorFile> Read(const std::string& path);
  // Nothing but names, types, shapes and metadata.
  static absl::StatusOr<TensorFile> ReadHeader(const std::string& path);

  TensorFile(TensorFile&&) = default;
  TensorFile& operator=(TensorFile&&) = default;

  const std::string& path() const { return path_; }
  const std::vector<std::string>& names() const { return names_; }  // in the order of their bytes
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  absl::string_view checksum() const;  // as the metadata states it; empty: it does not

  // NOT_FOUND names the tensor, and the file's own tensors. INVALID_ARGUMENT: its dtype is none of Type; such a tensor
  // is in nobody's way who asks for another.
  absl::StatusOr<Tensor> Get(absl::string_view name) const;

  // safetensors' name: "F16", "BF16", "F32", ...
  static absl::string_view NameOf(Type type);
  static size_t SizeOf(Type type);

  // Elements [first, first + count) of an F16, BF16, F32 or F64 tensor as fp32; INVALID_ARGUMENT for other types,
  // OUT_OF_RANGE outside the tensor. fp16 and bf16 convert without loss.
  static absl::StatusOr<std::vector<float>> ToFloat32(const Tensor& tensor, int64_t first, int64_t count);
  static absl::StatusOr<std::vector<float>> ToFloat32(const Tensor& tensor);

 private:
  using Bytes = std::shared_ptr<const uint8_t>;
  TensorFile() = default;
  static absl::StatusOr<TensorFile> Parse(const std::string& path,
                                          absl::FunctionRef<absl::StatusOr<Bytes>(const File&)> bytes_of);
  absl::string_view Text(size_t begin, size_t count) const;
  absl::Status ReadSafetensors();
  absl::Status ReadNpy();

  std::string path_;
  Bytes bytes_;  // the file's, mapped or copied: all of them, or those of its header
  size_t size_ = 0, data_begin_ = 0;
  std::vector<std::string> names_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::map<std::string, std::string, std::less<>> unknown_;  // dtypes of tensors that cannot be read, by name
  std::map<std::string, std::string> metadata_;
};

}  // namespace seine

#endif  // SEINE_PROFILE_IO_TENSOR_FILE_H_
