// Files of tensors: safetensors and .npy, and what is read out of them: profiles, Q-Filters, traces, queries.
#include <cmath>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/input/calibration.h"
#include "client/cli/input/vector_file.h"
#include "client/demo/trace.h"
#include "profile/filters.h"
#include "profile/io/tensor_file.h"
#include "profile/io/tensor_writer.h"
#include "profile/moments.h"
#include "profile/profile.h"
#include "tests/fuzz/targets/targets.h"
#include "tests/temp_folder.h"

namespace seine::fuzz {
namespace {

using Type = TensorFile::Type;
using Metadata = std::vector<std::pair<std::string, std::string>>;

constexpr int kDim = 4, kQHeads = 2, kKvHeads = 1;
constexpr size_t kLengthBytes = 8;

std::string Numbers(size_t count, Type type) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    const float value = std::sin(static_cast<float>(i) * 1.7f);
    const uint16_t half = static_cast<uint16_t>(0x3800 + i % 0x400);
    bytes.append(type == Type::kF16 ? reinterpret_cast<const char*>(&half) : reinterpret_cast<const char*>(&value),
                 TensorFile::SizeOf(type));
  }
  return bytes;
}

OutputTensor Tensor(const std::string& name, const std::vector<int64_t>& shape, Type type = Type::kF32) {
  size_t count = 1;
  for (const int64_t dim : shape) count *= static_cast<size_t>(dim);
  return {name, type, shape, Numbers(count, type)};
}

std::string ReadBack(const std::string& path) {
  auto file = File::Open(path);
  auto bytes = file.ok() ? file->ReadAll(1 << 20) : file.status();
  if (!bytes.ok()) Fail(bytes.status().ToString());
  return *bytes;
}

// Without its checksum a file that is changed is no damaged one.
std::string WithoutChecksum(std::string bytes) {
  const size_t at = bytes.find("seine_checksum");
  if (at != std::string::npos) bytes.replace(at, 5, "other");
  return bytes;
}

std::string Written(const std::vector<OutputTensor>& tensors, const Metadata& metadata) {
  const TempFolder folder;
  const absl::Status status = WriteTensors(tensors, metadata, folder.Path("t"));
  if (!status.ok()) Fail(status.ToString());
  return ReadBack(folder.Path("t"));
}

// Keeps the header's length right, mostly.
class TensorFileTarget : public Target {
 public:
  std::string Mutate(std::string input, Random& random, const ByteMutator& bytes) override {
    uint64_t length = 0;
    if (input.size() < kLengthBytes || random.OneIn(8)) return bytes(std::move(input));
    memcpy(&length, input.data(), kLengthBytes);
    if (length > input.size() - kLengthBytes) return bytes(std::move(input));
    std::string header = input.substr(kLengthBytes, length), data = input.substr(kLengthBytes + length);
    if (random.OneIn(2)) {
      header = bytes(std::move(header));
    } else if (random.OneIn(2) || data.size() < 4) {
      data = bytes(std::move(data));
    } else {
      const uint32_t patterns[] = {0, 0x7f800000, 0x7fc00000, 0xff7fffff, 0x7c007c00, 0x80000001, 0x42c80000};
      memcpy(data.data() + 4 * random.Below(data.size() / 4), &patterns[random.Below(std::size(patterns))], 4);
    }
    length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), kLengthBytes) + header + data;
  }

 protected:
  // Readers say one of these, and begin with the path.
  static void Check(const absl::Status& status, const std::string& path) {
    switch (status.code()) {
      case absl::StatusCode::kOk:
      case absl::StatusCode::kInvalidArgument:
      case absl::StatusCode::kDataLoss:
      case absl::StatusCode::kNotFound:
      case absl::StatusCode::kFailedPrecondition:
        break;
      default:
        Fail(status.ToString());
    }
    if (!status.ok() && status.message().find('\n') != std::string::npos)
      Fail(absl::StrCat("an error of several lines: ", status.ToString()));
    if (!status.ok() && status.message().substr(0, path.size()) != path)
      Fail(absl::StrCat("no path: ", status.ToString()));
  }
};

class TensorsTarget : public TensorFileTarget {
 public:
  std::vector<std::string> Seeds() override {
    std::string npy("\x93NUMPY\x01\x00", 8);
    const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }\n";
    npy += std::string{static_cast<char>(header.size()), '\0'} + header + Numbers(6, Type::kF32);
    return {Written({Tensor("a", {2, 3}), Tensor("b", {4}, Type::kF16), Tensor("c", {})}, {{"k", "v"}}),
            WithoutChecksum(Written({Tensor("empty", {0, 5})}, {})), npy};
  }

  void Run(absl::string_view input) override {
    const std::string& path = WriteInput(input, "t.safetensors");
    const auto mapped = TensorFile::Open(path), read = TensorFile::Read(path), header = TensorFile::ReadHeader(path);
    for (const absl::Status& status : {mapped.status(), read.status(), header.status()}) Check(status, path);
    if (read.ok() && (!mapped.ok() || !header.ok())) Fail("a whole file has no header");
    if (mapped.ok() && read.ok() && SumOf(*mapped) != SumOf(*read)) Fail("mapped and copied bytes differ");
  }

 private:
  // Touches every byte.
  static uint32_t SumOf(const TensorFile& file) {
    uint32_t sum = 0;
    for (const std::string& name : file.names()) {
      const auto tensor = file.Get(name);
      if (absl::IsInvalidArgument(tensor.status())) continue;  // of an unknown dtype
      if (!tensor.ok()) Fail(tensor.status().ToString());
      for (size_t i = 0; i < tensor->bytes; ++i) sum = sum * 31 + tensor->data[i];
      const auto floats = TensorFile::ToFloat32(*tensor);
      if (floats.ok() && static_cast<int64_t>(floats->size()) != tensor->num_elements()) Fail("elements are lost");
      TensorFile::ToFloat32(*tensor, 1, 1).IgnoreError();
      TensorFile::ToFloat32(*tensor, INT64_MAX, INT64_MAX).IgnoreError();
    }
    return sum;
  }
};

class ProfileTarget : public TensorFileTarget {
 public:
  std::vector<std::string> Seeds() override {
    std::vector<std::string> seeds;
    for (const bool values : {false, true}) {
      for (const ProfilePrecision precision : {ProfilePrecision::kFloat16, ProfilePrecision::kFloat32}) {
        const TempFolder folder;
        const absl::Status status = WriteProfile(Made(values), precision, folder.Path("p"));
        if (!status.ok()) Fail(status.ToString());
        seeds.push_back(WithoutChecksum(ReadBack(folder.Path("p"))));
        seeds.push_back(ReadBack(folder.Path("p")));
      }
    }
    return seeds;
  }

  void Run(absl::string_view input) override {
    const std::string& path = WriteInput(input, "p.profile.safetensors");
    std::string checksum;
    Check(CheckIsProfile(path, &checksum), path);
    Check(ReadProfileHeader(path).status(), path);
    const auto profile = ReadProfile(path);
    Check(profile.status(), path);
    if (!profile.ok()) return;
    CheckGeometry(*profile, 1, kQHeads, kKvHeads, kDim).IgnoreError();
    const auto rope = ParseRope(profile->rope_json, profile->head_dim, profile->rope_style, 1);
    if (!rope.ok()) return;
    for (int layer = -1; layer <= profile->num_layers(); ++layer) {
      const auto filters = FiltersFromProfile(*profile, layer, *rope, 0, 4096);
      if (!filters.ok()) continue;
      for (const float value : *filters) {
        if (!std::isfinite(value)) Fail("a profile that was taken makes a filter that is not finite");
      }
    }
  }

 private:
  static Profile Made(bool values) {
    ProfileBuilder builder(1, kQHeads, kKvHeads, kDim);
    const auto rope = ParseRope(R"({"rope_theta": 10000.0})", kDim, Rope::Style::kHalfSplit, 1);
    const std::string bytes = Numbers(64 * kQHeads * kDim, Type::kF32);
    std::vector<float> rows(64 * kQHeads * kDim);
    memcpy(rows.data(), bytes.data(), bytes.size());
    builder.AddKeys(0, rows.data(), 64, 16, *rope);
    builder.AddQueries(0, rows.data(), 64, 16, *rope);
    if (values) builder.AddValues(0, rows.data(), 64);
    Profile profile = *builder.Finish();
    profile.model = "made up";
    profile.texts = {"none"};
    profile.rope_json = values ? R"({"rope_theta": 10000.0, "partial_rotary_factor": 0.5})" : "";
    if (values) profile.layer_ropes_json = R"([{"layers": [0], "rope": {"rope_type": "none"}}])";
    return profile;
  }
};

class FiltersTarget : public TensorFileTarget {
 public:
  std::vector<std::string> Seeds() override {
    return {WithoutChecksum(Written({Tensor("q_filters", {2, kKvHeads, kDim})}, {})),
            WithoutChecksum(Written({Tensor("q_filters", {2, kKvHeads, kDim}, Type::kF16)}, {}))};
  }
  void Run(absl::string_view input) override {
    const std::string& path = WriteInput(input, "m.filters.safetensors");
    for (const bool negated : {false, true}) {
      const auto filters = ReadFilters(path, negated, 2, kKvHeads, kDim);
      if (filters.ok() && (filters->size() != 2 || filters->front().size() != kKvHeads * kDim))
        Fail("filters are lost");
      if (filters.ok() && !std::isfinite(filters->front()[0])) Fail("a filter is not finite");
    }
  }
};

class TraceTarget : public TensorFileTarget {
 public:
  std::vector<std::string> Seeds() override {
    const std::vector<OutputTensor> layer = {Tensor("layers.0.q", {6, kQHeads, kDim}),
                                             Tensor("layers.0.k", {80, kKvHeads, kDim}, Type::kF16),
                                             Tensor("layers.0.v", {80, kKvHeads, kDim}, Type::kF16)};
    const Metadata metadata = {{"model", "made up"},  {"text", "none"},
                               {"num_layers", "1"},   {"rope", R"({"rope_theta": 10000.0})"},
                               {"query_start", "74"}, {"licence", "none"}};
    return {WithoutChecksum(Written(layer, metadata)),
            WithoutChecksum(Written({Tensor("queries", {3, kQHeads, kDim})}, {})),
            WithoutChecksum(Written({Tensor("query", {kDim})}, {}))};
  }

  void Run(absl::string_view input) override {
    const std::string& path = WriteInput(input, "trace.safetensors");
    ReadTrace(path);
    cli::CalibrationOptions options;
    options.traces = {path};
    cli::Calibrate(options, [](int64_t, int64_t) {}).IgnoreError();
    v1::Geometry geometry;
    geometry.set_num_q_heads(kQHeads);
    geometry.set_head_dim(kDim);
    for (const std::optional<int64_t> row : {std::optional<int64_t>(), std::optional<int64_t>(1)}) {
      const auto queries = cli::ReadQueries({path, "", row, 1}, geometry);
      if (queries.ok() && queries->values.size() != kQHeads * kDim) Fail("queries are lost");
    }
  }

 private:
  static void ReadTrace(const std::string& path) {
    const auto trace = demo::Trace::Open(path);
    Check(trace.status(), path);
    if (!trace.ok()) return;
    trace->model();
    trace->text();
    for (int layer = 0; layer < trace->num_layers(); ++layer) {
      trace->KeysAsFloat(layer);
      trace->Keys(layer, 0, trace->num_tokens());
      for (const int64_t position : {trace->query_start(), trace->num_tokens() - 1}) {
        trace->QueryAsFloat(layer, position);
      }
    }
  }
};

template <typename T>
TargetEntry Entry(const char* name, const char* what) {
  return {name, what, 3000, [] { return std::make_unique<T>(); }};
}

}  // namespace

void AddTensorTargets(std::vector<TargetEntry>* out) {
  out->push_back(Entry<TensorsTarget>("tensors", "safetensors and .npy files"));
  out->push_back(Entry<ProfileTarget>("profile", "model profiles"));
  out->push_back(Entry<FiltersTarget>("filters", "Q-Filters as they are published"));
  out->push_back(Entry<TraceTarget>("trace", "recorded traces, and files of queries"));
}

}  // namespace seine::fuzz
