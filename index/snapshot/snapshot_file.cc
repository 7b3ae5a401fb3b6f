#include "index/snapshot/snapshot_file.h"

#include <utility>

namespace seine {

absl::StatusOr<SnapshotInfo> SnapshotToFile(const Index& index, const SequenceHandle& handle, SnapshotScope scope,
                                            const std::string& path, FileOps* files, WrittenBase* base) {
  SnapshotInfo info;
  const auto write = [&](ByteSink* sink) {
    absl::StatusOr<SnapshotInfo> written = index.Snapshot(handle, scope, sink, base);
    if (!written.ok()) return written.status();
    info = *std::move(written);
    return absl::OkStatus();
  };
  if (absl::Status s = WriteFile(path, write, files); !s.ok()) return s;
  return info;
}

absl::StatusOr<RestoreInfo> RestoreFromFile(Index* index, const RestoreParams& restore, const std::string& path) {
  const absl::StatusOr<std::unique_ptr<ByteSource>> source = OpenFile(path);
  if (!source.ok()) return source.status();
  return index->Restore(source->get(), restore);
}

}  // namespace seine
