// JSON that others wrote: nested as deep as it may be, deeper, and without end, wherever it is read.
#include "profile/io/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "profile/io/tensor_file.h"
#include "profile/rope.h"
#include "tests/temp_folder.h"

namespace seine {
namespace {

constexpr int kWithoutEnd = 1'000'000;

std::string Nested(int depth, const std::string& open = "[", const std::string& close = "]") {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open;
  text += "1";
  for (int i = 0; i < depth; ++i) text += close;
  return text;
}

TEST(Json, NestsSoDeepAndNoDeeper) {
  EXPECT_TRUE(ParseJson(Nested(kMaxNesting)).ok());
  EXPECT_TRUE(ParseJson(Nested(kMaxNesting, "{\"a\":", "}")).ok());
  for (const int depth : {kMaxNesting + 1, kWithoutEnd}) {
    EXPECT_EQ(ParseJson(Nested(depth)).status().message(), "is nested more than 64 levels deep");
    EXPECT_EQ(ParseJson(Nested(depth, "{\"a\":", "}")).status().message(), "is nested more than 64 levels deep");
    EXPECT_FALSE(ParseJson(std::string(depth, '[')).ok());
  }
}

TEST(Json, BracketsInStringsDoNotNest) {
  const std::string brackets(kWithoutEnd, '['), text = absl::StrCat(R"(["\"\\)", brackets, R"(", "\\", {"a": []}])");
  const absl::StatusOr<nlohmann::json> value = ParseJson(text);
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ((*value)[0], "\"\\" + brackets);
  EXPECT_EQ(ParseJson(Nested(kMaxNesting - 1) + "," + Nested(2)).status().message(), "is not JSON");
  for (const char* wrong : {"", "[", "]", "{", "\"", "\"\\", "[1,]", "nul", "{} {}"}) {
    EXPECT_EQ(ParseJson(wrong).status().message(), "is not JSON") << wrong;
  }
}

TEST(Json, ALongValueIsShownByItsBeginning) {
  EXPECT_EQ(ShownJson(nlohmann::json("\xff")), "\"\\ufffd\"");
  EXPECT_EQ(ShownJson(nlohmann::json(std::string(1000, 'x'))), "\"" + std::string(199, 'x') + "...");
}

TEST(Json, KnowsUtf8) {
  for (const char* text : {"", "a", "Zo\xc3\xab", "\xf0\x9f\x90\x9f", "\x01"}) EXPECT_TRUE(IsUtf8(text)) << text;
  for (const char* text : {"\x80", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "a\xff", "\xf5\x80\x80\x80"}) {
    EXPECT_FALSE(IsUtf8(text)) << text;
  }
}

TEST(Json, ARopeNestedWithoutEndIsRefused) {
  const std::string deep = Nested(kWithoutEnd);
  for (const std::string& json : {deep, absl::StrCat(R"({"rope_theta": )", deep, "}"),
                                  absl::StrCat(R"({"rope_theta": 10000, "rope_type": )", deep, "}"),
                                  absl::StrCat(R"({"rope_type": "yarn", "truncate": )", deep, "}")}) {
    const absl::Status status = ParseRope(json, 64, Rope::Style::kHalfSplit, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "rope: is nested more than 64 levels deep");
  }
  const absl::Status wide =
      ParseRope(absl::StrCat(R"({"rope_theta": ")", std::string(1 << 20, 'x'), "\"}"), 64, Rope::Style::kHalfSplit, 1)
          .status();
  EXPECT_LT(wide.message().size(), 500u);
  EXPECT_TRUE(absl::StartsWith(wide.message(), "rope.rope_theta: must be a number")) << wide;
}

TEST(Json, AHeaderNestedWithoutEndIsRefused) {
  TempFolder folder;
  const std::string deep = Nested(kWithoutEnd);
  const std::string headers[] = {
      absl::StrCat(R"({"a":{"dtype":)", deep, R"(,"shape":[0],"data_offsets":[0,0]}})"),
      absl::StrCat(R"({"a":{"dtype":"F32","shape":)", deep, R"(,"data_offsets":[0,0]}})"),
      absl::StrCat(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":)", deep, "}}"),
      absl::StrCat(R"({"__metadata__":)", deep, "}"),
  };
  for (const std::string& header : headers) {
    const uint64_t size = header.size();
    const std::string path =
        folder.Write("deep", std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + header);
    const absl::Status status = TensorFile::Open(path).status();
    EXPECT_EQ(status.message(), path + ": the safetensors header is nested more than 64 levels deep");
  }
}

}  // namespace
}  // namespace seine
