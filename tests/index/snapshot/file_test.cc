// Snapshot files: the disk full, errors at every step, processes killed at every step; what is completed lasts.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "index/snapshot/snapshot_file.h"
#include "tests/index/snapshot/states.h"
#include "tests/temp_folder.h"

namespace seine {
namespace {

namespace fs = std::filesystem;

using absl::StatusCode;
using testing::MakeIndex;
using testing::SmallConfig;

constexpr int kNever = -1;
constexpr int64_t kStepBytes = 26 << 10;  // most that a write takes, so that a file is many

// Counts steps, and fails the one that it is told to, or ends the process there.
class FaultyFiles : public FileOps {
 public:
  int fail_at = -1, error = EIO, kill_at = -1, steps = 0;
  bool direct = true;

  int Create(const std::string& path) override { return Step() ? -error : FileOps::Create(path); }
  int64_t Write(int fd, const uint8_t* data, int64_t bytes) override {
    if (Step()) return -error;
    return FileOps::Write(fd, data, std::min(bytes, kStepBytes));
  }
  int SetDirect(int fd, bool on) override { return direct ? FileOps::SetDirect(fd, on) : -EINVAL; }
  int Sync(int fd) override { return Step() ? -error : FileOps::Sync(fd); }
  int Rename(const std::string& from, const std::string& to) override {
    return Step() ? -error : FileOps::Rename(from, to);
  }
  int SyncFolder(const std::string& folder) override { return Step() ? -error : FileOps::SyncFolder(folder); }

 private:
  bool Step() {
    if (steps == kill_at) _exit(99);
    return steps++ == fail_at;
  }
};

// A source that reads in pieces, counts them, and ends the process at the one that it is told to, once half of it is
// there.
class KillingSource : public ByteSource {
 public:
  KillingSource(ByteSource* source, int kill_at) : source_(*source), kill_at_(kill_at) {}
  absl::Status Read(uint8_t* data, int64_t bytes) override {
    for (int64_t at = 0; at < bytes; at += kStepBytes) {
      const int64_t piece = std::min(kStepBytes, bytes - at);
      if (reads_++ == kill_at_) (void)source_.Read(data + at, piece / 2), _exit(99);
      if (absl::Status s = source_.Read(data + at, piece); !s.ok()) return s;
    }
    return absl::OkStatus();
  }
  std::optional<int64_t> size() const override { return source_.size(); }
  int reads() const { return reads_; }

 private:
  ByteSource& source_;
  const int kill_at_;
  int reads_ = 0;
};

std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

// One index whose sequence "a" grows between snapshots.
class SnapshotFileTest : public ::testing::Test {
 protected:
  SnapshotFileTest() : index_(MakeIndex(SmallConfig(KvStore::kKeysValues), backend_.get())) {
    EXPECT_TRUE(index_->CreateSequence("a").ok());
    testing::Extend(index_.get(), "a", 1500);
  }
  // Also of child processes, so no thread of the backend may be needed.
  absl::Status Write(FileOps* files = nullptr) const {
    return SnapshotToFile(*index_, {"a", 0}, SnapshotScope::kFamily, path_, files).status();
  }
  // Tokens of the sequence in the file.
  int64_t TokensInFile() const {
    auto index = MakeIndex(SmallConfig(KvStore::kKeysValues), backend_.get());
    const auto restored = RestoreFromFile(index.get(), {}, path_);
    EXPECT_TRUE(restored.ok()) << restored.status();
    return restored.ok() ? restored->sequences[0].layer_tokens[0] : -1;
  }
  std::string FileBytes() const {
    std::ifstream file(path_, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  // A restore into an empty index, whose process ends at a read; kNever: it does not. Returns the reads.
  absl::StatusOr<int> RestoreKilledAt(int read) const {
    auto index = MakeIndex(SmallConfig(KvStore::kKeysValues), backend_.get());
    const auto file = OpenFile(path_);
    if (!file.ok()) return file.status();
    KillingSource source(file->get(), read);
    const auto restored = index->Restore(&source, {});
    return restored.ok() ? absl::StatusOr<int>(source.reads()) : restored.status();
  }
  // Leaves a snapshot of 1,500 tokens in the file, and 1,510 in the sequence. Returns the steps of writing these.
  int WriteThenGrow() {
    EXPECT_TRUE(Write().ok());
    const std::string before = FileBytes();
    testing::Extend(index_.get(), "a", 10);
    FaultyFiles counting;
    EXPECT_TRUE(Write(&counting).ok());
    std::ofstream(path_, std::ios::binary) << before;
    return counting.steps;
  }

  const TempFolder folder_;
  const std::string path_ = folder_.Path("a.snapshot");
  const std::unique_ptr<Backend> backend_ = MakeCpuBackend(1);
  std::unique_ptr<Index> index_;
};

TEST_F(SnapshotFileTest, IsReadAsItWasWritten) {
  ASSERT_TRUE(Write().ok());
  auto index = MakeIndex(SmallConfig(KvStore::kKeysValues), backend_.get());
  ASSERT_TRUE(RestoreFromFile(index.get(), {}, path_).ok());
  EXPECT_TRUE(testing::StateOf(*index, "a") == testing::StateOf(*index_, "a"));
  EXPECT_EQ(FileBytes(), testing::SnapshotOf(*index_));
}

TEST_F(SnapshotFileTest, AnErrorAtAnyStepLeavesWhatWasThereAndNothingElse) {
  const int steps = WriteThenGrow();
  ASSERT_GT(steps, 30);
  for (const auto& [error, code] :
       {std::pair{ENOSPC, StatusCode::kResourceExhausted}, std::pair{EIO, StatusCode::kUnavailable}}) {
    for (int step = 0; step < steps - 1; ++step) {  // the last writes the folder through
      FaultyFiles files;
      files.fail_at = step;
      files.error = error;
      files.direct = error == ENOSPC;
      ASSERT_EQ(Write(&files).code(), code) << "step " << step;
      ASSERT_EQ(FilesIn(folder_.Path("")), std::vector<std::string>{"a.snapshot"}) << "step " << step;
    }
    EXPECT_EQ(TokensInFile(), 1500);
  }
  FaultyFiles files;
  files.fail_at = steps - 1;
  EXPECT_EQ(Write(&files).code(), StatusCode::kUnavailable) << "not known to last";
  EXPECT_EQ(FilesIn(folder_.Path("")), std::vector<std::string>{"a.snapshot"});
  EXPECT_TRUE(Write().ok());
}

// At each of these points a process that snapshots ends, as by kill -9.
TEST_F(SnapshotFileTest, AProcessKilledAtAnyStepLosesNothingThatWasCompleted) {
  const int steps = WriteThenGrow();
  int killed = 0;
  for (int step = 0; step <= steps; ++step) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      FaultyFiles files;
      files.kill_at = step;
      _exit(Write(&files).ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    const bool completed = WEXITSTATUS(status) == 0, renamed = completed || step == steps - 1;
    ASSERT_TRUE(completed || WEXITSTATUS(status) == 99) << "step " << step;
    killed += completed ? 0 : 1;
    ASSERT_EQ(TokensInFile(), renamed ? 1510 : 1500) << "step " << step;
    if (renamed) continue;
    const size_t partial = FilesIn(folder_.Path("")).size() - 1;
    EXPECT_EQ(RemovePartialFiles(folder_.Path("")), static_cast<int>(partial)) << "step " << step;
    ASSERT_EQ(FilesIn(folder_.Path("")), std::vector<std::string>{"a.snapshot"});
  }
  EXPECT_GE(killed, 60);
}

// At each of these points a process that restores ends. The file stays as it was, and the next process restores it.
TEST_F(SnapshotFileTest, AProcessKilledAtAnyReadLeavesTheFileToTheNext) {
  ASSERT_TRUE(Write().ok());
  const std::string before = FileBytes();
  const absl::StatusOr<int> reads = RestoreKilledAt(kNever);
  ASSERT_TRUE(reads.ok()) << reads.status();
  ASSERT_GE(*reads, 60) << "points of death";
  for (int read = 0; read < *reads; ++read) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) _exit(RestoreKilledAt(read).ok() ? 0 : 1);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 99) << "read " << read;
    ASSERT_EQ(FilesIn(folder_.Path("")), std::vector<std::string>{"a.snapshot"}) << "read " << read;
  }
  EXPECT_TRUE(FileBytes() == before);
  EXPECT_EQ(TokensInFile(), 1500);
}

TEST_F(SnapshotFileTest, WhatAnotherProcessIsWritingIsNotRemoved) {
  const std::string partial = folder_.Path("b.snapshot.1.0.partial");
  const int fd = SystemFiles().Create(partial);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(RemovePartialFiles(folder_.Path("")), 0);
  SystemFiles().Close(fd);
  EXPECT_EQ(RemovePartialFiles(folder_.Path("")), 1);
}

TEST_F(SnapshotFileTest, FilesThatAreNoneAreRefused) {
  const auto refusal = [&](const std::string& path) { return RestoreFromFile(index_.get(), {}, path).status().code(); };
  EXPECT_EQ(refusal(folder_.Path("none")), StatusCode::kNotFound);
  EXPECT_EQ(refusal(folder_.Path("")), StatusCode::kInvalidArgument);
  std::filesystem::create_symlink("/dev/zero", folder_.Path("link"));
  EXPECT_EQ(refusal(folder_.Path("link")), StatusCode::kInvalidArgument);
  EXPECT_EQ(SnapshotToFile(*index_, {"a", 0}, SnapshotScope::kFamily, folder_.Path("no/such")).status().code(),
            StatusCode::kNotFound);
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  return WriteFile(path, [&](ByteSink* sink) {
    return sink->Write(reinterpret_cast<const uint8_t*>(text.data()), static_cast<int64_t>(text.size()));
  });
}

TEST(SnapshotPathTest, ALinkIsFollowedInWritingAndInReading) {
  const TempFolder folder;
  const std::string target = folder.Path("target"), link = folder.Path("link");
  fs::create_symlink("target", link);  // it leads nowhere yet
  for (const std::string text : {"first", "and again"}) {
    ASSERT_TRUE(WriteText(link, text).ok());
    EXPECT_TRUE(fs::is_symlink(link)) << "the link stays one";
    const auto source = OpenFile(link);
    ASSERT_TRUE(source.ok()) << source.status();
    std::string read(text.size(), ' ');
    EXPECT_TRUE((*source)->Read(reinterpret_cast<uint8_t*>(read.data()), static_cast<int64_t>(read.size())).ok());
    EXPECT_EQ(read, text);
    EXPECT_EQ(fs::file_size(target), text.size());
  }
}

TEST(SnapshotPathTest, WhatIsNoRegularFileIsRefusedAndStays) {
  const TempFolder folder;
  const std::string pipe = folder.Path("pipe"), circle = folder.Path("circle");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink("circle", circle);
  fs::create_symlink(pipe, folder.Path("to-pipe"));
  for (const std::string& path : {pipe, circle, folder.Path("to-pipe"), std::string("/dev/null"), folder.Path(""),
                                  folder.Path("cut") + '\0' + "name"}) {
    EXPECT_EQ(WriteText(path, "x").code(), absl::StatusCode::kInvalidArgument) << path;
  }
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_FALSE(fs::exists(folder.Path("cut")));
}

}  // namespace
}  // namespace seine
