#include "service/snapshots/files/far_folder.h"

#include <sys/vfs.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace seine {

std::string NetworkFileSystem(int64_t type) {
  static constexpr std::pair<uint32_t, const char*> kNames[] = {
      {0x6969, "nfs"},      {0xff534d42, "cifs"},   {0xfe534d42, "smb"},   {0x517b, "smb"},
      {0x65735546, "fuse"}, {0x01021997, "9p"},     {0x00c36400, "ceph"},  {0x0bd00bd0, "lustre"},
      {0x47504653, "gpfs"}, {0x19830326, "beegfs"}, {0x5346414f, "afs"},   {0x6b414653, "afs"},
      {0x73757245, "coda"}, {0x01161970, "gfs2"},   {0x7461636f, "ocfs2"}, {0x20030528, "orangefs"},
  };
  for (const auto& [number, name] : kNames) {
    if (static_cast<uint32_t>(type) == number) return name;  // f_type is signed, of 32 bits on some machines
  }
  return "";
}

int64_t FileSystemType(const std::string& path) {
  struct statfs info;
  return statfs(path.c_str(), &info) == 0 ? static_cast<int64_t>(info.f_type) : 0;
}

std::string FarFolder(const std::string& key, const std::string& folder,
                      const std::function<int64_t(const std::string&)>& type_of) {
  const std::string name = folder.empty() ? "" : NetworkFileSystem(type_of(folder));
  if (name.empty()) return "";
  return absl::StrCat(key, ": ", folder, " is on ", name,
                      ", a file system of a network or another process: locks, fsync and renames may not hold there as "
                      "on a local disk");
}

}  // namespace seine
