// The writer: what it writes reads back, and a failure leaves what was there.
#include "profile/io/tensor_writer.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "tests/temp_folder.h"

namespace seine {
namespace {

using Type = TensorFile::Type;

TEST(TensorWriter, WhatItWritesReadsBack) {
  TempFolder folder;
  const std::string path = folder.Write("t.safetensors", "what was there before");
  const std::vector<OutputTensor> tensors = {{"b", Type::kU8, {3}, "xyz"}, {"a", Type::kI16, {2, 1}, "1234"}};
  const absl::Status status = WriteTensors(tensors, {{"text", "Zoë's"}, {"n", "7"}}, path);
  ASSERT_TRUE(status.ok()) << status;
  const auto file = TensorFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->names(), (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(file->metadata(), (std::map<std::string, std::string>{
                                  {"seine_checksum", std::string(file->checksum())}, {"n", "7"}, {"text", "Zoë's"}}));
  EXPECT_EQ(file->Get("a")->shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file->Get("a")->data), 4), "1234");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file->Get("b")->data) % 8, 0u);
  const auto entries = std::filesystem::directory_iterator(folder.Path(""));
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);  // nothing beside it
}

TEST(TensorWriter, AFailureLeavesWhatWasThere) {
  TempFolder folder;
  const std::string path = folder.Write("t.safetensors", "what was there before");
  const absl::Status binary = WriteTensors({}, {{"text", "\xff\xfe"}}, path);
  EXPECT_EQ(binary.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(binary.message(), "not UTF-8")) << binary;
  EXPECT_EQ(std::filesystem::file_size(path), 21u);
  EXPECT_EQ(WriteTensors({}, {}, folder.Path("missing/t")).code(), absl::StatusCode::kNotFound);
  std::filesystem::create_directory(folder.Path("folder"));
  EXPECT_FALSE(WriteTensors({}, {}, folder.Path("folder")).ok());
  const auto entries = std::filesystem::directory_iterator(folder.Path(""));
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 2);
}

TEST(TensorWriter, ALinkIsFollowedAndADeviceStaysOne) {
  TempFolder folder;
  std::filesystem::create_symlink(folder.Write("target", "before"), folder.Path("link"));
  ASSERT_TRUE(WriteTensors({{"a", Type::kU8, {3}, "xyz"}}, {}, folder.Path("link")).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(folder.Path("link")));
  EXPECT_TRUE(TensorFile::Open(folder.Path("target")).ok());
  const absl::Status device = WriteTensors({}, {}, "/dev/null");
  EXPECT_EQ(device, absl::InvalidArgumentError("/dev/null: it is no regular file"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_FALSE(WriteTensors({}, {}, folder.Path("cut") + '\0' + "name").ok());
  EXPECT_FALSE(std::filesystem::exists(folder.Path("cut")));
}

}  // namespace
}  // namespace seine
