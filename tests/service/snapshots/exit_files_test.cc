// What a start finds where an end has left two files of one family, and the newer one cannot be read for some lives.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/catalog.h"
#include "service/snapshots/files/exit_files.h"
#include "service/snapshots/files/snapshot_folder.h"
#include "service/snapshots/files/without_ids.h"
#include "tests/service/families/kept_server.h"

namespace seine::test {
namespace {

namespace fs = std::filesystem;
using Ids = std::set<std::string>;

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}
void WriteAll(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

class TwoFilesTest : public ::testing::Test {
 protected:
  // The older file has "chat" and "note", which is its fork. The newer one has "late" besides, and is damaged.
  void SetUp() override {
    {
      KeptServer server(options_);
      server.Make("chat");
      Fork(&server, "note");
      ASSERT_TRUE(server.Exit());
    }
    const std::string older = Only(), bytes = ReadAll(older);
    {
      KeptServer server(options_);
      Fork(&server, "late");
      ASSERT_TRUE(server.Exit());
    }
    newer_ = Only();
    whole_ = ReadAll(newer_);
    WriteAll(older, bytes);  // as after a kill before it was removed
    std::string damaged = whole_;
    damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
    WriteAll(newer_, damaged);
  }
  void Mend() { WriteAll(newer_, whole_); }

  static void Fork(KeptServer* server, const std::string& id) {
    v1::ForkSequenceRequest request;
    v1::ForkSequenceResponse response;
    request.mutable_source()->set_index("a");
    request.mutable_source()->set_id("chat");
    request.set_new_id(id);
    ASSERT_TRUE(ForkSequence(server->core(), request, &response).ok());
  }
  static Ids Held(KeptServer* server) {
    Ids ids;
    for (const SequenceInfo& one : server->core().catalog.Find("", "a")->ListSequences()) ids.insert(one.handle.id);
    return ids;
  }
  std::vector<std::string> Names(const std::string& behind) const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(options_.folder + "/own/at-exit/index-a")) {
      const std::string path = entry.path().string();
      if (path.ends_with(behind)) found.push_back(path);
    }
    return found;
  }
  std::string Only() const {
    const std::vector<std::string> paths = Names(".snapshot");
    EXPECT_EQ(paths.size(), 1u);
    return paths.empty() ? "" : paths[0];
  }

  TempDir dir_;
  const SnapshotOptions options_{.folder = dir_.path + "/s", .at_exit = true, .restore_on_start = true};
  std::string newer_, whole_;
};

TEST_F(TwoFilesTest, WhatWasDeletedWhileTheNewerOneWasDamagedStaysDeleted) {
  {
    KeptServer server(options_);
    EXPECT_EQ(Held(&server), (Ids{"chat", "note"}));
    EXPECT_EQ(server.PassedOverFor(PassedOver::kDamaged), 1);
    ASSERT_TRUE(server.Delete("note").ok());
    ASSERT_TRUE(server.Exit());
  }
  {
    KeptServer server(options_);  // the newer one is still damaged, and the older one gone
    EXPECT_EQ(Held(&server), (Ids{"chat"}));
    ASSERT_TRUE(server.Delete("chat").ok());
    ASSERT_TRUE(server.Exit());
  }
  Mend();
  {
    KeptServer server(options_);
    EXPECT_EQ(Held(&server), (Ids{"late"})) << "a fork that the older file had not";
    EXPECT_EQ(server.PassedOverFor(PassedOver::kReplaced), 1);
    ASSERT_TRUE(server.Exit());
  }
  EXPECT_EQ(Names(".replaced").size(), 1u);
  EXPECT_TRUE(Names(".without").empty());
  KeptServer server(options_);
  EXPECT_EQ(Held(&server), (Ids{"late"}));
}

TEST_F(TwoFilesTest, AFileThatHasNothingElseIsKeptAndGivesNothing) {
  {
    KeptServer server(options_);
    Fork(&server, "late");
    ASSERT_TRUE(server.Exit());
  }
  EXPECT_TRUE(Names(".without").empty()) << "nothing was deleted";
  {
    KeptServer server(options_);
    for (const char* id : {"chat", "note", "late"}) ASSERT_TRUE(server.Delete(id).ok());
    ASSERT_TRUE(server.Exit());
  }
  Mend();
  KeptServer server(options_);
  EXPECT_EQ(Held(&server), Ids());
  ASSERT_TRUE(server.Exit());
  EXPECT_EQ(Names(".replaced").size(), 1u);
  EXPECT_TRUE(Names(".without").empty());
}

TEST_F(TwoFilesTest, AnEndThatFailsAtAnyStepLosesNothing) {
  int failed = 0;
  bool reached = true;
  for (int step = 0; reached; ++step) {
    SnapshotOptions options = options_;
    options.folder = absl::StrCat(dir_.path, "/s", step);
    fs::copy(options_.folder, options.folder, fs::copy_options::recursive);
    bool all = false;
    {
      StoppedFiles files;
      files.fail_at = step;
      KeptServer server(options);
      ASSERT_TRUE(server.Delete("note").ok());
      server.core().exit_files.SetFiles(&files);
      all = server.Exit();
      reached = files.steps > step;
    }
    failed += all ? 0 : 1;
    WriteAll(options.folder + newer_.substr(options_.folder.size()), whole_);
    KeptServer server(options);
    const Ids held = Held(&server);
    EXPECT_TRUE(held.contains("chat") && held.contains("late")) << "step " << step;
    EXPECT_FALSE(all && held.contains("note")) << "step " << step << ": the end said that all is written";
  }
  EXPECT_GE(failed, 5);
}

TEST_F(TwoFilesTest, IdsThatCannotBeReadPassTheFileOver) {
  {
    KeptServer server(options_);
    ASSERT_TRUE(server.Delete("note").ok());
    ASSERT_TRUE(server.Exit());
  }
  Mend();
  const std::string ids = newer_ + ".without", text = ReadAll(ids);
  const std::set<DeletedId> deleted = *ReadWithoutIds(newer_);
  ASSERT_EQ(deleted.size(), 1u);
  EXPECT_EQ(deleted.begin()->second, "note");
  for (size_t at = 0; at <= text.size(); ++at) {
    std::string torn = text.substr(0, at);
    if (at == text.size()) torn[0] = static_cast<char>(torn[0] ^ 1);
    WriteAll(ids, torn);
    EXPECT_EQ(ReadWithoutIds(newer_).status().code(), absl::StatusCode::kDataLoss) << at;
  }
  {
    KeptServer server(options_);
    EXPECT_EQ(Held(&server), (Ids{"chat"}));
    EXPECT_EQ(server.PassedOverFor(PassedOver::kDamaged), 1);
    ASSERT_TRUE(server.Exit());
  }
  WriteAll(ids, text);
  KeptServer server(options_);
  EXPECT_EQ(Held(&server), (Ids{"chat", "late"}));
}

TEST_F(TwoFilesTest, ADeletedIndexLeavesNone) {
  {
    KeptServer server(options_);
    ASSERT_TRUE(server.Delete("note").ok());
    ASSERT_TRUE(server.Exit());
  }
  EXPECT_EQ(Names(".without").size(), 1u);
  WriteAll(newer_ + ".replaced", whole_);
  KeptServer server(options_);
  v1::DeleteIndexRequest request;
  v1::DeleteIndexResponse response;
  request.set_name("a");
  ASSERT_TRUE(DeleteIndex(server.core(), request, &response).ok());
  EXPECT_EQ(Names(""), std::vector<std::string>());
}

}  // namespace
}  // namespace seine::test
