// What a server knows of its families after a restart: moves that it has acknowledged, generations, and copies of an
// older end that must not come back.
#include <sys/mman.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "index/index.h"
#include "service/catalog.h"
#include "service/families/family_record.h"
#include "service/families/sequence_families.h"
#include "service/fields/checked_text.h"
#include "service/snapshots/exit_file.h"
#include "service/snapshots/files/exit_files.h"
#include "service/snapshots/files/snapshot_folder.h"
#include "tests/service/families/kept_server.h"

namespace seine::test {
namespace {

namespace fs = std::filesystem;

std::string BytesOf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}
void SetBytes(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

class KeptFamiliesTest : public ::testing::Test {
 protected:
  // The server ends in order: "chat" and "other" are in files, in generation 0, and own/back.snapshot has "chat".
  void SetUp() override {
    KeptServer server(options_);
    ASSERT_TRUE(server.started.ok()) << server.started;
    for (const char* id : {"chat", "other"}) server.Make(id);
    ASSERT_TRUE(server.Write("chat", "back").ok());
    ASSERT_TRUE(server.Exit());
  }
  std::string ExitFolder() const { return options_.folder + "/own/at-exit/index-a"; }
  std::string Record(const std::string& family) const {
    return options_.folder + "/own/families/index-a/" + FileOfFamily(family) + ".family";
  }
  // Moves "chat" away and takes it back. *acknowledged: how many of the two the server has said to be done.
  static void MoveAndReturn(KeptServer* server, int* acknowledged) {
    if (!server->Move("chat", 1).ok()) return;
    *acknowledged = 1;
    if (!server->Read("back", 2).ok()) return;
    *acknowledged = 2;
  }

  TempDir dir_;
  const SnapshotOptions options_{.folder = dir_.path + "/s", .at_exit = true, .restore_on_start = true};
};

TEST_F(KeptFamiliesTest, AMoveIsKnownAfterAKill) {
  ASSERT_TRUE(KeptServer(options_).Move("chat", 1).ok());
  KeptServer again(options_);
  EXPECT_FALSE(again.Holds("chat"));
  EXPECT_TRUE(again.SaysMoved("chat"));
  EXPECT_EQ(again.Generation("chat"), 1u);
  EXPECT_TRUE(again.Holds("other"));
  EXPECT_EQ(again.PassedOverFor(PassedOver::kStale), 1);
  EXPECT_EQ(again.core().snapshot_counts.records_read, 1);
}

// A mover that is killed right after the source has given the family up leaves it to callers: also after a restart.
TEST_F(KeptFamiliesTest, WhatAHomeHeldIsKnownAfterAKill) {
  const std::vector<std::string> names = {"0123456789abcdef", "fedcba9876543210"};
  ASSERT_TRUE(KeptServer(options_).Move("chat", 1, /*seconds=*/0, names).ok());
  KeptServer again(options_);
  const auto known = again.core().families.List("", "a");
  ASSERT_EQ(known.size(), 1u);
  EXPECT_TRUE(known[0].moved);
  EXPECT_EQ(known[0].home.held, names);
}

TEST_F(KeptFamiliesTest, ARecordOfTheBuildBeforeIsTheSameAndIsRead) {
  FamilyRecord record{"chat", {"n1", "host:7700", 3}, absl::FromUnixSeconds(5)};
  const std::string before =
      "seine family 1\nfamily=chat\ngeneration=3\nnode=n1\naddress=host:7700\nuntil=5\n"
      "xxh3=2b7f54c6ae0e369f3b5e8ac10d19882f\n";
  EXPECT_EQ(ToText(record), before);
  EXPECT_TRUE(ParseFamilyRecord(before)->home.held.empty());
  record.home.held = {"a", "b"};
  EXPECT_EQ(ParseFamilyRecord(ToText(record))->home.held, record.home.held);
  record.home.held.assign(FamilyHome::kMostHeld, "a");
  EXPECT_TRUE(ParseFamilyRecord(ToText(record)).ok());
  record.home.held.emplace_back("a");
  EXPECT_FALSE(ParseFamilyRecord(ToText(record)).ok());
}

TEST_F(KeptFamiliesTest, AHomeThatIsForgottenStillFencesOlderFiles) {
  ASSERT_TRUE(KeptServer(options_).Move("chat", 1, /*seconds=*/1).ok());
  FamilyRecord record = *ParseFamilyRecord(BytesOf(Record("chat")));
  EXPECT_EQ(record.home.address, "host:7700");
  record.until = absl::Now() - absl::Hours(1);
  SetBytes(Record("chat"), ToText(record));
  {
    KeptServer again(options_);
    EXPECT_FALSE(again.Holds("chat"));
    EXPECT_FALSE(again.SaysMoved("chat"));
    again.Make("chat");  // anew
    ASSERT_TRUE(again.Exit());
    EXPECT_FALSE(fs::exists(Record("chat"))) << "no older file is left";
  }
  EXPECT_TRUE(KeptServer(options_).Holds("chat"));
}

TEST_F(KeptFamiliesTest, ARestoredFamilyHasTheGenerationThatItHad) {
  {
    KeptServer server(options_);
    int acknowledged = 0;
    MoveAndReturn(&server, &acknowledged);
    ASSERT_EQ(acknowledged, 2);
  }
  {
    KeptServer killed(options_);
    EXPECT_FALSE(killed.Holds("chat")) << "its file is of generation 0";
    EXPECT_EQ(killed.PassedOverFor(PassedOver::kStale), 1);
    ASSERT_TRUE(killed.Read("back", 3).ok());
    ASSERT_TRUE(killed.Exit());
    EXPECT_FALSE(fs::exists(Record("chat"))) << "the file says it";
  }
  KeptServer again(options_);
  EXPECT_TRUE(again.Holds("chat"));
  EXPECT_EQ(again.Generation("chat"), 3u);
  EXPECT_EQ(again.Generation("other"), 0u);
  EXPECT_EQ(again.Move("chat", 3).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(again.core().families.Count().stale, 1);
}

// At each of these points a process ends, as by kill -9. What it has acknowledged holds, and one node has the family.
TEST_F(KeptFamiliesTest, AProcessKilledAtAnyStepOfARecordKeepsWhatItAcknowledged) {
  auto* const acknowledged =
      static_cast<int*>(mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const std::string whole = dir_.path + "/whole";
  fs::copy(options_.folder, whole, fs::copy_options::recursive);
  int killed = 0;
  for (bool ended = false; !ended; ++killed) {
    fs::remove_all(options_.folder);
    fs::copy(whole, options_.folder, fs::copy_options::recursive);
    *acknowledged = 0;
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      KeptServer server(options_);
      StoppedFiles files;
      files.kill_at = killed;
      server.Through(&files);
      MoveAndReturn(&server, acknowledged);
      _exit(*acknowledged == 2 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    ended = WEXITSTATUS(status) == 0;
    ASSERT_TRUE(ended || WEXITSTATUS(status) == 99) << "step " << killed;
    KeptServer again(options_);
    ASSERT_TRUE(again.started.ok()) << again.started;
    EXPECT_TRUE(again.Holds("other")) << "step " << killed;
    EXPECT_FALSE(again.Holds("chat") && (*acknowledged > 0 || again.SaysMoved("chat"))) << "step " << killed;
    EXPECT_FALSE(*acknowledged == 0 && !again.Holds("chat") && !again.SaysMoved("chat")) << "step " << killed;
    EXPECT_GE(again.Generation("chat"), static_cast<uint64_t>(*acknowledged)) << "step " << killed;
    EXPECT_EQ(again.core().snapshot_counts.records_damaged, 0) << "step " << killed;
  }
  EXPECT_GE(killed, 14);
  munmap(acknowledged, sizeof(int));
}

TEST_F(KeptFamiliesTest, AMoveThatCannotBeWrittenDownIsRefused) {
  for (int step = 0; step < 8; ++step) {
    KeptServer server(options_);
    StoppedFiles files;
    files.fail_at = step;
    server.Through(&files);
    const absl::Status refused = server.Move("chat", 1);
    EXPECT_TRUE(refused.code() == absl::StatusCode::kUnavailable ||
                refused.code() == absl::StatusCode::kResourceExhausted)
        << "step " << step << ": " << refused;
    EXPECT_TRUE(server.Holds("chat"));
    EXPECT_FALSE(server.SaysMoved("chat"));
    EXPECT_FALSE(fs::exists(Record("chat"))) << "step " << step;
  }
  EXPECT_TRUE(KeptServer(options_).Holds("chat"));
}

// It was given up to this server: nobody else has it.
TEST_F(KeptFamiliesTest, WhatIsHeldStaysHeldWhereItsArrivalCannotBeWrittenDown) {
  KeptServer server(options_);
  ASSERT_TRUE(server.Move("chat", 1).ok());
  std::string base;
  ASSERT_TRUE(server.Hold("back", 2, &base).ok());
  EXPECT_FALSE(server.Holds("chat"));
  for (int step = 0; step < 4; ++step) {
    StoppedFiles files;
    files.fail_at = step;
    server.Through(&files);
    EXPECT_FALSE(server.BringUp(base, 2).ok()) << "step " << step;
    EXPECT_FALSE(server.Holds("chat"));
    EXPECT_TRUE(server.SaysMoved("chat"));
  }
  StoppedFiles files;
  server.Through(&files);
  ASSERT_TRUE(server.BringUp(base, 2).ok());
  EXPECT_TRUE(server.Holds("chat"));
  EXPECT_FALSE(server.SaysMoved("chat"));
  EXPECT_EQ(server.Generation("chat"), 2u);
}

TEST_F(KeptFamiliesTest, AFamilyWhoseArrivalCannotBeWrittenDownIsNotThere) {
  KeptServer server(options_);
  ASSERT_TRUE(server.Move("chat", 1).ok());
  StoppedFiles files;
  files.fail_at = 5;
  server.Through(&files);
  EXPECT_FALSE(server.Read("back", 2).ok());
  EXPECT_FALSE(server.Holds("chat"));
  EXPECT_TRUE(server.SaysMoved("chat"));
  EXPECT_EQ(ParseFamilyRecord(BytesOf(Record("chat")))->home.generation, 1u);
}

TEST_F(KeptFamiliesTest, ADamagedRecordPutsItsFamilyInDoubtAndNoOther) {
  ASSERT_TRUE(KeptServer(options_).Move("chat", 1).ok());
  const std::string right = BytesOf(Record("chat"));
  for (size_t at = 0; at <= right.size(); ++at) {
    std::string wrong = right;
    if (at < right.size()) {
      wrong[at] = static_cast<char>(wrong[at] ^ 1);
    } else {
      wrong.resize(right.size() / 2);
    }
    EXPECT_FALSE(ParseFamilyRecord(wrong).ok()) << "byte " << at;
    if (at % 40 != 0 && at < right.size()) continue;
    SetBytes(Record("chat"), wrong);
    KeptServer again(options_);
    EXPECT_FALSE(again.Holds("chat"));
    EXPECT_TRUE(again.Holds("other"));
    EXPECT_EQ(again.PassedOverFor(PassedOver::kDoubtful), 1);
    EXPECT_EQ(BytesOf(Record("chat")), wrong) << "left for whoever looks into it";
  }
}

TEST_F(KeptFamiliesTest, ARecordOfANewerBuildIsRefused) {
  FamilyRecord record;
  record.family = "chat";
  record.home.generation = 7;
  const std::string text = ToText(record), title = "seine family ";
  EXPECT_EQ(ParseFamilyRecord(text)->home.generation, 7u);
  std::string body = text.substr(0, text.find("xxh3="));
  body.replace(title.size(), 1, "2");
  EXPECT_EQ(ParseFamilyRecord(body + "xxh3=" + ChecksumOf(body) + "\n").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(KeptFamiliesTest, ARecordWithNamesThatCallsDoNotTakeIsDamaged) {
  const FamilyRecord right{"chat", {"n1", "host:7700", 3}, absl::UnixEpoch()};
  EXPECT_EQ(ParseFamilyRecord(ToText(right))->home.node, "n1");
  for (const auto spoil :
       {+[](FamilyRecord* r) { r->family = "chat/draft"; }, +[](FamilyRecord* r) { r->family = ""; },
        +[](FamilyRecord* r) { r->home.node = std::string("n\0", 2); }, +[](FamilyRecord* r) { r->home.node = ""; },
        +[](FamilyRecord* r) { r->home.address = ""; }, +[](FamilyRecord* r) { r->home.generation = 0; },
        +[](FamilyRecord* r) {
          r->home.held = {"a", std::string("b\x01", 2)};
        },
        +[](FamilyRecord* r) { r->home.held = {std::string(129, 'a')}; },
        +[](FamilyRecord* r) {
          r->home = {"", "", 3, {"a"}};
        }}) {
    FamilyRecord wrong = right;
    spoil(&wrong);
    EXPECT_EQ(ParseFamilyRecord(ToText(wrong)).status().code(), absl::StatusCode::kDataLoss) << ToText(wrong);
  }
}

TEST_F(KeptFamiliesTest, AnyByteOfWhatStandsBehindAFileIsChecked) {
  Generations generations;
  const auto any = [](absl::string_view, uint64_t) { return absl::OkStatus(); };
  const std::string path = dir_.path + "/x";
  size_t without = 0;
  {
    KeptServer server(options_);
    Index& index = *server.core().catalog.Find("", "a");
    ASSERT_TRUE(WriteExitFile(index, {"chat", 0}, path, [](absl::string_view) { return 0; }).ok());
    without = BytesOf(path).size();
    ASSERT_TRUE(WriteExitFile(index, {"chat", 0}, path, [](absl::string_view) { return 9; }).ok());
  }
  const std::string right = BytesOf(path);
  KeptServer server({});
  Index& index = *server.core().catalog.Find("", "a");
  for (size_t at = without; at < right.size(); ++at) {
    std::string wrong = right;
    wrong[at] = static_cast<char>(wrong[at] ^ 2);
    SetBytes(path, wrong);
    EXPECT_EQ(RestoreExitFile(&index, path, any, &generations).status().code(), absl::StatusCode::kDataLoss)
        << at - without;
  }
  std::string negative = right;
  negative.replace(right.size() - 16, 8, "-00000ff");  // of bytes
  SetBytes(path, negative);
  EXPECT_EQ(RestoreExitFile(&index, path, any, &generations).status().code(), absl::StatusCode::kDataLoss);
  SetBytes(path, right);
  ASSERT_TRUE(RestoreExitFile(&index, path, any, &generations).ok());
  EXPECT_EQ(generations, (Generations{{"chat", 9}}));
}

TEST_F(KeptFamiliesTest, WhatIsDeletedHasNoRecord) {
  KeptServer server(options_);
  int acknowledged = 0;
  MoveAndReturn(&server, &acknowledged);
  EXPECT_TRUE(fs::exists(Record("chat")));
  ASSERT_TRUE(server.Delete("chat").ok());
  EXPECT_FALSE(fs::exists(Record("chat")));
  ASSERT_TRUE(server.Move("other", 5).ok());
  v1::DeleteIndexRequest request;
  v1::DeleteIndexResponse response;
  request.set_name("a");
  ASSERT_TRUE(DeleteIndex(server.core(), request, &response).ok());
  EXPECT_FALSE(fs::exists(Record("other")));
  EXPECT_TRUE(SnapshotsIn(ExitFolder())->empty()) << "or it would come back";
}

TEST_F(KeptFamiliesTest, ServersThatShareAFolderHaveNames) {
  const SnapshotOptions n0{.folder = options_.folder, .at_exit = true, .restore_on_start = true, .node = "n0"};
  SnapshotOptions n1 = n0;
  n1.node = "n1";
  {
    KeptServer first(options_);
    const absl::Status second = KeptServer(options_).started;
    EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(absl::StrContains(second.message(), "snapshots.node")) << second;
    EXPECT_FALSE(KeptServer(n0).Holds("chat")) << "what a server without a name uses is not taken";
  }
  {
    KeptServer one(n0), other(n1);
    EXPECT_EQ(KeptServer(n1).started.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(one.Holds("chat")) << "what it had kept without a name";
    EXPECT_FALSE(other.Holds("chat"));
    other.Make("late");
    ASSERT_TRUE(one.Exit());
    ASSERT_TRUE(other.Exit());
  }
  KeptServer one(n0), other(n1);
  EXPECT_TRUE(one.Holds("chat") && one.Holds("other") && !one.Holds("late"));
  EXPECT_TRUE(other.Holds("late") && !other.Holds("chat"));
  EXPECT_EQ(Validate({.folder = "x", .node = "a/b"}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Validate({.node = "n0"}).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace seine::test
