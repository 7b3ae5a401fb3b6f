// seine-device-suite: checks of a device against the CPU, and timings of its kernels, a part after another. Each part
// is a process of its own with a time limit of its own, so that one that fails, hangs or loses the device stops
// nothing; its JSON is written when it ends. Exit code 0 if every part passed, 1 if one failed, 2 for wrong flags, 3
// where there is no device.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "kernels/cpu/targets.h"
#include "tests/device/child.h"
#include "tests/device/suite.h"

namespace seine::device {
namespace {

constexpr char kUsage[] =
    "usage: seine-device-suite [-o FOLDER] [--list] [--only PART,...] [--small] [--items N] [--seed N] [--limit "
    "SECONDS]\n"
    "    [--dim D] [--keys N] [--group G] [--batch B] [--bits half|one|rsq] [--reduce sum|max|mean] [--commit ID]\n"
    "    [--in-process]\n"
    "PART: a name of --list, or how names begin; checks, timings: all of them. -o: a JSON a part, and summary.json.\n"
    "--limit: of each part, in place of its own. --in-process: parts in this process, for a sanitizer or a profiler.\n";

struct Flags {
  SuiteOptions options;
  std::string folder, commit;
  std::vector<std::string> only;
  double limit_s = 0;  // 0: the part's own
  bool list = false, in_process = false;
};

bool Number(const char* text, long long least, long long most, long long* out) {
  char* end = nullptr;
  errno = 0;
  *out = std::strtoll(text, &end, 10);
  return errno == 0 && end != text && *end == 0 && *out >= least && *out <= most;
}

// One flag with its value; false where it is none, or its value is no such thing.
bool ReadValue(const std::string& flag, const char* value, Flags* f) {
  const std::string text = value;
  long long n = 0;
  const auto number = [&](long long least, long long most, int* out) {
    if (!Number(value, least, most, &n)) return false;
    *out = static_cast<int>(n);
    return true;
  };
  if (flag == "-o") return f->folder = text, !text.empty();
  if (flag == "--commit") return f->commit = text, true;
  if (flag == "--items") return number(0, 100000000, &f->options.items);
  if (flag == "--dim") return number(64, kMaxHeadDim, &f->options.dim);
  if (flag == "--keys") return number(64, 1 << 24, &f->options.keys) && f->options.keys % 64 == 0;
  if (flag == "--group") return number(1, 32, &f->options.group);
  if (flag == "--batch") return number(1, 64, &f->options.batch);
  if (flag == "--seed") {
    if (!Number(value, 0, INT64_MAX, &n)) return false;
    return f->options.seed = static_cast<uint64_t>(n), true;
  }
  if (flag == "--limit") return Number(value, 1, 86400, &n) && (f->limit_s = static_cast<double>(n), true);
  if (flag == "--only") {
    std::istringstream parts(text);
    for (std::string part; std::getline(parts, part, ',');) f->only.push_back(part);
    return !f->only.empty();
  }
  if (flag == "--bits") {
    if (text == "half") return f->options.bits = Bits::kHalf, true;
    if (text == "one") return f->options.bits = Bits::kOne, true;
    if (text == "rsq") return f->options.bits = Bits::kRsq, true;
    return false;
  }
  if (flag == "--reduce") {
    if (text == "sum") return f->options.reduce = GqaReduce::kSoftmaxSum, true;
    if (text == "max") return f->options.reduce = GqaReduce::kMax, true;
    if (text == "mean") return f->options.reduce = GqaReduce::kMean, true;
  }
  return false;
}

bool ReadFlags(int argc, char** argv, Flags* f) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--small") {
      f->options.small = true;
      f->options.items = 40;
    } else if (flag == "--list") {
      f->list = true;
    } else if (flag == "--in-process") {
      f->in_process = true;
    } else if (i + 1 < argc && ReadValue(flag, argv[i + 1], f)) {
      ++i;
    } else {
      std::fprintf(stderr, "seine-device-suite: %s%s%s\n%s", flag.c_str(), i + 1 < argc ? " " : "",
                   i + 1 < argc ? argv[i + 1] : "", kUsage);
      return false;
    }
  }
  return true;
}

std::vector<Part> AllParts(const SuiteOptions& options) {
  std::vector<Part> parts = SearchChecks(options);
  for (auto list : {LayerChecks(options), AttendChecks(options), Timings(options)})
    parts.insert(parts.end(), list.begin(), list.end());
  return parts;
}

bool Named(const Part& part, const std::string& name) {
  return part.name.compare(0, name.size(), name) == 0 || name == (part.timing ? "timings" : "checks");
}

// The parts that --only names, all without it; empty, and said, where it names none.
std::vector<Part> ChosenParts(const Flags& f) {
  std::vector<Part> chosen, all = AllParts(f.options);
  for (const std::string& name : f.only) {
    bool any = false;
    for (const Part& part : all) any = any || Named(part, name);
    if (!any) return std::fprintf(stderr, "seine-device-suite: no part is named %s; --list\n", name.c_str()), chosen;
  }
  for (const Part& part : all) {
    bool named = f.only.empty();
    for (const std::string& name : f.only) named = named || Named(part, name);
    if (named) chosen.push_back(part);
  }
  return chosen;
}

// Results of the folder, earlier ones too, so that figures are marked by checks of an earlier command.
class Summary {
 public:
  explicit Summary(const Flags& f) : path_(f.folder + "/summary.json") {
    if (!f.folder.empty()) json_ = ReadJson(path_);
    if (!json_.is_object() || json_.value("commit", "") != f.commit)
      json_ = {{"commit", f.commit}, {"parts", Json::object()}};
    on_disk_ = !f.folder.empty();
  }
  // How the checks stand that figures rest on.
  std::string Checks() const {
    std::string failed;
    int passed = 0;
    for (const auto& [name, part] : json_["parts"].items()) {
      if (part.value("timing", false)) continue;
      passed += part.value("passed", false);
      if (!part.value("passed", false)) failed += (failed.empty() ? "" : ", ") + name;
    }
    if (!failed.empty()) return "FAILED: " + failed;
    return passed == 0 ? "not run" : "passed: " + std::to_string(passed);
  }
  void Add(const Part& part, const Json& json) {
    Json line = {
        {"passed", json.value("passed", false)}, {"timing", part.timing}, {"seconds", json.value("seconds", 0.0)}};
    for (const char* field : {"error", "first_difference"}) {
      if (json.contains(field)) line[field] = json[field];
    }
    json_["parts"][part.name] = line;
    if (on_disk_) WriteJson(path_, json_);
  }

 private:
  std::string path_;
  Json json_;
  bool on_disk_ = false;
};

Json InProcess(const Part& part, const Flags& f, double limit_s) {
  std::string why;
  const auto cpu = MakeCpuBackend(0), gpu = OpenBackend(&why);
  if (gpu == nullptr) return {{"part", part.name}, {"passed", false}, {"error", why}};
  Json json = RunPart(part, f.options, limit_s, cpu.get(), gpu.get());
  json["commit"] = f.commit;
  json["machine"] = DescribeMachine();
  json["machine"]["simd_target"] = cpu::TargetName();
  return json;
}

int Run(const Flags& f) {
  const std::vector<Part> parts = ChosenParts(f);
  if (parts.empty()) return 2;
  if (f.list) {
    for (const Part& part : parts) {
      std::printf("%-24s %4.0f s  %s\n", part.name.c_str(), part.limit_s, part.what.c_str());
    }
    return 0;
  }
  const std::string folder = f.folder.empty() ? std::filesystem::temp_directory_path().string() : f.folder;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return std::fprintf(stderr, "seine-device-suite: %s: %s\n", folder.c_str(), error.message().c_str()), 2;
  Summary summary(f);
  bool passed = true;
  for (const Part& part : parts) {
    const std::string path = f.folder.empty() ? folder + "/seine-device-suite." + std::to_string(getpid()) + ".json"
                                              : folder + "/" + part.name + ".json";
    const double limit = f.limit_s > 0 ? f.limit_s : part.limit_s;
    const auto run = [&] { return InProcess(part, f, limit); };
    Json json = f.in_process ? run() : RunInChild(part, limit, limit / 2 + 10, path, run);
    if (part.timing) json["checks"] = summary.Checks();
    if (!f.folder.empty()) WriteJson(path, json);
    if (f.folder.empty()) std::filesystem::remove(path, error), std::printf("%s\n", json.dump(1).c_str());
    summary.Add(part, json);
    passed = passed && json.value("passed", false);
    if (json.value("error", "").find("no CUDA") == 0)
      return std::fprintf(stderr, "%s\n", json["error"].get<std::string>().c_str()), 3;
  }
  return passed ? 0 : 1;
}

}  // namespace
}  // namespace seine::device

int main(int argc, char** argv) {
  seine::device::Flags flags;
  return seine::device::ReadFlags(argc, argv, &flags) ? seine::device::Run(flags) : 2;
}
