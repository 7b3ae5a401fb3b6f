#include "bench/measures/snapshot.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/report/progress.h"
#include "index/index.h"
#include "index/snapshot/snapshot_file.h"

namespace seine::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kStepBytes = int64_t{4} << 20, kBlockTokens = 4096;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double MedianOf(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

absl::Status FileError(const std::string& path) {
  return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
}

// Rows in fp16 between -2 and 2; every block of tokens is the same, which no code knows.
std::string RandomRows(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::string rows(count * 2, '\0');
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = random();
    const auto half = static_cast<uint16_t>((bits & 0x8000) | (12 + (bits >> 16) % 4) << 10 | (bits & 0x3ff));
    std::memcpy(&rows[i * 2], &half, 2);
  }
  return rows;
}

class SnapshotBench {
 public:
  explicit SnapshotBench(const SnapshotBenchOptions& options)
      : o_(options),
        backend_(MakeCpuBackend(options.threads)),
        path_(absl::StrCat(o_.folder, "/seine-bench.snapshot")) {}
  ~SnapshotBench() {
    unlink(path_.c_str());
    unlink(PlainPath().c_str());
  }
  SnapshotBench(const SnapshotBench&) = delete;
  SnapshotBench& operator=(const SnapshotBench&) = delete;

  absl::StatusOr<SnapshotBenchResult> Run() {
    if (absl::Status s = Fill(); !s.ok()) return s;
    std::vector<double> speeds[4];
    Progress progress(o_.repeat);
    for (int round = 0; round < o_.repeat; ++round) {
      if (absl::Status s = Round(round, speeds); !s.ok()) return s;
      progress.Step("writing and reading");
    }
    result_.write = MedianOf(speeds[0]);
    result_.read = MedianOf(speeds[1]);
    result_.plain_read = MedianOf(speeds[2]);
    result_.plain_write = MedianOf(speeds[3]);
    if (absl::Status s = MeasureSteps(); !s.ok()) return s;
    if (absl::Status s = MeasureFamily(); !s.ok()) return s;
    return result_;
  }

 private:
  std::string PlainPath() const { return path_ + ".plain"; }
  int64_t token_bytes() const { return int64_t{o_.kv_heads} * o_.head_dim * 2; }

  IndexConfig Config() const {
    IndexConfig config;
    config.name = "bench";
    config.geometry = {.num_layers = o_.layers,
                       .num_q_heads = o_.kv_heads * o_.group,
                       .num_kv_heads = o_.kv_heads,
                       .head_dim = o_.head_dim};
    config.kv_store = KvStore::kKeysValues;
    return config;
  }

  absl::Status Fill() {
    auto index = Index::Create(Config(), backend_.get());
    if (!index.ok()) return index.status();
    index_ = *std::move(index);
    if (auto made = index_->CreateSequence("a"); !made.ok()) return made.status();
    rows_ = RandomRows(kBlockTokens * o_.kv_heads * o_.head_dim, 1);
    constexpr double kGiB = 1 << 30;
    // Rows of keys and values, and about an eighth more for codes and means.
    const double tokens = o_.gib * kGiB / (static_cast<double>(o_.layers) * 2.25 * static_cast<double>(token_bytes()));
    result_.tokens = std::max<int64_t>(2, static_cast<int64_t>(tokens) / kBlockTokens) * kBlockTokens - 1000;
    Progress progress(result_.tokens);
    for (int64_t at = 0; at < result_.tokens; at += kBlockTokens) {
      const int64_t count = std::min(kBlockTokens, result_.tokens - at);
      for (int layer = 0; layer < o_.layers; ++layer) {
        if (absl::Status s = Append(layer, at, count); !s.ok()) return s;
      }
      progress.Step("appending", count);
    }
    return absl::OkStatus();
  }
  absl::Status Append(int layer, int64_t at, int64_t count) const {
    const TensorView rows{rows_.data(), count, static_cast<size_t>(count * token_bytes())};
    return index_->Append({"a", 0}, layer, at, rows, rows).status();
  }

  // Each read is of the file that was written right before: what lies below the page cache, a host's cache or a disk's,
  // then holds as much of it for both. They change places from round to round.
  absl::Status Round(int round, std::vector<double>* speeds) {
    using Part = absl::Status (SnapshotBench::*)(double*);
    constexpr Part kParts[] = {&SnapshotBench::Write, &SnapshotBench::Read, &SnapshotBench::PlainRead,
                               &SnapshotBench::PlainWrite};
    constexpr int kOrders[2][5] = {{0, 1, 0, 2, 3}, {0, 2, 0, 1, 3}};
    for (const int part : kOrders[round % 2]) {
      double seconds = 0;
      if (absl::Status s = (this->*kParts[part])(&seconds); !s.ok()) return s;
      speeds[part].push_back(static_cast<double>(result_.bytes) / seconds);
    }
    return absl::OkStatus();
  }

  absl::Status Write(double* seconds) {
    const Clock::time_point begin = Clock::now();
    const auto info = SnapshotToFile(*index_, {"a", 0}, SnapshotScope::kSequence, path_);
    *seconds = SecondsSince(begin);
    if (info.ok()) result_.bytes = info->bytes;
    return info.status();
  }

  absl::Status PlainWrite(double* seconds) {
    const std::string buffer = RandomRows(kStepBytes / 2, 2);
    const Clock::time_point begin = Clock::now();
    const int fd = open(PlainPath().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return FileError(PlainPath());
    bool right = true;
    for (int64_t left = result_.bytes; left > 0 && right; left -= kStepBytes) {
      const auto bytes = static_cast<size_t>(std::min(left, kStepBytes));
      right = write(fd, buffer.data(), bytes) == static_cast<ssize_t>(bytes);
    }
    right = right && fsync(fd) == 0;
    *seconds = SecondsSince(begin);
    close(fd);
    return right ? absl::OkStatus() : FileError(PlainPath());
  }

  // Brings the file into the page cache, or takes it out.
  absl::Status SetCached() const {
    double seconds = 0;
    if (o_.cached) return ReadPlainly(&seconds);
    const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return FileError(path_);
    const int error = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return error == 0 ? absl::OkStatus() : absl::UnavailableError(std::strerror(error));
  }

  // In place of the sequence that was written, so that memory holds one of them.
  absl::Status Read(double* seconds) {
    if (absl::Status s = SetCached(); !s.ok()) return s;
    if (absl::Status s = index_->DeleteSequence({"a", 0}); !s.ok()) return s;
    const Clock::time_point begin = Clock::now();
    const auto info = RestoreFromFile(index_.get(), {}, path_);
    *seconds = SecondsSince(begin);
    return info.status();
  }

  absl::Status PlainRead(double* seconds) {
    if (absl::Status s = SetCached(); !s.ok()) return s;
    return ReadPlainly(seconds);
  }

  absl::Status ReadPlainly(double* seconds) const {
    const Clock::time_point begin = Clock::now();
    const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return FileError(path_);
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    std::vector<std::unique_ptr<uint8_t[]>> held;
    bool right = true;
    for (int64_t left = result_.bytes; left > 0 && right; left -= kStepBytes) {
      held.push_back(std::make_unique_for_overwrite<uint8_t[]>(kStepBytes));
      const auto bytes = static_cast<size_t>(std::min(left, kStepBytes));
      right = read(fd, held.back().get(), bytes) == static_cast<ssize_t>(bytes);
    }
    *seconds = SecondsSince(begin);
    close(fd);
    return right ? absl::OkStatus() : FileError(path_);
  }

  // Adds the times of steps, in microseconds, until `done` says so.
  absl::Status Steps(const std::function<bool()>& done, std::vector<double>* times) {
    std::vector<float> queries(static_cast<size_t>(o_.kv_heads) * o_.group * o_.head_dim, .25f);
    while (!done()) {
      const auto layer = static_cast<int>(times->size() % o_.layers);
      queries[times->size() % queries.size()] += .125f;
      const int64_t at = index_->GetSequence({"a", 0})->layer_tokens[layer];
      const Clock::time_point begin = Clock::now();
      if (absl::Status s = Append(layer, at, 1); !s.ok()) return s;
      const auto answers = index_->Attend({{{"a", 0}, layer, queries.data()}}, index_->config().search, {});
      times->push_back(SecondsSince(begin) * 1e6);
      if (!answers.ok()) return answers.status();
    }
    return absl::OkStatus();
  }

  static SnapshotBenchResult::Steps Summary(std::vector<double> times) {
    std::sort(times.begin(), times.end());
    const auto at = [&](double share) {
      return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
    };
    return {static_cast<int64_t>(times.size()), at(.5), at(.99), times.back()};
  }

  // Steps while another thread does `work`, whose seconds are added.
  absl::Status StepsBeside(const std::function<absl::Status(double*)>& work, std::vector<double>* times,
                           std::vector<double>* speeds) {
    std::atomic<bool> done{false};
    absl::Status worked;
    std::thread worker([&] {
      double seconds = 0;
      worked = work(&seconds);
      speeds->push_back(static_cast<double>(result_.bytes) / seconds);
      done = true;
    });
    absl::Status stepped = Steps([&] { return done.load(); }, times);
    worker.join();
    return worked.ok() ? stepped : worked;
  }

  // Another sequence is restored than the one that steps.
  absl::Status ReadBeside(double* seconds) {
    if (absl::Status s = SetCached(); !s.ok()) return s;
    const Clock::time_point begin = Clock::now();
    const auto info = RestoreFromFile(index_.get(), {.id = "b"}, path_);
    *seconds = SecondsSince(begin);
    return info.status();
  }

  absl::Status StepsAlone(std::vector<double>* times) {
    const std::chrono::duration<double> seconds(std::clamp(2 * o_.gib, 2.0, 10.0));
    return Steps([&, begin = Clock::now()] { return Clock::now() - begin >= seconds; }, times);
  }

  // In turns, so that what else the machine does falls on all three; alone before and after the others, for the steps
  // make their sequence longer.
  absl::Status MeasureSteps() {
    std::vector<double> times[3], speeds[2];
    Progress progress(o_.repeat * 4);
    for (int round = 0; round < o_.repeat; ++round) {
      if (absl::Status s = StepsAlone(&times[0]); !s.ok()) return s;
      progress.Step("stepping");
      const auto write = [this](double* seconds) { return Write(seconds); };
      if (absl::Status s = StepsBeside(write, &times[1], &speeds[0]); !s.ok()) return s;
      progress.Step("stepping");
      const auto read = [this](double* seconds) { return ReadBeside(seconds); };
      if (absl::Status s = StepsBeside(read, &times[2], &speeds[1]); !s.ok()) return s;
      progress.Step("stepping");
      if (absl::Status s = StepsAlone(&times[0]); !s.ok()) return s;
      progress.Step("stepping");
      if (absl::Status s = index_->DeleteSequence({"b", 0}); !s.ok()) return s;
    }
    result_.quiet = Summary(std::move(times[0]));
    result_.beside_write = Summary(std::move(times[1]));
    result_.beside_read = Summary(std::move(times[2]));
    result_.busy_write = MedianOf(std::move(speeds[0]));
    result_.busy_read = MedianOf(std::move(speeds[1]));
    return absl::OkStatus();
  }

  absl::Status MeasureFamily() {
    double seconds = 0;
    if (absl::Status s = Write(&seconds); !s.ok()) return s;
    result_.alone_bytes = result_.bytes;
    for (int i = 0; i < o_.forks; ++i) {
      if (auto fork = index_->Fork({"a", 0}, "", -1); !fork.ok()) return fork.status();
    }
    const auto info = SnapshotToFile(*index_, {"a", 0}, SnapshotScope::kFamily, path_);
    if (info.ok()) result_.family_bytes = info->bytes;
    return info.status();
  }

  const SnapshotBenchOptions o_;
  const std::unique_ptr<Backend> backend_;
  const std::string path_;
  std::unique_ptr<Index> index_;
  std::string rows_;
  SnapshotBenchResult result_;
};

}  // namespace

absl::StatusOr<SnapshotBenchResult> MeasureSnapshot(const SnapshotBenchOptions& options) {
  return SnapshotBench(options).Run();
}

}  // namespace seine::bench
