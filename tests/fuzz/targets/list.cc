// The list of targets, and what they share: a part of target.h.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/targets/targets.h"
#include "tests/temp_folder.h"

namespace seine::fuzz {

const std::vector<TargetEntry>& Targets() {
  static const auto* const targets = [] {
    auto* const out = new std::vector<TargetEntry>;
    AddCallTargets(out);
    AddChannelTarget(out);
    AddAnswersTarget(out);
    AddJsonTarget(out);
    AddTensorTargets(out);
    AddSettingsTargets(out);
    AddSnapshotTarget(out);
    AddStartTarget(out);
    AddTextsTarget(out);
    return out;
  }();
  return *targets;
}

void Fail(const std::string& what) {
  fprintf(stderr, "fuzz: %s\n", what.c_str());
  fflush(stderr);
  abort();
}

// Links to files in memory, for readers want a path with a name; the process takes the folder with it.
const std::string& WriteInput(absl::string_view bytes, const std::string& name) {
  static const TempFolder folder;
  static std::map<std::string, std::pair<int, std::string>> files;
  auto& [memory, path] = files[name];
  if (path.empty()) {
    memory = memfd_create("input", MFD_CLOEXEC);
    path = folder.Path(name);
    if (memory < 0 || symlink(absl::StrCat("/proc/self/fd/", memory).c_str(), path.c_str()) != 0)
      Fail("no memory file");
  }
  const bool written =
      ftruncate(memory, 0) == 0 && pwrite(memory, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
  if (!written) Fail("the memory file takes no more");
  return path;
}

}  // namespace seine::fuzz
