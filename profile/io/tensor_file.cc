// Opening and checking safetensors and .npy files. Nothing in a file is believed before it is compared with the file's
// size.
#include "profile/io/tensor_file.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "profile/io/checksum.h"
#include "profile/io/json.h"

namespace seine {
namespace {

using Json = nlohmann::json;
using Type = TensorFile::Type;
using Tensor = TensorFile::Tensor;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // safetensors' own limit
constexpr uint64_t kMaxPrefix = 12;                // before a header of either format
constexpr uint64_t kMaxReadBytes = uint64_t{2} << 30;
constexpr absl::string_view kNpyMagic("\x93NUMPY", 6);

struct TypeRow {
  Type type;
  absl::string_view safetensors_name;
  absl::string_view npy_name;  // descr without its byte-order mark; empty: numpy has none
  size_t size;
};
constexpr TypeRow kTypes[] = {
    {Type::kBool, "BOOL", "b1", 1}, {Type::kU8, "U8", "u1", 1},   {Type::kI8, "I8", "i1", 1},
    {Type::kU16, "U16", "u2", 2},   {Type::kI16, "I16", "i2", 2}, {Type::kF16, "F16", "f2", 2},
    {Type::kBF16, "BF16", "", 2},   {Type::kU32, "U32", "u4", 4}, {Type::kI32, "I32", "i4", 4},
    {Type::kF32, "F32", "f4", 4},   {Type::kU64, "U64", "u8", 8}, {Type::kI64, "I64", "i8", 8},
    {Type::kF64, "F64", "f8", 8},
};

const TypeRow& RowOf(Type type) { return kTypes[static_cast<size_t>(type)]; }

// What a file says may be anything, and an error is one line.
std::string WithoutControls(std::string text) {
  for (char& c : text) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = '?';
  }
  return text;
}

template <typename... Parts>
absl::Status Torn(const std::string& path, const Parts&... parts) {
  return absl::DataLossError(absl::StrCat(path, ": cut short: ", WithoutControls(absl::StrCat(parts...))));
}

template <typename... Parts>
absl::Status BadFile(const std::string& path, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", WithoutControls(absl::StrCat(parts...))));
}

// Product of `shape` times `element`; false where it does not fit.
bool ByteSize(const std::vector<int64_t>& shape, size_t element, size_t* bytes) {
  size_t product = element;
  for (int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(product, static_cast<size_t>(dim), &product)) return false;
  }
  *bytes = product;
  return true;
}

// Where a tensor lies among the bytes after a safetensors header.
struct Entry {
  uint64_t begin = 0, end = 0;
  Tensor tensor;
  std::string unknown;  // its dtype, where no Type has it: `tensor` is empty
};

// One tensor's entry of a safetensors header; `data_size` bytes follow the header.
absl::StatusOr<Entry> ParseEntry(const std::string& path, const std::string& name, const Json& entry,
                                 const uint8_t* data, uint64_t data_size) {
  const auto bad = [&](const auto&... parts) { return BadFile(path, "tensor ", name, ": ", parts...); };
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets")) {
    return bad("header needs dtype, shape and data_offsets");
  }
  Entry out;
  Tensor& tensor = out.tensor;
  const Json& dtype = entry["dtype"];
  const auto row = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeRow& candidate) {
    return dtype.is_string() && dtype.get_ref<const std::string&>() == candidate.safetensors_name;
  });
  const bool known = row != std::end(kTypes);
  if (!dtype.is_string()) return bad("dtype must be text, not ", ShownJson(dtype));
  if (known) tensor.type = row->type;

  const Json& shape = entry["shape"];
  if (!shape.is_array()) return bad("shape must be a list");
  for (const Json& dim : shape) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() > std::numeric_limits<int64_t>::max()) {
      return bad("shape ", ShownJson(shape), " holds something that is no size");
    }
    tensor.shape.push_back(dim.get<int64_t>());
  }
  if (!ByteSize(tensor.shape, known ? row->size : 1, &tensor.bytes)) {
    return bad("shape ", ShownJson(shape), " is too large");
  }

  const Json& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return bad("data_offsets must be two sizes");
  }
  const uint64_t begin = out.begin = offsets[0].get<uint64_t>(), end = out.end = offsets[1].get<uint64_t>();
  if (begin > end || (known && end - begin != tensor.bytes)) {
    return bad("data_offsets ", ShownJson(offsets), " contradict shape ", ShownJson(shape), " of ",
               dtype.get_ref<const std::string&>());
  }
  if (end > data_size) {
    return Torn(path, "tensor ", name, " ends at byte ", end, " of the data and the file holds ", data_size);
  }
  tensor.data = data + begin;
  if (!known) out.unknown = ShownJson(dtype);
  return out;
}

// The value after `key` in a .npy header, a Python dict literal such as
// {'descr': '<f4', 'fortran_order': False, 'shape': (3, 64), }. Ends at the comma or bracket that closes it.
absl::StatusOr<absl::string_view> NpyValue(const std::string& path, absl::string_view header, absl::string_view key) {
  const std::string quoted = absl::StrCat("'", key, "':");
  const size_t at = header.find(quoted);
  if (at == absl::string_view::npos) return BadFile(path, ".npy header has no ", key);
  absl::string_view rest = absl::StripLeadingAsciiWhitespace(header.substr(at + quoted.size()));
  const size_t end = absl::StartsWith(rest, "(") ? rest.find(')') : rest.find_first_of(",}");
  if (end == absl::string_view::npos) return BadFile(path, ".npy header: ", key, " does not end");
  return absl::StripTrailingAsciiWhitespace(rest.substr(0, absl::StartsWith(rest, "(") ? end + 1 : end));
}

// A file that stops inside the magic is a torn .npy: 0x93 opens no safetensors file of sane header length and '{'.
bool IsNpy(absl::string_view start) { return start == kNpyMagic.substr(0, start.size()); }

// Where the header ends of a file that opens with `start`, its first bytes; at least kMaxPrefix, and no further than a
// header may go.
uint64_t HeaderEnd(absl::string_view start) {
  const bool npy = IsNpy(start.substr(0, kNpyMagic.size()));
  const size_t at = npy ? 8 : 0;
  uint64_t header_size = 0, width = npy ? (start.size() > 6 && start[6] == 1 ? 2 : 4) : 8;
  std::memcpy(&header_size, start.data() + std::min(at, start.size()),
              std::min<size_t>(width, start.size() - std::min(at, start.size())));
  return std::max(kMaxPrefix, at + width + std::min(header_size, kMaxHeaderBytes));
}

// A string's bytes, kept.
absl::StatusOr<std::shared_ptr<const uint8_t>> Own(absl::StatusOr<std::string> text) {
  if (!text.ok()) return text.status();
  const auto kept = std::make_shared<const std::string>(*std::move(text));
  return std::shared_ptr<const uint8_t>(kept, reinterpret_cast<const uint8_t*>(kept->data()));
}

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 31, fraction = half & 1023;
  if (exponent == 0) {  // zero and subnormals: fraction * 2^-24, exact in fp32
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -value : value;
  }
  // Rebias 15 -> 127; exponent 31 (infinity, NaN) becomes 255.
  const uint32_t bits = sign | ((exponent == 31 ? 255 : exponent + 112) << 23) | (fraction << 13);
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

absl::StatusOr<TensorFile> TensorFile::Open(const std::string& path) {
  return Parse(path, [](const File& file) { return file.Map(); });
}

absl::StatusOr<TensorFile> TensorFile::Read(const std::string& path) {
  absl::StatusOr<TensorFile> file = Parse(path, [](const File& opened) { return Own(opened.ReadAll(kMaxReadBytes)); });
  if (!file.ok() || file->checksum().empty()) return file;
  const absl::Status status = VerifyChecksum(file->Text(0, file->size_), file->data_begin_, file->checksum());
  return status.ok() ? std::move(file) : absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

absl::StatusOr<TensorFile> TensorFile::ReadHeader(const std::string& path) {
  absl::StatusOr<TensorFile> file = Parse(path, [](const File& opened) -> absl::StatusOr<Bytes> {
    const absl::StatusOr<std::string> start = opened.Read(0, std::min(opened.size(), kMaxPrefix));
    if (!start.ok()) return start.status();
    return Own(opened.Read(0, std::min(opened.size(), HeaderEnd(*start))));
  });
  if (!file.ok()) return file;
  for (auto& [name, tensor] : file->tensors_) tensor.data = nullptr;
  return file;
}

absl::StatusOr<TensorFile> TensorFile::Parse(const std::string& path,
                                             absl::FunctionRef<absl::StatusOr<Bytes>(const File&)> bytes_of) {
  const absl::StatusOr<File> opened = File::Open(path);
  if (!opened.ok()) return opened.status();
  if (opened->size() == 0) return Torn(path, "the file is empty");
  absl::StatusOr<Bytes> bytes = bytes_of(*opened);
  if (!bytes.ok()) return bytes.status();
  TensorFile file;
  file.path_ = path;
  file.bytes_ = *std::move(bytes);
  file.size_ = opened->size();
  const absl::Status status =
      IsNpy(file.Text(0, std::min(file.size_, kNpyMagic.size()))) ? file.ReadNpy() : file.ReadSafetensors();
  if (!status.ok()) return status;
  return file;
}

absl::string_view TensorFile::Text(size_t begin, size_t count) const {
  return absl::string_view(reinterpret_cast<const char*>(bytes_.get()) + begin, count);
}

absl::string_view TensorFile::checksum() const {
  const auto it = metadata_.find(kChecksumKey);
  return it == metadata_.end() ? absl::string_view() : absl::string_view(it->second);
}

absl::Status TensorFile::ReadSafetensors() {
  const size_t size = size_;
  uint64_t header_size = 0;
  if (size < sizeof(header_size) + 1) return Torn(path_, "only ", size, " bytes; neither safetensors nor .npy");
  std::memcpy(&header_size, bytes_.get(), sizeof(header_size));
  if (bytes_.get()[8] != '{' || header_size > kMaxHeaderBytes) {
    return BadFile(path_, "neither a safetensors nor a .npy file");
  }
  if (header_size > size - 8) return Torn(path_, "the header has ", header_size, " bytes and the file ", size);
  const absl::StatusOr<Json> parsed_header = ParseJson(Text(8, header_size));
  if (!parsed_header.ok()) return BadFile(path_, "the safetensors header ", parsed_header.status().message());
  const Json& header = *parsed_header;
  if (!header.is_object()) return BadFile(path_, "the safetensors header is not JSON");
  data_begin_ = 8 + header_size;

  const uint64_t data_size = size - 8 - header_size;
  std::vector<std::tuple<uint64_t, uint64_t, std::string>> order;  // begin, end, name
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) return BadFile(path_, "__metadata__ must be an object of strings");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) return BadFile(path_, "__metadata__.", key, " must be a string");
        metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    auto parsed = ParseEntry(path_, name, entry, bytes_.get() + 8 + header_size, data_size);
    if (!parsed.ok()) return parsed.status();
    order.emplace_back(parsed->begin, parsed->end, name);
    if (parsed->unknown.empty()) {
      tensors_.emplace(name, std::move(parsed->tensor));
    } else {
      unknown_.emplace(name, std::move(parsed->unknown));
    }
  }
  // The format: tensors lie back to back and fill the file.
  std::sort(order.begin(), order.end());
  uint64_t expected = 0;
  for (const auto& [begin, end, name] : order) {
    if (begin != expected) return BadFile(path_, "tensor ", name, " overlaps another, or bytes before it are unused");
    expected = end;
    names_.push_back(name);
  }
  if (expected != data_size) return BadFile(path_, data_size - expected, " bytes after the last tensor");
  return absl::OkStatus();
}

absl::Status TensorFile::ReadNpy() {
  const size_t size = size_;
  if (size < 10) return Torn(path_, "only ", size, " bytes of a .npy file");
  const uint8_t* data = bytes_.get();
  const int version = data[6];
  if (version < 1 || version > 3) return BadFile(path_, ".npy version ", version, " is unknown");
  const size_t prefix = version == 1 ? 10 : 12;
  if (size < prefix) return Torn(path_, "only ", size, " bytes of a .npy file");
  uint32_t header_size = 0;
  std::memcpy(&header_size, data + 8, prefix - 8);
  if (header_size > kMaxHeaderBytes) return BadFile(path_, ".npy header of ", header_size, " bytes");
  if (header_size > size - prefix) return Torn(path_, "the header has ", header_size, " bytes and the file ", size);
  const absl::string_view header = Text(prefix, header_size);
  const auto descr = NpyValue(path_, header, "descr"), order = NpyValue(path_, header, "fortran_order"),
             shape = NpyValue(path_, header, "shape");
  for (const auto* value : {&descr, &order, &shape}) {
    if (!value->ok()) return value->status();
  }

  const auto row = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeRow& candidate) {
    return !candidate.npy_name.empty() &&
           (*descr == absl::StrCat("'<", candidate.npy_name, "'") ||
            (candidate.size == 1 && *descr == absl::StrCat("'|", candidate.npy_name, "'")));
  });
  if (row == std::end(kTypes)) return BadFile(path_, "dtype ", *descr, " is not a little-endian number");
  if (*order != "False") return BadFile(path_, "the array is in Fortran order; save numpy.ascontiguousarray of it");
  Tensor tensor;
  tensor.type = row->type;
  absl::string_view dims = *shape;
  if (!absl::ConsumePrefix(&dims, "(") || !absl::ConsumeSuffix(&dims, ")"))
    return BadFile(path_, "shape ", *shape, " is no tuple");
  for (absl::string_view dim : absl::StrSplit(dims, ',', absl::SkipWhitespace())) {
    if (!absl::SimpleAtoi(dim, &tensor.shape.emplace_back()))
      return BadFile(path_, "shape ", *shape, " holds something that is no size");
  }
  if (!ByteSize(tensor.shape, row->size, &tensor.bytes)) return BadFile(path_, "shape ", *shape, " is too large");
  const size_t data_size = size - prefix - header_size;
  if (data_size < tensor.bytes)
    return Torn(path_, "the array has ", tensor.bytes, " bytes and the file holds ", data_size);
  if (data_size > tensor.bytes) return BadFile(path_, data_size - tensor.bytes, " bytes after the array");
  tensor.data = data + prefix + header_size;
  names_.push_back(kNpyName);
  tensors_.emplace(kNpyName, std::move(tensor));
  return absl::OkStatus();
}

absl::StatusOr<TensorFile::Tensor> TensorFile::Get(absl::string_view name) const {
  const auto it = tensors_.find(name);
  if (it != tensors_.end()) return it->second;
  if (const auto unknown = unknown_.find(name); unknown != unknown_.end()) {
    return BadFile(path_, "tensor ", name, ": unknown dtype ", unknown->second);
  }
  return absl::NotFoundError(
      absl::StrCat(path_, ": no tensor named ", name, "; it holds ", absl::StrJoin(names_, ", ")));
}

absl::string_view TensorFile::NameOf(Type type) { return RowOf(type).safetensors_name; }

size_t TensorFile::SizeOf(Type type) { return RowOf(type).size; }

absl::StatusOr<std::vector<float>> TensorFile::ToFloat32(const Tensor& tensor, int64_t first, int64_t count) {
  const int64_t total = tensor.num_elements();
  if (first < 0 || count < 0 || first > total || count > total - first) {
    return absl::OutOfRangeError(
        absl::StrCat("elements [", first, ", ", first, " + ", count, ") of a tensor of ", total));
  }
  if (count == 0) return std::vector<float>();
  const uint8_t* source = tensor.data + first * SizeOf(tensor.type);
  std::vector<float> out(count);
  const auto convert = [&](auto element, const auto& to_float) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(&element, source + i * sizeof(element), sizeof(element));
      out[i] = to_float(element);
    }
  };
  switch (tensor.type) {
    case Type::kF32:
      std::memcpy(out.data(), source, count * sizeof(float));
      return out;
    case Type::kF64:
      convert(double(), [](double value) { return static_cast<float>(value); });
      return out;
    case Type::kF16:
      convert(uint16_t(), HalfToFloat);
      return out;
    case Type::kBF16:
      convert(uint16_t(), [](uint16_t value) {
        const uint32_t bits = static_cast<uint32_t>(value) << 16;
        float out_value;
        std::memcpy(&out_value, &bits, sizeof(out_value));
        return out_value;
      });
      return out;
    default:
      return absl::InvalidArgumentError(absl::StrCat("dtype ", NameOf(tensor.type), " is not a floating-point type"));
  }
}

absl::StatusOr<std::vector<float>> TensorFile::ToFloat32(const Tensor& tensor) {
  return ToFloat32(tensor, 0, tensor.num_elements());
}

}  // namespace seine
