// The file reader: what it reads, and every way in which a file can be torn, foreign or contradict itself.
#include "profile/io/tensor_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "profile/io/mapping.h"
#include "tests/temp_folder.h"

namespace seine {
namespace {

using Type = TensorFile::Type;

template <typename T>
std::string Raw(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string Safetensors(const std::string& header, const std::string& data) {
  return Raw<uint64_t>({header.size()}) + header + data;
}

std::string Npy(const std::string& header, const std::string& data, int version = 1) {
  const std::string magic =
      std::string("\x93NUMPY", 6) + std::string(1, static_cast<char>(version)) + std::string(1, '\0');
  const std::string size = version == 1 ? Raw<uint16_t>({static_cast<uint16_t>(header.size())})
                                        : Raw<uint32_t>({static_cast<uint32_t>(header.size())});
  return magic + size + header + data;
}

// Two tensors (fp32 [2, 3], fp16 [2]) and metadata; an odd header length puts the data off alignment.
std::string SmallSafetensors() {
  return Safetensors(R"({"__metadata__":{"model":"m"},"b":{"dtype":"F16","shape":[2],"data_offsets":[24,28]},)"
                     R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})",
                     Raw<float>({1, 2, 3, 4, 5, 6}) + Raw<uint16_t>({0x3c00, 0xc000}));
}

std::string SmallNpy() {
  return Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }      \n", Raw<float>({1, 2, 3, 4, 5, 6}));
}

TEST(TensorFile, ReadsSafetensors) {
  TempFolder folder;
  const auto file = TensorFile::Open(folder.Write("t.safetensors", SmallSafetensors()));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->names(), (std::vector<std::string>{"a", "b"}));  // in the order of their bytes
  EXPECT_EQ(file->metadata().at("model"), "m");
  const auto a = file->Get("a"), b = file->Get("b");
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->type, Type::kF32);
  EXPECT_EQ(a->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(a->bytes, 24u);
  EXPECT_EQ(*TensorFile::ToFloat32(*a), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(*TensorFile::ToFloat32(*a, 2, 3), (std::vector<float>{3, 4, 5}));
  EXPECT_EQ(*TensorFile::ToFloat32(*b), (std::vector<float>{1, -2}));

  const absl::Status missing = file->Get("c").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(missing.message(), "no tensor named c; it holds a, b")) << missing;
}

TEST(TensorFile, ReadsNpy) {
  TempFolder folder;
  const std::string data = Raw<float>({1, 2, 3, 4, 5, 6});
  const std::vector<std::string> files = {
      SmallNpy(),
      Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", data, 2),
      Npy("{'shape': (2, 3), 'fortran_order': False, 'descr': '<f4'}", data, 3),
  };
  for (const std::string& bytes : files) {
    const auto file = TensorFile::Open(folder.Write("v.npy", bytes));
    ASSERT_TRUE(file.ok()) << file.status();
    const auto array = file->Get(TensorFile::kNpyName);
    ASSERT_TRUE(array.ok());
    EXPECT_EQ(array->shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(*TensorFile::ToFloat32(*array), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  }
  const auto vector = TensorFile::Open(
      folder.Write("w.npy", Npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }", Raw<int64_t>({9}))));
  ASSERT_TRUE(vector.ok()) << vector.status();
  EXPECT_EQ(vector->Get("array")->type, Type::kI64);
  EXPECT_EQ(vector->Get("array")->shape, (std::vector<int64_t>{1}));
  const absl::Status integers = TensorFile::ToFloat32(*vector->Get("array")).status();
  EXPECT_EQ(integers.code(), absl::StatusCode::kInvalidArgument);
}

TEST(TensorFile, RefusesEveryTruncationAndAnExtraByte) {
  TempFolder folder;
  for (const std::string& bytes : {SmallSafetensors(), SmallNpy()}) {
    for (size_t size = 0; size < bytes.size(); ++size) {
      const std::string path = folder.Write("torn", bytes.substr(0, size));
      const absl::Status status = TensorFile::Open(path).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << size << " of " << bytes.size() << ": " << status;
      EXPECT_TRUE(absl::StartsWith(status.message(), absl::StrCat(path, ": cut short"))) << status;
    }
    const absl::Status extra = TensorFile::Open(folder.Write("extra", bytes + "x")).status();
    EXPECT_EQ(extra.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(extra.message(), "1 bytes after the")) << extra;
  }
}

// Of any size an element: F4 has half a byte, C64 eight.
TEST(TensorFile, ATensorOfAnUnknownDtypeIsInNobodysWay) {
  TempFolder folder;
  const struct {
    const char* dtype;
    const char* shape;
    size_t bytes;
  } cases[] = {{"F8_E4M3", "[2,3]", 6}, {"C64", "[3]", 24}, {"F4", "[5]", 3}, {"no such type", "[]", 0}};
  for (const auto& test : cases) {
    SCOPED_TRACE(test.dtype);
    const std::string header = absl::StrCat(
        R"({"x":{"dtype":")", test.dtype, R"(","shape":)", test.shape, R"(,"data_offsets":[0,)", test.bytes,
        R"(]},"a":{"dtype":"F32","shape":[2],"data_offsets":[)", test.bytes, ",", test.bytes + 8, "]}}");
    const std::string path =
        folder.Write("mixed.safetensors", Safetensors(header, std::string(test.bytes, '?') + Raw<float>({1, 2})));
    for (const auto& file : {TensorFile::Open(path), TensorFile::Read(path), TensorFile::ReadHeader(path)}) {
      ASSERT_TRUE(file.ok()) << file.status();
      EXPECT_EQ(file->names(), (std::vector<std::string>{"x", "a"}));
      EXPECT_EQ(file->Get("x").status(),
                absl::InvalidArgumentError(absl::StrCat(path, ": tensor x: unknown dtype \"", test.dtype, "\"")));
      EXPECT_TRUE(absl::IsNotFound(file->Get("y").status()));
      ASSERT_TRUE(file->Get("a").ok());
    }
    EXPECT_EQ(*TensorFile::ToFloat32(*TensorFile::Open(path)->Get("a")), (std::vector<float>{1, 2}));
    EXPECT_EQ(TensorFile::Open(folder.Write("torn", Safetensors(header, ""))).status().code(),
              absl::StatusCode::kDataLoss);
  }
}

// A file that another program cuts while it is read.
TEST(TensorFileDeathTest, AMappedFileThatIsCutShortIsToldOf) {
  const TempFolder folder;
  constexpr size_t kBytes = 1 << 20;
  const std::string path = folder.Write(
      "cut.safetensors",
      Safetensors(absl::StrCat(R"({"a":{"dtype":"U8","shape":[)", kBytes, R"(],"data_offsets":[0,)", kBytes, "]}}"),
                  std::string(kBytes, 'x')));
  const auto read = [&](bool ask) {
    if (ask) {
      TellOfCutFiles([](const absl::Status& error) {
        std::fprintf(stderr, "%s\n", error.ToString().c_str());
        _exit(7);
      });
    } else {
      signal(SIGBUS, SIG_DFL);
    }
    const auto file = TensorFile::Open(path);
    const auto other = TensorFile::Open(folder.Write("other", SmallSafetensors()));
    std::filesystem::resize_file(path, 4096);
    volatile uint8_t last = file->Get("a")->data[kBytes - 1];
    _exit(last);
  };
  EXPECT_EXIT(read(true), testing::ExitedWithCode(7), "DATA_LOSS: .*cut.safetensors: cut short while it is read");
  folder.Write("cut.safetensors", Safetensors(absl::StrCat(R"({"a":{"dtype":"U8","shape":[)", kBytes,
                                                           R"(],"data_offsets":[0,)", kBytes, "]}}"),
                                              std::string(kBytes, 'x')));
  EXPECT_EXIT(read(false), testing::KilledBySignal(SIGBUS), "");
}

TEST(TensorFile, RefusesForeignAndContradictoryFiles) {
  const std::string a6 = Raw<float>({1, 2, 3, 4, 5, 6});
  const auto one = [&](const std::string& entry) { return Safetensors("{\"a\":" + entry + "}", a6); };
  const auto npy = [&](const std::string& fields) { return Npy("{" + fields + "}", a6); };
  const struct {
    const char* name;
    std::string bytes;
    const char* what;
  } cases[] = {
      {"text", "The quick brown fox jumps over the lazy dog", "neither a safetensors nor a .npy file"},
      {"zip", std::string("PK\x03\x04\x14\0\0\0\x08\0\0\0", 12), "neither a safetensors nor a .npy file"},
      {"huge header", Raw<uint64_t>({uint64_t{1} << 40}) + "{}", "neither a safetensors nor a .npy file"},
      {"no JSON", Safetensors("{\"a\":", ""), "header is not JSON"},
      {"bad UTF-8", Safetensors("{\"\xff\":{}}", ""), "header is not JSON"},
      {"a name twice", Safetensors(R"({"a":7,"a":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}})", a6),
       "has the name \"a\" twice in one object"},
      {"a field twice", one(R"({"dtype":"F16","dtype":"F32","shape":[6],"data_offsets":[0,24]})"),
       "has the name \"dtype\" twice"},
      {"entry no object", one("7"), "tensor a: header needs dtype, shape and data_offsets"},
      {"no dtype", one(R"({"shape":[6],"data_offsets":[0,24]})"), "tensor a: header needs dtype"},
      {"dtype no string", one(R"({"dtype":3,"shape":[6],"data_offsets":[0,24]})"), "dtype must be text, not 3"},
      {"unknown dtype, hole", one(R"({"dtype":"F8","shape":[20],"data_offsets":[4,24]})"),
       "bytes before it are unused"},
      {"unknown dtype, backwards", one(R"({"dtype":"F8","shape":[24],"data_offsets":[24,0]})"), "contradict shape"},
      {"unknown dtype, shape", one(R"({"dtype":"F8","shape":[-24],"data_offsets":[0,24]})"), "is no size"},
      {"shape no list", one(R"({"dtype":"F32","shape":6,"data_offsets":[0,24]})"), "shape must be a list"},
      {"negative dim", one(R"({"dtype":"F32","shape":[-6],"data_offsets":[0,24]})"), "holds something that is no size"},
      {"fraction", one(R"({"dtype":"F32","shape":[6.0],"data_offsets":[0,24]})"), "holds something that is no size"},
      {"overflow", one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,24]})"), "is too large"},
      {"dim 2^63", one(R"({"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,24]})"), "no size"},
      {"one offset", one(R"({"dtype":"F32","shape":[6],"data_offsets":[0]})"), "data_offsets must be two sizes"},
      {"backwards", one(R"({"dtype":"F32","shape":[6],"data_offsets":[24,0]})"), "contradict shape [6] of F32"},
      {"size mismatch", one(R"({"dtype":"F32","shape":[5],"data_offsets":[0,24]})"), "contradict shape [5] of F32"},
      {"hole", one(R"({"dtype":"F32","shape":[5],"data_offsets":[4,24]})"), "bytes before it are unused"},
      {"metadata no object", Safetensors(R"({"__metadata__":3})", ""), "__metadata__ must be an object"},
      {"metadata number", Safetensors(R"({"__metadata__":{"n":3}})", ""), "__metadata__.n must be a string"},
      {"overlap",
       Safetensors(
           R"({"a":{"dtype":"F32","shape":[6],"data_offsets":[0,24]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
           a6),
       "tensor b overlaps another"},
      {"npy version", Npy("", "", 9), ".npy version 9 is unknown"},
      {"npy no descr", npy("'fortran_order': False, 'shape': (6,)"), ".npy header has no descr"},
      {"npy no shape", npy("'descr': '<f4', 'fortran_order': False"), ".npy header has no shape"},
      {"npy big-endian", npy("'descr': '>f4', 'fortran_order': False, 'shape': (6,)"),
       "'>f4' is not a little-endian number"},
      {"npy object", npy("'descr': '|O', 'fortran_order': False, 'shape': (6,)"), "'|O' is not a little-endian number"},
      {"npy Fortran", npy("'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)"), "Fortran order"},
      {"npy shape", npy("'descr': '<f4', 'fortran_order': False, 'shape': (six,)"), "holds something that is no size"},
      {"npy no tuple", npy("'descr': '<f4', 'fortran_order': False, 'shape': 6"), "is no tuple"},
      {"npy open tuple", npy("'descr': '<f4', 'fortran_order': False, 'shape': (6"), "shape does not end"},
      {"npy negative", npy("'descr': '<f4', 'fortran_order': False, 'shape': (-6,)"), "is too large"},
  };
  TempFolder folder;
  for (const auto& test : cases) {
    const std::string path = folder.Write("foreign", test.bytes);
    const absl::Status status = TensorFile::Open(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.name << ": " << status;
    EXPECT_TRUE(absl::StartsWith(status.message(), path + ": ")) << test.name << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), test.what)) << test.name << ": " << status;
  }
}

TEST(TensorFile, NamesWhatIsNotAFile) {
  TempFolder folder;
  EXPECT_EQ(TensorFile::Open(folder.Path("missing")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(TensorFile::Open(folder.Path("")).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(TensorFile::Open("/dev/null").status().code(), absl::StatusCode::kInvalidArgument);
  if (geteuid() != 0) {  // root may read everything
    const std::string secret = folder.Write("secret", "x");
    chmod(secret.c_str(), 0);
    EXPECT_EQ(TensorFile::Open(secret).status().code(), absl::StatusCode::kPermissionDenied);
  }
}

// Every pattern of fp16 and bf16 against its definition in doubles.
TEST(TensorFile, ConvertsSixteenBitFloatsExactly) {
  std::vector<uint16_t> patterns(1 << 16);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  TensorFile::Tensor tensor{Type::kF16, {1 << 16}, reinterpret_cast<const uint8_t*>(patterns.data()), 2 << 16};
  const auto define = [](uint32_t bits, int exponent_bits, int fraction_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1, most = (1 << exponent_bits) - 1;
    const int exponent = (bits >> fraction_bits) & most;
    const double fraction = std::ldexp(bits & ((1 << fraction_bits) - 1), -fraction_bits);
    const double sign = bits >> 15 ? -1 : 1;
    if (exponent == most) return fraction == 0 ? sign * HUGE_VAL : std::nan("");
    return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
  };
  for (const auto& [type, exponent_bits, fraction_bits] :
       {std::tuple(Type::kF16, 5, 10), std::tuple(Type::kBF16, 8, 7)}) {
    tensor.type = type;
    const auto floats = TensorFile::ToFloat32(tensor);
    ASSERT_TRUE(floats.ok());
    for (uint32_t bits = 0; bits < patterns.size(); ++bits) {
      const double expected = define(bits, exponent_bits, fraction_bits);
      const float got = (*floats)[bits];
      ASSERT_TRUE(std::isnan(expected) ? std::isnan(got)
                                       : got == expected && std::signbit(got) == std::signbit(expected))
          << TensorFile::NameOf(type) << " " << bits << ": " << got << " for " << expected;
    }
  }
}

TEST(TensorFile, RefusesElementsOutsideTheTensor) {
  const float values[4] = {1, 2, 3, 4};
  const TensorFile::Tensor tensor{Type::kF32, {4}, reinterpret_cast<const uint8_t*>(values), sizeof(values)};
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const auto& [first, count] :
       {std::pair<int64_t, int64_t>{-1, 1}, {0, 5}, {4, 1}, {5, 0}, {0, -1}, {1, kMost}, {kMost, 1}}) {
    EXPECT_EQ(TensorFile::ToFloat32(tensor, first, count).status().code(), absl::StatusCode::kOutOfRange)
        << first << " " << count;
  }
  EXPECT_TRUE(TensorFile::ToFloat32(tensor, 4, 0)->empty());
}

}  // namespace
}  // namespace seine
