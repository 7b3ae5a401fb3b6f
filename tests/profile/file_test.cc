// Files that are none, change while they are read, or are larger than they may be.
#include "profile/io/file.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "profile/io/tensor_file.h"
#include "profile/io/tensor_writer.h"
#include "tests/temp_folder.h"

namespace seine {
namespace {

using absl::StatusCode;

// Nobody writes to the FIFO: waiting for a writer would hang the test.
TEST(File, OnlyARegularOneIsOpened) {
  TempFolder folder;
  ASSERT_EQ(mkfifo(folder.Path("fifo").c_str(), 0600), 0);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  folder.Path("socket").copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  close(fd);
  for (const std::string& path :
       {folder.Path("fifo"), folder.Path("socket"), folder.Path(""), std::string("/dev/null")}) {
    const absl::Status status = TensorFile::Open(path).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(status.message(), path + ": not a regular file");
  }
}

TEST(File, IsReadWholeAndInPieces) {
  TempFolder folder;
  const std::string path = folder.Write("file", "0123456789");
  const absl::StatusOr<File> file = File::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->size(), 10u);
  EXPECT_EQ(*file->ReadAll(10), "0123456789");
  EXPECT_EQ(*file->Read(3, 4), "3456");
  EXPECT_EQ(*file->Read(10, 0), "");
  EXPECT_EQ(file->ReadAll(9).status().message(), path + ": has 10 bytes, more than 9");
  EXPECT_EQ(file->Read(3, 8).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(file->Read(11, 0).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(file->Read(1, UINT64_MAX).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(File::Open(folder.Path("missing")).status().code(), StatusCode::kNotFound);
}

TEST(File, AChangeMeanwhileIsAnError) {
  TempFolder folder;
  const std::string path = folder.Write("file", "0123456789");
  const absl::StatusOr<File> file = File::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::resize_file(path, 20);
  EXPECT_EQ(file->ReadAll(100).status().message(), path + ": changed while it is read");
  std::filesystem::resize_file(path, 4);
  EXPECT_EQ(file->ReadAll(100).status().message(), path + ": cut short while it is read");
  const std::string again = folder.Write("again", "0123456789");
  const absl::StatusOr<File> second = File::Open(again);
  ASSERT_TRUE(second.ok()) << second.status();
  std::filesystem::last_write_time(again, std::filesystem::file_time_type() + std::chrono::hours(1));
  EXPECT_EQ(second->ReadAll(100).status().message(), again + ": changed while it is read");
}

// A mapped file that is cut short would end this process.
TEST(File, WhatWasReadOutlivesTheFile) {
  TempFolder folder;
  const std::string path = folder.Path("t"), bytes(1 << 16, 'x');
  const OutputTensor tensor = {"a", TensorFile::Type::kU8, {1 << 16}, bytes};
  ASSERT_TRUE(WriteTensors({tensor}, {}, path).ok());
  const absl::StatusOr<TensorFile> file = TensorFile::Read(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::resize_file(path, 0);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file->Get("a")->data), bytes.size()), bytes);
}

TEST(File, AHeaderIsReadWithoutItsTensors) {
  TempFolder folder;
  const std::string path = folder.Path("t");
  ASSERT_TRUE(WriteTensors({{"a", TensorFile::Type::kU8, {4}, "wxyz"}}, {{"n", "7"}}, path).ok());
  const absl::StatusOr<TensorFile> file = TensorFile::ReadHeader(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata().at("n"), "7");
  EXPECT_TRUE(absl::StartsWith(file->checksum(), "crc32:"));
  EXPECT_EQ(file->Get("a")->shape, std::vector<int64_t>{4});
  EXPECT_EQ(file->Get("a")->data, nullptr);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_EQ(TensorFile::ReadHeader(path).status().code(), StatusCode::kDataLoss);
  for (const char* text : {"", "\x93", "\x93NUMPY", "\x93NUMPY\x01", "{", "12345678", "123456789{"}) {
    EXPECT_FALSE(TensorFile::ReadHeader(folder.Write("short", text)).ok()) << text;
  }
}

}  // namespace
}  // namespace seine
