// The control groups of a process: /proc/self/cgroup says its group in each hierarchy, /proc/self/mountinfo where the
// hierarchies are mounted and which part of them. Formats: the kernel's cgroup-v2.rst, cgroup-v1/, and proc(5).
#include "kernels/machine/limits.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

namespace seine {
namespace {

constexpr int64_t kNoLimit = int64_t{1} << 62;  // version 1 writes the largest number of whole pages for none

std::vector<std::string> LinesOf(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Whether `list`, words between commas, holds `word`.
bool Holds(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

// mountinfo writes a space, a tab, a newline and a backslash as three octal digits.
std::string Unescaped(const std::string& text) {
  const auto octal = [](char c) { return c >= '0' && c <= '7'; };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && octal(text[i + 1]) && octal(text[i + 2]) && octal(text[i + 3])) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

struct Mount {
  std::string root, point;  // which group is mounted, and where
  bool v2;
  std::string controllers;  // of version 1
};

// ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELDS...] - TYPE SOURCE SUPER_OPTIONS
std::vector<Mount> CgroupMounts(const std::string& root) {
  std::vector<Mount> mounts;
  for (const std::string& line : LinesOf(root + "/proc/self/mountinfo")) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream front(line.substr(0, dash)), back(line.substr(dash + 3));
    std::string id, parent, device, group, point, type, source, options;
    if (!(front >> id >> parent >> device >> group >> point) || !(back >> type >> source >> options)) continue;
    if (type == "cgroup" || type == "cgroup2") {
      mounts.push_back({Unescaped(group), Unescaped(point), type == "cgroup2", options});
    }
  }
  return mounts;
}

// The process's group in version 1's hierarchy of `controller`, or in version 2's (empty). NUMBER:CONTROLLERS:PATH
std::optional<std::string> GroupOf(const std::vector<std::string>& groups, const std::string& controller) {
  for (const std::string& line : groups) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? controllers.empty() : Holds(controllers, controller)) return line.substr(second + 1);
  }
  return std::nullopt;
}

// The folders of the group and of those above it, as far as they can be seen below the mount. A container may see a
// path of its host's, which is not there: then its own group is what is mounted.
std::vector<std::string> FoldersOf(const Mount& mount, std::string group) {
  if (mount.root != "/") {
    const bool under = group == mount.root || group.compare(0, mount.root.size() + 1, mount.root + "/") == 0;
    group = under ? group.substr(mount.root.size()) : "";
  }
  if (group.find("/..") != std::string::npos) group = "";  // above what this process's namespace shows
  std::vector<std::string> folders;
  while (group.size() > 1) {
    folders.push_back(mount.point + group);
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  folders.push_back(mount.point);
  return folders;
}

// The numbers of a file's first line; "max" counts as none.
std::vector<int64_t> NumbersIn(const std::string& path) {
  std::vector<int64_t> numbers;
  std::ifstream file(path);
  for (int64_t number; file >> number;) numbers.push_back(number);
  return numbers;
}

struct Tightest {
  double processors = std::numeric_limits<double>::infinity();
  std::string processors_why;
  int64_t memory = kNoLimit;
  std::string memory_why;

  void Quota(int64_t microseconds, int64_t period, const std::string& file) {
    if (microseconds <= 0 || period <= 0) return;
    const double share = static_cast<double>(microseconds) / static_cast<double>(period);
    if (share >= processors) return;
    processors = share;
    processors_why = file;
  }
  void Memory(const std::string& root, const std::string& file) {
    const std::vector<int64_t> bytes = NumbersIn(root + file);
    if (bytes.empty() || bytes[0] <= 0 || bytes[0] >= memory) return;
    memory = bytes[0];
    memory_why = file;
  }
};

void LookAt(const std::string& root, const Mount& mount, const std::string& folder, Tightest* found) {
  if (mount.v2) {
    const std::string quota = folder + "/cpu.max";
    const std::vector<int64_t> numbers = NumbersIn(root + quota);  // QUOTA PERIOD, or max PERIOD: no number first
    if (numbers.size() == 2) found->Quota(numbers[0], numbers[1], quota);
    return found->Memory(root, folder + "/memory.max");
  }
  if (Holds(mount.controllers, "cpu")) {
    const std::string quota = folder + "/cpu.cfs_quota_us";
    const std::vector<int64_t> used = NumbersIn(root + quota), period = NumbersIn(root + folder + "/cpu.cfs_period_us");
    if (!used.empty() && !period.empty()) found->Quota(used[0], period[0], quota);
  }
  if (Holds(mount.controllers, "memory")) found->Memory(root, folder + "/memory.limit_in_bytes");
}

int Affinity() {
  for (int most = 1024; most <= 1 << 20; most *= 4) {  // the kernel refuses a set smaller than its own
    cpu_set_t* const set = CPU_ALLOC(most);
    if (set == nullptr) break;
    const bool known = sched_getaffinity(0, CPU_ALLOC_SIZE(most), set) == 0;
    const int count = known ? CPU_COUNT_S(CPU_ALLOC_SIZE(most), set) : 0;
    CPU_FREE(set);
    if (known) return count;
  }
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

MachineLimits ReadMachineLimits(const std::string& root, int affinity) {
  const std::vector<std::string> groups = LinesOf(root + "/proc/self/cgroup");
  Tightest found;
  for (const Mount& mount : CgroupMounts(root)) {
    for (const char* controller : {"cpu", "memory"}) {
      if (!mount.v2 && !Holds(mount.controllers, controller)) continue;
      const std::optional<std::string> group = GroupOf(groups, mount.v2 ? "" : controller);
      for (const std::string& folder : FoldersOf(mount, group.value_or(""))) LookAt(root, mount, folder, &found);
    }
  }
  MachineLimits limits;
  limits.processors = std::max(1, affinity);
  limits.processors_why = "affinity";
  if (found.processors < limits.processors) {
    limits.processors = std::max(1, static_cast<int>(found.processors));
    limits.processors_why = found.processors_why;
  }
  if (found.memory < kNoLimit) {
    limits.memory_bytes = found.memory;
    limits.memory_why = found.memory_why;
  }
  return limits;
}

const MachineLimits& LimitsOfThisProcess() {
  static const MachineLimits* const limits = new MachineLimits(ReadMachineLimits("", Affinity()));
  return *limits;
}

int DefaultThreads() { return LimitsOfThisProcess().processors; }

}  // namespace seine
