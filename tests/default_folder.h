// The folder of the default address in /tmp, put aside while a test makes its own; one test of the machine at a time.
#ifndef SEINE_TESTS_DEFAULT_FOLDER_H_
#define SEINE_TESTS_DEFAULT_FOLDER_H_

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"

namespace seine {

class DefaultFolder {
 public:
  DefaultFolder() : lock_(open((path() + ".test").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    flock(lock_, LOCK_EX);
    std::filesystem::rename(path(), path() + ".aside", none_);
  }
  ~DefaultFolder() {
    std::filesystem::remove_all(path(), none_);
    std::filesystem::rename(path() + ".aside", path(), none_);
    close(lock_);
  }
  DefaultFolder(const DefaultFolder&) = delete;
  DefaultFolder& operator=(const DefaultFolder&) = delete;

  static std::string path() { return absl::StrCat("/tmp/seine-", getuid()); }

 private:
  const int lock_;
  std::error_code none_;  // nothing was there
};

}  // namespace seine

#endif  // SEINE_TESTS_DEFAULT_FOLDER_H_
