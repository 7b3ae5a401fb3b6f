// The files of families that a server writes as it ends: their names, and what this run knows of them.
//
// A name is END-FAMILY.snapshot, each 16 hexadecimal digits. END is the moment at which the end began, in microseconds
// since 1970, so names sort by age. FAMILY is drawn when a family is written for the first time, and stays with it.
// N.snapshot is of a build before, and older than all others. So a newer file never takes an older one's place: the
// older one goes once the newer one is there, and what this run has passed over stays.
//
// NAME.snapshot.replaced holds sequences that a client has made anew while the file was passed over. It is named at
// each start, and restored no more: a user who deletes the newer sequence does not get the older one back.
#ifndef SEINE_SERVICE_SNAPSHOTS_FILES_EXIT_FILES_H_
#define SEINE_SERVICE_SNAPSHOTS_FILES_EXIT_FILES_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "index/bytes/file_ops.h"
#include "index/index.h"
#include "service/snapshots/files/without_ids.h"

namespace seine {

struct ExitFile {
  std::string path;
  uint64_t end = 0;      // 0: of a build before
  std::string family{};  // empty: of a build before
  int64_t bytes = 0;
  bool replaced = false;
};
// Those of a folder, the newest first; none where there is no folder. UNAVAILABLE: it cannot be read.
absl::StatusOr<std::vector<ExitFile>> ExitFilesIn(const std::string& folder);
// Removes them all. UNAVAILABLE naming one that stays, once all were tried.
absl::Status RemoveExitFiles(const std::string& folder, FileOps* files);
// The path of a family's file. `end` is of BeginEnd.
std::string ExitPath(const std::string& folder, uint64_t end, const std::string& family);
// Returns this moment, or a later one: one that no file of `files` has.
uint64_t BeginEnd(const std::vector<ExitFile>& files);

// Why a start has left a file where it is.
enum class PassedOver : uint8_t {
  kStale,       // the family has moved to another server since
  kDoubtful,    // whether it has moved is not known
  kDamaged,     // it cannot be read back
  kUnfit,       // of an index of other settings, or of a newer version
  kReplaced,    // its sequences are there, from a newer file or a client
  kOlder,       // a newer file of the family is passed over, and may be restored another time
  kNoIndex,     // there is no index of that name
  kNoRoom,      // memory or a quota was short
  kUnreadable,  // the server may not read it, or the disk fails
};
inline constexpr int kPassedOverReasons = 9;
absl::string_view ToString(PassedOver reason);  // "stale", "doubtful", ...

struct PassedOverFile {
  std::string tenant, index, file;  // file: its name, without folders; empty: the whole folder cannot be read
  int64_t bytes = 0;
  PassedOver reason = PassedOver::kStale;
};

// What this run has restored and passed over. Thread-safe.
class ExitFiles {
 public:
  using OfIndex = std::pair<std::string, std::string>;  // tenant, index

  // Files are restored at the start, and later as their index is made. To be called before calls come.
  void SetRestores() { restores_ = true; }
  bool restores() const { return restores_; }
  // What the files are written and removed through; as SetRestores.
  void SetFiles(FileOps* files) { files_ = files; }
  FileOps& files() const { return *files_; }

  // The file holds an older state of what was restored from now on. `renamed`: a newer file of the family is damaged
  // and stays; so the family is written under another name.
  void Restored(const OfIndex& index, const ExitFile& file, const RestoreInfo& info, bool renamed);
  // Some or all of its sequences are there from elsewhere: it stays, as one that is replaced.
  void Replaced(const OfIndex& index, const ExitFile& file);
  // The file is older than one of the same family that this run has restored: the end before was killed as it went on.
  void Superseded(const OfIndex& index, const ExitFile& file);
  void PassOver(const OfIndex& index, const ExitFile& file, PassedOver reason);
  void PassOverFolder(const OfIndex& index);  // it cannot be read
  // An index of that name is made: what was passed over for want of it is looked at again.
  void Reconsider(const OfIndex& index);

  // The name of the family that this sequence belongs to.
  std::string FamilyOf(const OfIndex& index, uint64_t generation) const;
  // The sequences are in a newer file, which lasts: removes the one that had them.
  void Written(const OfIndex& index, const std::string& path, const std::string& family,
               const std::vector<SequenceInfo>& sequences);
  // All that is held of the index, sequences `held`, is in `written`: removes what else this run has restored, for it
  // was deleted since. What was passed over gives it no more either. False: a file could not be removed or written, and
  // what was deleted would be back.
  bool AllWritten(const OfIndex& index, const std::set<std::string>& written, const std::set<std::string>& held);
  // The index is deleted, and all its files.
  void Forget(const OfIndex& index);

  std::vector<PassedOverFile> List() const;

 private:
  struct Source {
    std::string path, family;
  };
  struct Known {
    std::map<uint64_t, Source> sources;  // by the generation of a sequence
    std::set<std::string> own;           // files that are this run's to remove
    std::set<std::string> replaced;      // to be renamed in place of that
    std::set<std::string> waiting;       // files that were passed over, and may be restored another time
    std::set<DeletedId> ids;             // sequences that were restored
  };
  bool restores_ = false;
  FileOps* files_ = &SystemFiles();
  // The file is no longer that of a family. Guarded by mutex_.
  bool Retire(Known* known, const std::string& path);

  mutable std::mutex mutex_;
  std::map<OfIndex, Known> known_;           // guarded by mutex_
  std::vector<PassedOverFile> passed_over_;  // guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_SNAPSHOTS_FILES_EXIT_FILES_H_
