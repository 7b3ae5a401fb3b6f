// Snapshots through the wire: files by name and tenant, errors, quotas, what is counted, and ends and starts of
// servers.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "index/index.h"
#include "index/snapshot/snapshot_file.h"
#include "service/calls/convert/convert.h"
#include "service/catalog.h"
#include "service/snapshots/exit_snapshots.h"
#include "service/snapshots/files/snapshot_folder.h"
#include "tests/service/access/access_fixture.h"

namespace seine::test {
namespace {

namespace fs = std::filesystem;
using grpc::StatusCode;
using Sequences = v1::SequenceService::Stub;

void Spoil(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-40, std::ios::end);
  file.write("spoilt", 6);
}

// A server that ends and starts again with what its folder holds.
class SnapshotServerTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(true); }
  void Start(bool folder, bool at_exit = false) {
    server_ = nullptr;
    ServerOptions options;
    options.listen = "unix:" + dir_.path + "/seine.sock";
    options.core.threads = 1;
    options.core.workers = 2;
    if (folder) options.snapshots.folder = dir_.path + "/snapshots";
    options.snapshots.at_exit = options.snapshots.restore_on_start = at_exit;
    for (const char* name : {"a", "b"}) options.indexes.push_back(*ConfigFrom(Spec(name), "spec", nullptr));
    auto server = Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stubs_ = std::make_unique<Stubs>(server_->address());
  }
  std::shared_ptr<Index> Held(const std::string& index) { return server_->core().catalog.Find("", index); }

  // A sequence of 200 tokens.
  void Make(const std::string& index, const std::string& id) {
    v1::SequenceHandle handle;
    handle.set_index(index);
    handle.set_id(id);
    ASSERT_TRUE(Held(index)->CreateSequence(id).ok());
    for (int layer = 0; layer < kLayers; ++layer) {
      v1::AppendRequest request;
      v1::AppendResponse response;
      *request.mutable_item() = Item(handle, layer, 0, 200);
      ASSERT_TRUE(Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Append, request, &response).ok());
    }
  }
  grpc::Status Snapshot(const std::string& id, const std::string& file, v1::SnapshotResponse* response) {
    v1::SnapshotRequest request;
    request.mutable_handle()->set_index("a");
    request.mutable_handle()->set_id(id);
    request.set_file(file);
    return Call(*stubs_->sequence, &Sequences::Snapshot, request, response);
  }
  grpc::Status Restore(const std::string& index, const std::string& file, v1::RestoreResponse* response) {
    v1::RestoreRequest request;
    request.set_index(index);
    request.set_file(file);
    return Call(*stubs_->sequence, &Sequences::Restore, request, response);
  }

  TempDir dir_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Stubs> stubs_;
};

TEST_F(SnapshotServerTest, WritesAFamilyAndRestoresItAfterARestart) {
  Make("a", "chat");
  ASSERT_TRUE(Held("a")->Fork({"chat", 0}, "branch", 150).ok());
  v1::SnapshotResponse written;
  ASSERT_TRUE(Snapshot("branch", "monday", &written).ok());
  ASSERT_EQ(written.sequences_size(), 2);
  EXPECT_EQ(written.sequences(0).handle().id(), "chat");
  EXPECT_EQ(written.sequences(1).layer_tokens(0), 150);
  EXPECT_EQ(written.bytes(), static_cast<int64_t>(fs::file_size(dir_.path + "/snapshots/own/monday.snapshot")));
  Start(true);
  v1::RestoreResponse restored;
  for (const char* index : {"a", "b"}) {  // another of the same settings takes it too
    const grpc::Status status = Restore(index, "monday", &restored);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(restored.bytes(), written.bytes());
    EXPECT_EQ(restored.sequences(1).handle().id(), "branch");
    EXPECT_EQ(Held(index)->GetSequence({"chat", 0})->layer_tokens[1], 200);
  }
  const SnapshotCounts& counts = server_->core().snapshot_counts;
  EXPECT_EQ(counts.restored, 2);
  EXPECT_EQ(counts.bytes_restored, 2 * written.bytes());
  EXPECT_EQ(Restore("a", "monday", &restored).error_code(), StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(counts.restores_failed, 1);
}

TEST_F(SnapshotServerTest, NamesLeadNowhereElse) {
  Make("a", "chat");
  v1::SnapshotResponse written;
  v1::RestoreResponse restored;
  for (const std::string& name :
       std::vector<std::string>{"", "../up", "a/b", "/tmp/x", "a b", std::string(1000, 'x')}) {
    const grpc::Status status = Snapshot("chat", name, &written);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << name;
    EXPECT_EQ(DetailsOf(status).field, "file") << name;
    EXPECT_EQ(Restore("a", name, &restored).error_code(), StatusCode::INVALID_ARGUMENT) << name;
  }
  for (const char* name : {"..", ".", ".hidden"}) {  // names like others
    EXPECT_TRUE(Snapshot("chat", name, &written).ok()) << name;
    EXPECT_TRUE(fs::exists(dir_.path + "/snapshots/own/" + name + ".snapshot"));
  }
  const grpc::Status none = Restore("a", "none", &restored);
  EXPECT_EQ(none.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(DetailsOf(none).field, "file");
}

TEST_F(SnapshotServerTest, DamageIsToldWithoutPaths) {
  Make("a", "chat");
  v1::SnapshotResponse written;
  v1::RestoreResponse restored;
  ASSERT_TRUE(Snapshot("chat", "x", &written).ok());
  Spoil(dir_.path + "/snapshots/own/x.snapshot");
  const grpc::Status status = Restore("b", "x", &restored);
  EXPECT_EQ(status.error_code(), StatusCode::DATA_LOSS);
  EXPECT_EQ(status.error_message().find(dir_.path), std::string::npos) << status.error_message();
  EXPECT_EQ(Held("b")->stats().num_sequences, 0);
}

TEST_F(SnapshotServerTest, WithoutAFolderThereAreNone) {
  Start(false);
  Make("a", "chat");
  v1::SnapshotResponse written;
  v1::RestoreResponse restored;
  for (const grpc::Status& status : {Snapshot("chat", "x", &written), Restore("a", "x", &restored)}) {
    EXPECT_EQ(status.error_code(), StatusCode::FAILED_PRECONDITION);
    EXPECT_NE(status.error_message().find("snapshots.dir"), std::string::npos) << status.error_message();
  }
}

TEST_F(SnapshotServerTest, WhatIsWrittenAtTheEndIsBackAtTheStart) {
  Make("a", "one");
  Make("a", "two");
  ASSERT_TRUE(Held("a")->Fork({"two", 0}, "fork", -1).ok());
  Make("b", "three");
  server_->Shutdown(absl::Seconds(5));
  ASSERT_TRUE(WriteExitSnapshots(&server_->core(), absl::Seconds(60)));
  const std::string at_exit = dir_.path + "/snapshots/own/at-exit";
  EXPECT_EQ(SnapshotsIn(at_exit + "/index-a")->size(), 2u) << "a file a family";
  std::ofstream(at_exit + "/index-a/9.snapshot.1.0.partial") << "of a process that was killed";
  Start(true, true);
  EXPECT_FALSE(fs::exists(at_exit + "/index-a/9.snapshot.1.0.partial"));
  for (const char* id : {"one", "two", "fork"}) EXPECT_TRUE(Held("a")->GetSequence({id, 0}).ok()) << id;
  EXPECT_EQ(Held("b")->GetSequence({"three", 0})->layer_tokens[0], 200);

  // One that is damaged is passed over; what is deleted is not written again.
  ASSERT_TRUE(Held("b")->DeleteSequence({"three", 0}).ok());
  server_->Shutdown(absl::Seconds(5));
  ASSERT_TRUE(WriteExitSnapshots(&server_->core(), absl::Seconds(60)));
  EXPECT_EQ(SnapshotsIn(at_exit + "/index-b")->size(), 0u);
  const std::vector<std::string> files = *SnapshotsIn(at_exit + "/index-a");
  ASSERT_EQ(files.size(), 2u);
  Spoil(files[0]);
  Start(true, true);
  EXPECT_EQ(server_->core().snapshot_counts.restores_failed, 1);
  EXPECT_EQ(Held("a")->Families().size(), 1u);
  EXPECT_TRUE(fs::exists(files[0])) << "left for whoever looks into it";
}

TEST_F(SnapshotServerTest, WhatIsNotWrittenInTimeIsTold) {
  Make("a", "one");
  server_->Shutdown(absl::Seconds(5));
  EXPECT_FALSE(WriteExitSnapshots(&server_->core(), absl::ZeroDuration()));
  EXPECT_EQ(server_->core().snapshot_counts.writes_failed, 1);
}

TEST(SnapshotOptionsTest, NeedAFolder) {
  EXPECT_TRUE(Validate(SnapshotOptions{}).ok());
  SnapshotOptions at_exit;
  at_exit.at_exit = true;
  EXPECT_EQ(Validate(at_exit), absl::InvalidArgumentError("snapshots.at_exit: needs snapshots.dir"));
  int removed = 0;
  EXPECT_EQ(SnapshotFolder::Open({.folder = "/proc/none/such"}, &removed).status().code(),
            absl::StatusCode::kInvalidArgument);
}

class TenantSnapshotTest : public AccessTest {
 protected:
  void Change(ServerOptions* options) override {
    options->access.quotas_file = Path("quotas.yaml");
    options->audit_file = Path("audit.log");
    options->snapshots.folder = Path("snapshots");
    ReplaceFile(Path("quotas.yaml"), "acme: {sequences: 2}");
  }
  grpc::Status Snapshot(const std::string& who, const std::string& id) {
    v1::SnapshotRequest request;
    v1::SnapshotResponse response;
    request.mutable_handle()->set_index("i");
    request.mutable_handle()->set_id(id);
    request.set_file("x");
    const CallerStubs caller = As(who);
    return caller.Call(*caller.sequence, &Sequences::Snapshot, request, &response);
  }
  grpc::Status Restore(const std::string& who, v1::RestoreRequest request, v1::RestoreResponse* response) {
    request.set_index("i");
    const CallerStubs caller = As(who);
    return caller.Call(*caller.sequence, &Sequences::Restore, request, response);
  }
  grpc::Status Restore(const std::string& who) {
    v1::RestoreRequest request;
    v1::RestoreResponse response;
    request.set_file("x");
    return Restore(who, request, &response);
  }
};

TEST_F(TenantSnapshotTest, WhatIsHeldIsItsTenantsAndCountsOnceItIsThere) {
  v1::SequenceHandle handle, other;
  for (const char* who : {"acme", "beta"}) ASSERT_TRUE(As(who).CreateIndex("i").ok());
  ASSERT_TRUE(As("acme").CreateSequence("i", "chat", &handle).ok());
  ASSERT_TRUE(Snapshot("acme-writer", "chat").ok());
  const std::shared_ptr<Index> index = server_->core().catalog.Find("acme", "i");
  ASSERT_TRUE(index->DeleteSequence({"chat", 0}).ok());
  v1::RestoreRequest hold, bring_up;
  v1::RestoreResponse held, there;
  hold.set_file("x");
  hold.set_hold_seconds(60);
  ASSERT_TRUE(Restore("acme-writer", hold, &held).ok());
  bring_up.set_base(held.base());
  EXPECT_EQ(Restore("acme-reader", bring_up, &there).error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Restore("beta", bring_up, &there).error_code(), StatusCode::NOT_FOUND) << "another's";
  for (const char* id : {"p", "q"}) ASSERT_TRUE(As("acme").CreateSequence("i", id, &other).ok());
  EXPECT_EQ(Restore("acme-writer", bring_up, &there).error_code(), StatusCode::RESOURCE_EXHAUSTED);
  ASSERT_TRUE(index->DeleteSequence({"p", 0}).ok());
  EXPECT_TRUE(Restore("acme-writer", bring_up, &there).ok());
  EXPECT_TRUE(index->GetSequence({"chat", 0}).ok());
}

TEST_F(TenantSnapshotTest, EachHasAFolderARoleAndAQuota) {
  v1::SequenceHandle handle, other;
  for (const char* who : {"acme", "beta"}) ASSERT_TRUE(As(who).CreateIndex("i").ok());
  ASSERT_TRUE(As("acme").CreateSequence("i", "chat", &handle).ok());
  EXPECT_EQ(Snapshot("acme-reader", "chat").error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(Snapshot("acme-writer", "chat").ok());
  EXPECT_TRUE(fs::exists(Path("snapshots/tenant-acme/x.snapshot")));
  EXPECT_EQ(Restore("beta").error_code(), StatusCode::NOT_FOUND) << "another's file";
  EXPECT_EQ(Snapshot("beta", "chat").error_code(), StatusCode::NOT_FOUND) << "another's sequence";
  EXPECT_EQ(Restore("acme-reader").error_code(), StatusCode::PERMISSION_DENIED);
  const std::shared_ptr<Index> index = server_->core().catalog.Find("acme", "i");
  ASSERT_TRUE(index->DeleteSequence({"chat", 0}).ok());
  for (const char* id : {"p", "q"}) ASSERT_TRUE(As("acme").CreateSequence("i", id, &other).ok());
  const grpc::Status full = Restore("acme-writer");
  EXPECT_EQ(full.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(full.error_message().find("quota sequences = 2"), std::string::npos) << full.error_message();
  ASSERT_TRUE(index->DeleteSequence({"p", 0}).ok());
  EXPECT_TRUE(Restore("acme-writer").ok());
  std::ifstream audit(Path("audit.log"));
  const std::string lines((std::istreambuf_iterator<char>(audit)), {});
  EXPECT_NE(lines.find(R"("call":"Snapshot","index":"i","sequence":"chat","code":"OK","file":"x")"), std::string::npos)
      << lines;
  EXPECT_NE(lines.find(R"("call":"Restore","index":"i","sequence":"","code":"RESOURCE_EXHAUSTED","file":"x")"),
            std::string::npos)
      << lines;
}

}  // namespace
}  // namespace seine::test
