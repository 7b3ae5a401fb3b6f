// What the system allows, read from folders that imitate /proc and /sys/fs/cgroup; and in a group of this machine's
// own, where the test may make one.
#include "kernels/machine/limits.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace seine {
namespace {

namespace fs = std::filesystem;

constexpr char kV2[] = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";

class Limits : public testing::Test {
 protected:
  Limits() {
    char folder[] = "/tmp/seine-limits-XXXXXX";
    root_ = mkdtemp(folder);
  }
  ~Limits() override { fs::remove_all(root_); }
  void Put(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void Process(const std::string& groups, const std::string& mounts) {
    Put("/proc/self/cgroup", groups);
    Put("/proc/self/mountinfo", "22 28 0:20 / /proc rw,nosuid - proc proc rw\n" + mounts);
  }
  MachineLimits Read(int affinity = 16) { return ReadMachineLimits(root_, affinity); }
  void Expect(int processors, int64_t memory, int affinity = 16) {
    const MachineLimits limits = Read(affinity);
    EXPECT_EQ(limits.processors, processors) << limits.processors_why;
    EXPECT_EQ(limits.memory_bytes, memory) << limits.memory_why;
  }
  std::string root_;
};

TEST_F(Limits, NothingThereIsNoLimit) {
  Expect(16, 0);
  Expect(1, 0, 0);
  Process("0::/\n", kV2);
  Expect(16, 0);
}

TEST_F(Limits, TheTightestOnTheWayUpCounts) {
  Process("0::/a.slice/b/c\n", kV2);
  Put("/sys/fs/cgroup/a.slice/cpu.max", "300000 100000\n");
  Put("/sys/fs/cgroup/a.slice/b/cpu.max", "max 100000\n");
  Put("/sys/fs/cgroup/a.slice/b/c/cpu.max", "1000000 100000\n");
  Put("/sys/fs/cgroup/a.slice/memory.max", "max\n");
  Put("/sys/fs/cgroup/a.slice/b/memory.max", "1073741824\n");
  Put("/sys/fs/cgroup/a.slice/b/c/memory.max", "4294967296\n");
  Put("/sys/fs/cgroup/other/memory.max", "4096\n");
  Expect(3, 1 << 30);
  EXPECT_EQ(Read().processors_why, "/sys/fs/cgroup/a.slice/cpu.max");
  EXPECT_EQ(Read().memory_why, "/sys/fs/cgroup/a.slice/b/memory.max");
  Expect(2, 1 << 30, 2);
  EXPECT_EQ(Read(2).processors_why, "affinity");
}

TEST_F(Limits, AContainerSeesItsGroupAsTheRoot) {
  for (const char* group : {"0::/\n", "0::/../../outside\n"}) {
    Process(group, kV2);
    Put("/sys/fs/cgroup/cpu.max", "100000 100000\n");
    Put("/sys/fs/cgroup/memory.max", "536870912\n");
    Expect(1, 536870912);
  }
}

TEST_F(Limits, PartsOfAProcessorRoundDown) {
  Process("0::/\n", kV2);
  for (const auto& [quota, threads] : {std::pair{"50000 100000", 1},
                                       {"1000 1000000", 1},
                                       {"150000 100000", 1},
                                       {"199999 100000", 1},
                                       {"200000 100000", 2},
                                       {"75000 10000", 7}}) {
    Put("/sys/fs/cgroup/cpu.max", quota);
    Expect(threads, 0);
  }
}

TEST_F(Limits, VersionOneHasAHierarchyAController) {
  Process("5:cpu,cpuacct:/docker/x\n4:memory:/docker/x/y\n1:name=systemd:/\n0::/\n",
          "33 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
          "34 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
          "35 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  Put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  Put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  Put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Expect(16, 0);
  Put("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "400000\n");
  Put("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
  Put("/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "2147483648\n");
  Put("/sys/fs/cgroup/memory/docker/x/y/memory.limit_in_bytes", "9223372036854771712\n");
  Expect(4, int64_t{2} << 30);
}

// Docker with version 1: the group's path is the host's, and the mount shows that part alone. So with a mount's name
// that has a space in it, and with a path that is not below the mount's root.
TEST_F(Limits, AMountMayShowAPart) {
  const std::string mounts = "34 31 0:30 /docker/x /sys/fs/my\\040cgroup ro master:1 - cgroup cgroup rw,memory\n";
  Put("/sys/fs/my cgroup/memory.limit_in_bytes", "1000000\n");
  Put("/sys/fs/my cgroup/y/memory.limit_in_bytes", "900000\n");
  Process("4:memory:/docker/x\n", mounts);
  Expect(16, 1000000);
  Process("4:memory:/docker/x/y\n", mounts);
  Expect(16, 900000);
  Process("4:memory:/docker/xy\n", mounts);
  Expect(16, 1000000);
}

TEST_F(Limits, NonsenseSetsNoLimit) {
  for (const char* text : {"", "\n", "max", "max max", "-5 100000", "0 100000", "100000 0", "100000", "word 5"}) {
    Process("0::/g\nrubbish\n:\n0:x\n", std::string("rubbish\n - \n") + kV2);
    Put("/sys/fs/cgroup/g/cpu.max", text);
    Put("/sys/fs/cgroup/g/memory.max", text[0] == '1' ? "x" : text);
    Expect(16, 0);
  }
}

// A group of this machine's own, of half a processor and 512 MiB, with a process of this program in it.
TEST(LimitsHere, AGroupOfThisMachine) {
  const bool v2 = fs::exists("/sys/fs/cgroup/cgroup.controllers");
  const std::string name = "/seine-limits-" + std::to_string(getpid());
  const std::string cpu = (v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu") + name;
  const std::string memory = (v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory") + name;
  const auto write = [](const std::string& path, const std::string& text) {
    std::ofstream file(path);
    file << text << std::flush;
    return static_cast<bool>(file);
  };
  mkdir(cpu.c_str(), 0755);
  mkdir(memory.c_str(), 0755);
  const bool made =
      v2 ? write(cpu + "/cpu.max", "100000 100000") && write(memory + "/memory.max", "536870912")
         : write(cpu + "/cpu.cfs_quota_us", "100000") && write(memory + "/memory.limit_in_bytes", "536870912");
  if (made) {
    const std::string enter = "echo $$ > " + cpu + "/cgroup.procs && echo $$ > " + memory + "/cgroup.procs && ";
    const std::string self = fs::read_symlink("/proc/self/exe").string();
    const std::string run = enter + "SEINE_LIMITS_SAY=1 exec " + self + " --gtest_filter=LimitsHere.Say";
    EXPECT_EQ(std::system(run.c_str()), 0);
  } else {
    std::puts("this process may make no control group: the folders above are all that is tested");
  }
  rmdir(cpu.c_str());
  rmdir(memory.c_str());
}

TEST(LimitsHere, Say) {
  const MachineLimits& limits = LimitsOfThisProcess();
  EXPECT_GE(limits.processors, 1);
  EXPECT_EQ(DefaultThreads(), limits.processors);
  if (std::getenv("SEINE_LIMITS_SAY") == nullptr) return;
  EXPECT_EQ(limits.processors, 1) << limits.processors_why;
  EXPECT_EQ(limits.memory_bytes, 536870912) << limits.memory_why;
}

}  // namespace
}  // namespace seine
