// Whether a folder lies on a file system that is not this machine's own.
#ifndef SEINE_SERVICE_SNAPSHOTS_FILES_FAR_FOLDER_H_
#define SEINE_SERVICE_SNAPSHOTS_FILES_FAR_FOLDER_H_

#include <cstdint>
#include <functional>
#include <string>

namespace seine {

// statfs's f_type as a word: "nfs", "fuse" ...; empty: of no network, as far as is known. FUSE counts: nobody says
// what is behind it. Numbers: of Linux and of the file systems' own sources.
std::string NetworkFileSystem(int64_t type);

// statfs's f_type of a path; 0 where the system does not say.
int64_t FileSystemType(const std::string& path);

// One line for the log where the folder of a setting is on a network file system; empty: it is not, or none is set.
std::string FarFolder(const std::string& key, const std::string& folder,
                      const std::function<int64_t(const std::string&)>& type_of = FileSystemType);

}  // namespace seine

#endif  // SEINE_SERVICE_SNAPSHOTS_FILES_FAR_FOLDER_H_
