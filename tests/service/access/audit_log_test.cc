// Lines of the audit log on a disk that is full for a while, and after a process that was killed while it wrote one.
#include "service/access/audit_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "seine/v1/index_service.pb.h"
#include "service/access/audit_lines.h"
#include "tests/temp_folder.h"

namespace seine::test {
namespace {

// Files of this process may not grow beyond so many bytes: what a write takes and what it refuses is as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit limit = {bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, SIG_DFL);
  }

 private:
  rlimit before_ = {};
};

class AuditLogTest : public ::testing::Test {
 protected:
  void Open() {
    auto log = AuditLog::Open(path_, [this](const absl::Status& why) { lost_.push_back(std::string(why.message())); });
    ASSERT_TRUE(log.ok()) << log.status();
    log_ = *std::move(log);
  }
  void Record(const std::string& index) const {
    v1::DeleteIndexRequest request;
    request.set_name(index);
    log_->Record(request, v1::DeleteIndexResponse(), absl::OkStatus());
  }
  // The index of each line, or "?" for one that is no JSON.
  std::vector<std::string> Lines() const {
    std::ifstream in(path_);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) {
      const auto parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      lines.push_back(parsed.is_object() ? parsed.at("index").get<std::string>() : "?");
    }
    return lines;
  }

  const TempFolder folder_;
  const std::string path_ = folder_.Path("audit.log");
  std::vector<std::string> lost_;
  std::unique_ptr<AuditLog> log_;
};

TEST_F(AuditLogTest, AfterAFullDiskTheNextLineIsWhole) {
  for (const int room : {0, 1, 50, 100}) {
    SCOPED_TRACE(room);
    std::filesystem::remove(path_);
    lost_.clear();
    Open();
    Record("first");
    {
      const FileSizeLimit full(std::filesystem::file_size(path_) + static_cast<size_t>(room));
      Record("lost");
      Record("lost");
    }
    Record("second");
    Record("third");
    const std::vector<std::string> whole = {"first", "second", "third"}, cut = {"first", "?", "second", "third"};
    EXPECT_EQ(Lines(), room == 0 ? whole : cut);
    ASSERT_EQ(lost_.size(), 2u);
    EXPECT_EQ(lost_[0], path_ + ": a line is lost: File too large");
  }
}

TEST_F(AuditLogTest, AfterALineThatAnotherProcessLeftCutTheNextIsWhole) {
  for (const char* left : {"", "{\"index\":\"old\"}\n", "{\"index\":\"old\"", "\n"}) {
    SCOPED_TRACE(left);
    std::ofstream(path_) << left;
    Open();
    Record("next");
    EXPECT_EQ(Lines().back(), "next");
    EXPECT_EQ(Lines().size(), *left == 0 ? 1u : 2u);
  }
}

TEST_F(AuditLogTest, ANewFileBeginsWithItsFirstLine) {
  Open();
  {
    const FileSizeLimit full(20);
    Record("lost");
  }
  std::filesystem::rename(path_, path_ + ".1");
  ASSERT_TRUE(log_->Reopen().ok());
  Record("first");
  EXPECT_EQ(Lines(), std::vector<std::string>{"first"});
}

std::string ReadAll(int fd, size_t lines) {
  std::string all;
  while (lines > 0) {
    char bytes[4096];
    const ssize_t got = read(fd, bytes, sizeof(bytes));
    if (got <= 0) break;
    lines -= static_cast<size_t>(std::count(bytes, bytes + got, '\n'));
    all.append(bytes, static_cast<size_t>(got));
  }
  return all;
}

// A pipe that nobody reads stands for a disk that hangs.
TEST(AuditLines, AFileThatTakesNothingHoldsUpNobodyForLong) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  ASSERT_EQ(fcntl(ends[1], F_SETPIPE_SZ, 4096), 4096);
  std::mutex mutex;
  std::vector<std::string> why;
  auto lines = std::make_unique<AuditLines>(ends[1], false, [&](const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex);
    why.push_back(text);
  });
  constexpr size_t kInPipe = 4;  // of a quarter each
  const auto line = [](size_t i) { return absl::StrCat(absl::Dec(i, absl::kZeroPad6), std::string(1017, 'x'), "\n"); };
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::steady_clock::now() - start; };
  for (size_t i = 0; i < kInPipe; ++i) lines->Write(line(i));
  EXPECT_LT(elapsed(), std::chrono::milliseconds(900));
  lines->Write(line(kInPipe));  // is waited for
  EXPECT_GE(elapsed(), AuditLines::kPatience);
  for (size_t i = 1; i < AuditLines::kMostWaiting + 1; ++i) lines->Write(line(kInPipe + i));
  EXPECT_LT(elapsed(), std::chrono::seconds(5)) << "none of these is";
  EXPECT_TRUE(why.empty());
  lines->Write(line(999'999));
  lines = nullptr;
  EXPECT_LT(elapsed(), std::chrono::seconds(6));
  {
    const std::lock_guard<std::mutex> lock(mutex);
    EXPECT_EQ(why,
              (std::vector<std::string>{"a line is lost: too many wait", "lines wait for a file that takes none"}));
  }
  // The file takes lines again: all that waited are there, in their order.
  const size_t count = kInPipe + 1 + AuditLines::kMostWaiting;
  std::string expected;
  for (size_t i = 0; i < count; ++i) expected += line(i);
  EXPECT_TRUE(ReadAll(ends[0], count) == expected);
  char none = 0;
  EXPECT_EQ(read(ends[0], &none, 1), 0) << "the descriptor is closed";
  close(ends[0]);
}

}  // namespace
}  // namespace seine::test
