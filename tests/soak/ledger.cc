#include "tests/soak/ledger.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace seine::soak {
namespace {

absl::Status Failed(const std::string& path) {
  return absl::UnavailableError(absl::StrCat(path, ": ", strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Ledger>> Ledger::Open(const std::string& path) {
  std::error_code ignored;
  const auto folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return Failed(path);
  std::unique_ptr<Ledger> ledger(new Ledger(path, fd));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return absl::UnavailableError(absl::StrCat(path, ": another soak writes to it"));
  }
  if (auto status = ledger->Read(); !status.ok()) return status;
  return ledger;
}

Ledger::~Ledger() { close(fd_); }

absl::Status Ledger::Read() {
  std::string text;
  char bytes[65536];
  for (ssize_t count; (count = read(fd_, bytes, sizeof(bytes))) != 0;) {
    if (count < 0) return Failed(path_);
    text.append(bytes, static_cast<size_t>(count));
  }
  const size_t end = text.rfind('\n') + 1;  // npos + 1 is 0
  if (end < text.size() && ftruncate(fd_, static_cast<off_t>(end)) != 0) return Failed(path_);
  text.resize(end);
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (line.empty()) continue;
    Result run;
    if (!FromJson(nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false), &run)) {
      return absl::DataLossError(absl::StrCat(path_, ":", number, ": no line of a soak's ledger"));
    }
    runs_.push_back(std::move(run));
  }
  return absl::OkStatus();
}

absl::Status Ledger::Add(const Result& result) {
  const std::string line = ToJson(result).dump() + "\n";
  if (write(fd_, line.data(), line.size()) != static_cast<ssize_t>(line.size()) || fsync(fd_) != 0) {
    return Failed(path_);
  }
  runs_.push_back(result);
  return absl::OkStatus();
}

std::vector<Result> Ledger::Of(const std::string& commit, const std::string& transport) const {
  std::vector<Result> runs;
  std::copy_if(runs_.begin(), runs_.end(), std::back_inserter(runs),
               [&](const Result& run) { return run.commit == commit && run.transport == transport; });
  return runs;
}

Next NextOf(const std::vector<std::string>& members, const std::vector<Result>& runs, uint32_t first_seed) {
  std::map<std::string, std::pair<int64_t, uint32_t>> had;  // runs, and the seed to come
  for (const Result& run : runs) {
    auto& [count, seed] = had[run.member];
    ++count;
    seed = std::max(seed, run.seed + 1);
  }
  const auto least = std::min_element(members.begin(), members.end(),
                                      [&](const auto& a, const auto& b) { return had[a].first < had[b].first; });
  return {*least, std::max(first_seed, had[*least].second)};
}

double SecondsOf(const std::vector<Result>& runs) {
  double seconds = 0;
  for (const Result& run : runs) seconds += run.seconds;
  return seconds;
}

}  // namespace seine::soak
