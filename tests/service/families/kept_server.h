// A server without a network that ends and starts again over a folder of snapshots.
#ifndef SEINE_TESTS_SERVICE_FAMILIES_KEPT_SERVER_H_
#define SEINE_TESTS_SERVICE_FAMILIES_KEPT_SERVER_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "index/bytes/file_ops.h"
#include "kernels/backend.h"
#include "service/calls/calls.h"
#include "service/calls/convert/convert.h"
#include "service/catalog.h"
#include "service/core.h"
#include "service/families/family_records.h"
#include "service/families/sequence_families.h"
#include "service/kept_families.h"
#include "service/snapshots/exit_snapshots.h"
#include "service/snapshots/files/exit_files.h"
#include "service/snapshots/files/snapshot_folder.h"
#include "tests/service/fixture.h"

namespace seine::test {

// Counts steps, and fails the one that it is told to, or ends the process there.
class StoppedFiles : public FileOps {
 public:
  int fail_at = -1, kill_at = -1, steps = 0;

  int Create(const std::string& path) override { return Step() ? -ENOSPC : FileOps::Create(path); }
  int64_t Write(int fd, const uint8_t* data, int64_t bytes) override {
    return Step() ? -ENOSPC : FileOps::Write(fd, data, bytes);
  }
  int Sync(int fd) override { return Step() ? -EIO : FileOps::Sync(fd); }
  int Rename(const std::string& from, const std::string& to) override {
    return Step() ? -EIO : FileOps::Rename(from, to);
  }
  int SyncFolder(const std::string& folder) override { return Step() ? -EIO : FileOps::SyncFolder(folder); }
  int Remove(const std::string& path) override { return Step() ? -EIO : FileOps::Remove(path); }

 private:
  bool Step() {
    if (steps == kill_at) _exit(99);
    return steps++ == fail_at;
  }
};

// Its index "a" holds families of one sequence each, of 200 tokens.
class KeptServer {
 public:
  explicit KeptServer(const SnapshotOptions& options) : core_(Options(), MakeCpuBackend(1)) {
    EXPECT_TRUE(core_.catalog.Create(*ConfigFrom(Spec("a"), "spec", nullptr)).ok());
    started = PrepareSnapshots(options, &core_);
  }
  // Records go through `files` from now on.
  void Through(FileOps* files) { core_.family_records = std::make_unique<FamilyRecords>(*core_.snapshots, files); }

  void Make(const std::string& id) {
    v1::CreateSequenceRequest create;
    v1::CreateSequenceResponse created;
    create.set_index("a");
    create.set_id(id);
    ASSERT_TRUE(CreateSequence(core_, create, &created).ok());
    for (int layer = 0; layer < kLayers; ++layer) {
      v1::AppendRequest append;
      v1::AppendResponse appended;
      *append.mutable_item() = Item(created.handle(), layer, 0, 200);
      ASSERT_TRUE(Append(core_, append, &appended).ok());
    }
  }
  absl::Status Delete(const std::string& id) {
    v1::DeleteSequenceRequest request;
    v1::DeleteSequenceResponse response;
    request.mutable_handle()->set_index("a");
    request.mutable_handle()->set_id(id);
    return DeleteSequence(core_, request, &response);
  }
  absl::Status Write(const std::string& id, const std::string& file) {
    v1::SnapshotRequest request;
    v1::SnapshotResponse response;
    request.mutable_handle()->set_index("a");
    request.mutable_handle()->set_id(id);
    request.set_file(file);
    return Snapshot(core_, request, &response);
  }
  absl::Status Read(const std::string& file, uint64_t generation) {
    v1::RestoreRequest request;
    v1::RestoreResponse response;
    request.set_index("a");
    request.set_file(file);
    request.set_generation(generation);
    return Restore(core_, request, &response);
  }
  absl::Status Hold(const std::string& file, uint64_t generation, std::string* base) {
    v1::RestoreRequest request;
    v1::RestoreResponse response;
    request.set_index("a");
    request.set_file(file);
    request.set_generation(generation);
    request.set_hold_seconds(60);
    const absl::Status status = Restore(core_, request, &response);
    *base = response.base();
    return status;
  }
  absl::Status BringUp(const std::string& base, uint64_t generation) {
    v1::RestoreRequest request;
    v1::RestoreResponse response;
    request.set_index("a");
    request.set_base(base);
    request.set_generation(generation);
    return Restore(core_, request, &response);
  }
  // Freezes the family and gives it up to node n1.
  absl::Status Move(const std::string& family, uint64_t generation, int seconds = 0,
                    const std::vector<std::string>& held = {}) {
    v1::SetFamilyStateRequest request;
    v1::SetFamilyStateResponse response;
    request.set_index("a");
    request.set_family(family);
    request.set_state(v1::FAMILY_STATE_FROZEN);
    if (absl::Status s = SetFamilyState(core_, request, &response); !s.ok()) return s;
    request.set_state(v1::FAMILY_STATE_MOVED);
    request.set_freeze(response.freeze());
    request.set_node("n1");
    request.set_address("host:7700");
    request.set_generation(generation);
    request.set_seconds(seconds);
    for (const std::string& name : held) request.add_held(name);
    return SetFamilyState(core_, request, &response);
  }
  bool Exit() { return WriteExitSnapshots(&core_, absl::Seconds(60)); }

  bool Holds(const std::string& family) { return HoldsFamily(*core_.catalog.Find("", "a"), family); }
  bool SaysMoved(const std::string& family) { return !core_.families.CheckHere(Key(family)).ok(); }
  uint64_t Generation(const std::string& family) { return core_.families.Generation(Key(family)); }
  int64_t PassedOverFor(PassedOver reason) {
    const std::vector<PassedOverFile> files = core_.exit_files.List();
    return std::count_if(files.begin(), files.end(), [&](const auto& file) { return file.reason == reason; });
  }
  Core& core() { return core_; }

  absl::Status started;

 private:
  static CoreOptions Options() {
    CoreOptions options;
    options.workers = options.threads = 1;
    options.channels = 0;
    return options;
  }
  static FamilyKey Key(const std::string& family) { return {"", "a", family}; }

  Core core_;
};

}  // namespace seine::test

#endif  // SEINE_TESTS_SERVICE_FAMILIES_KEPT_SERVER_H_
