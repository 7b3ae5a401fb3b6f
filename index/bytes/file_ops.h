// The few calls on files that snapshots make, so that tests can let each of them fail, or end the process there.
#ifndef SEINE_INDEX_BYTES_FILE_OPS_H_
#define SEINE_INDEX_BYTES_FILE_OPS_H_

#include <cstdint>
#include <string>

namespace seine {

// Each returns 0 (or what it is asked for) or an errno, negative. Thread-safe.
class FileOps {
 public:
  virtual ~FileOps() = default;
  // A new file to be written, held by a lock that ends with the descriptor.
  virtual int Create(const std::string& path);
  virtual int64_t Write(int fd, const uint8_t* data, int64_t bytes);
  // Whether writes go past the page cache: of whole sectors, from memory that is aligned to them. -EINVAL: the file
  // system cannot.
  virtual int SetDirect(int fd, bool direct);
  virtual int Sync(int fd);
  virtual int Close(int fd);
  virtual int Rename(const std::string& from, const std::string& to);
  virtual int SyncFolder(const std::string& folder);
  virtual int Remove(const std::string& path);
};

FileOps& SystemFiles();

}  // namespace seine

#endif  // SEINE_INDEX_BYTES_FILE_OPS_H_
