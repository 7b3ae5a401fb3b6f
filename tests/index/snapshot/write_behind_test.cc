// Files written behind their caller: every size arrives whole, past the page cache or through it, and the first error
// ends the work.
#include "index/bytes/write_behind.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/temp_folder.h"

namespace seine {
namespace {

constexpr int64_t kBuffer = WriteBehind::kBufferBytes;

// Takes so many bytes at a time, and may refuse direct writes as file systems do, or fail from a write on.
class OddFiles : public FileOps {
 public:
  bool refuses_flag = false, refuses_writes = false;
  int64_t most = kBuffer;
  int fail_at = -1;
  std::atomic<int> writes{0}, refused{0};

  int SetDirect(int fd, bool direct) override {
    if (direct && refuses_flag) return -EINVAL;
    direct_ = direct;
    return refuses_writes ? 0 : FileOps::SetDirect(fd, direct);
  }
  int64_t Write(int fd, const uint8_t* data, int64_t bytes) override {
    if (direct_ && refuses_writes) return ++refused, -EINVAL;
    if (writes++ == fail_at) return -ENOSPC;
    return FileOps::Write(fd, data, std::min(bytes, most));
  }

 private:
  std::atomic<bool> direct_{false};
};

std::string Text(int64_t bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  uint32_t state = 1;
  for (char& c : text) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return text;
}

class WriteBehindTest : public ::testing::Test {
 protected:
  // Writes the text in steps; returns what WriteBehind does.
  int Write(const std::string& text, int64_t step, FileOps* files) const {
    const int fd = files->Create(path_);
    EXPECT_GE(fd, 0);
    int error = 0;
    {
      WriteBehind file(fd, files);
      const auto* const data = reinterpret_cast<const uint8_t*>(text.data());
      const auto bytes = static_cast<int64_t>(text.size());
      for (int64_t at = 0; at < bytes && error == 0; at += step) {
        error = file.Write(data + at, std::min(step, bytes - at));
      }
      if (error == 0) error = file.Finish();
    }
    files->Close(fd);
    return error;
  }
  // Whether the file holds the text. Removes it.
  bool Holds(const std::string& text) const {
    std::ifstream file(path_, std::ios::binary);
    const bool equal = std::string(std::istreambuf_iterator<char>(file), {}) == text;
    return SystemFiles().Remove(path_) == 0 && equal;
  }

  const TempFolder folder_;
  const std::string path_ = folder_.Path("a");
};

TEST_F(WriteBehindTest, EverySizeArrivesWhole) {
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, kBuffer - 1, kBuffer, kBuffer + 1, 5 * kBuffer + 4097}) {
    const std::string text = Text(bytes);
    for (const int64_t step : {int64_t{777}, int64_t{1} << 17, 8 * kBuffer}) {
      ASSERT_EQ(Write(text, step, &SystemFiles()), 0) << bytes;
      ASSERT_TRUE(Holds(text)) << bytes << " in steps of " << step;
    }
  }
}

TEST_F(WriteBehindTest, FileSystemsThatCannotWriteDirectlyAreWrittenToAsUsual) {
  const std::string text = Text(5 * kBuffer + 100);
  OddFiles without_flag;
  without_flag.refuses_flag = true;
  EXPECT_EQ(Write(text, 1 << 17, &without_flag), 0);
  EXPECT_TRUE(Holds(text));
  OddFiles at_write;
  at_write.refuses_writes = true;
  EXPECT_EQ(Write(text, 1 << 17, &at_write), 0);
  EXPECT_TRUE(Holds(text));
  EXPECT_EQ(at_write.refused, 1) << "it asks once";
}

// After one that ends within a sector, the next is not aligned.
TEST_F(WriteBehindTest, WritesCutShortGoOn) {
  const std::string text = Text(2 * kBuffer + 100);
  for (const int64_t most : {int64_t{100'001}, int64_t{512 * 99}}) {
    OddFiles files;
    files.most = most;
    EXPECT_EQ(Write(text, 1 << 17, &files), 0);
    EXPECT_TRUE(Holds(text)) << most;
  }
}

TEST_F(WriteBehindTest, TheFirstErrorEndsIt) {
  const std::string text = Text(6 * kBuffer + 100);
  for (int fail_at = 0; fail_at < 7; ++fail_at) {
    OddFiles files;
    files.fail_at = fail_at;
    EXPECT_EQ(Write(text, 1 << 17, &files), ENOSPC) << fail_at;
    EXPECT_EQ(files.writes, fail_at + 1) << "nothing is written behind the hole";
    EXPECT_FALSE(Holds(text));
  }
}

}  // namespace
}  // namespace seine
