// The records of families in a server's folder, a file a family. So a move costs one small file, and a damaged file
// puts one family in doubt.
#ifndef SEINE_SERVICE_FAMILIES_FAMILY_RECORDS_H_
#define SEINE_SERVICE_FAMILIES_FAMILY_RECORDS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "index/bytes/file_ops.h"
#include "service/families/family_record.h"
#include "service/families/sequence_families.h"
#include "service/snapshots/files/snapshot_folder.h"

namespace seine {

// The records of an index.
struct IndexRecords {
  std::map<std::string, FamilyRecord, std::less<>> families;  // by name
  std::map<std::string, absl::Status> damaged;                // why each cannot be read, by FileOfFamily

  // Returns the generation of the family that the record states; 0: there is none.
  uint64_t Generation(absl::string_view family) const;
  // Whether a copy of the family in this generation may serve. FAILED_PRECONDITION: the record has a newer one.
  // DATA_LOSS: its record is damaged.
  absl::Status CheckCopy(absl::string_view family, uint64_t generation) const;
};

// Thread-safe: calls on one family are the caller's to order.
class FamilyRecords {
 public:
  // Both outlive this.
  explicit FamilyRecords(const SnapshotFolder& folder, FileOps* files = &SystemFiles())
      : folder_(folder), files_(*files) {}

  // Once it returns OK, the record is there also after a loss of power. After an error the one before is there, unless
  // the disk fails again: RESOURCE_EXHAUSTED, where the disk is full; UNAVAILABLE.
  absl::Status Write(const FamilyKey& key, const FamilyRecord& record);
  void Remove(const FamilyKey& key);
  // Removes those of an index.
  void RemoveIndex(absl::string_view tenant, absl::string_view index);

  IndexRecords Read(absl::string_view tenant, absl::string_view index) const;
  // Removes those that nobody needs where no older copy of a family is left: all but homes that callers are told of.
  void Sweep(absl::string_view tenant, absl::string_view index);

 private:
  std::string PathOf(const FamilyKey& key) const;
  absl::Status MakeFolderOf(const FamilyKey& key);

  const SnapshotFolder& folder_;
  FileOps& files_;
  std::mutex mutex_;
  std::set<std::string> made_;  // folders that last; guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_FAMILIES_FAMILY_RECORDS_H_
