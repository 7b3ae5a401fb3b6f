#include "index/idle/idle_tier.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "index/bytes/files.h"
#include "index/counts/sequence_use.h"
#include "kernels/stop.h"
#include "kernels/thread_name.h"

namespace seine {

namespace {

constexpr char kSuffix[] = ".idle";
constexpr size_t kAtOnce = 16;  // families, between two moments when others may ask for room

absl::Status Unusable(const std::string& folder, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat(folder, ": ", why));
}

// Nobody will ask for what an earlier process has left: its sequences went with it.
void RemoveLeft(const std::string& folder) {
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string path = entry->path().string();
    if (absl::EndsWith(path, kSuffix) || absl::EndsWith(path, kPartialSuffix)) unlink(path.c_str());
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<IdleTier>> IdleTier::Open(const IdleOptions& options, IdleHooks hooks, FileOps* files) {
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  const std::string folder = absl::StrCat(options.folder, "/idle");
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return Unusable(folder, strerror(errno));
  const int lock = open(absl::StrCat(folder, "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock < 0) return Unusable(folder, strerror(errno));
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    close(lock);
    return Unusable(folder, "another process keeps its idle sequences there");
  }
  RemoveLeft(folder);
  std::shared_ptr<IdleTier> tier(
      new IdleTier(options, folder, lock, std::move(hooks), files != nullptr ? files : &SystemFiles()));
  tier->thread_ = std::thread([t = tier.get()] { t->Work(); });
  return tier;
}

IdleTier::IdleTier(const IdleOptions& options, std::string folder, int lock, IdleHooks hooks, FileOps* files)
    : options_(options), folder_(std::move(folder)), lock_(lock), files_(*files), hooks_(std::move(hooks)) {}

IdleTier::~IdleTier() {
  Stop();
  close(lock_);
}

void IdleTier::Stop() {
  {
    const std::lock_guard<FairMutex> lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard<std::mutex> lock(hooks_mutex_);
  hooks_.failed = nullptr;
}

bool IdleTier::Hold(const FamilyNames& family, std::shared_ptr<void>* held) const {
  if (!hooks_.hold) return true;
  *held = hooks_.hold(family);
  return *held != nullptr;
}

void IdleTier::Join(SpillingIndex* index) {
  const std::lock_guard<FairMutex> lock(mutex_);
  indexes_.push_back(index);
}

void IdleTier::Leave(SpillingIndex* index) {
  const std::lock_guard<FairMutex> lock(mutex_);
  std::erase(indexes_, index);
}

std::vector<IdleTier::Found> IdleTier::OldestFirst(const MemoryBudget* budget) const {
  std::vector<Found> found;
  for (SpillingIndex* index : indexes_) {
    if (budget != nullptr && !index->CountsIn(*budget)) continue;
    for (const SpillingIndex::Family& family : index->IdleFamilies()) found.push_back({index, family});
  }
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.family.last_used_ns < b.family.last_used_ns; });
  return found;
}

// A spill is finished once it is begun, whoever waits for it: no token ends it, and it makes way for nothing.
bool IdleTier::SpillOne(const Found& found, std::atomic<int64_t>* count) {
  const StopScope scope(nullptr);
  const absl::StatusOr<bool> spilled = found.index->Spill(found.family.number);
  if (spilled.ok()) {
    if (*spilled) count->fetch_add(1, std::memory_order_relaxed);
    return *spilled;
  }
  spills_failed_.fetch_add(1, std::memory_order_relaxed);
  paused_until_ = std::chrono::steady_clock::now() + options_.pause;
  Fail(spilled.status());
  return false;
}

bool IdleTier::SpillFirst(const MemoryBudget& budget) try {
  if (ends_) return false;
  for (const Found& found : OldestFirst(&budget)) {
    if (std::chrono::steady_clock::now() < paused_until_) return false;
    if (SpillOne(found, &spills_memory_)) return true;
  }
  return false;
} catch (const std::bad_alloc&) {
  return false;
}

bool IdleTier::SpillOldest(const MemoryBudget& budget) {
  const std::lock_guard<FairMutex> lock(mutex_);
  return SpillFirst(budget);
}

// Others may make room while this waits for the mutex, or take families into use that it would have found idle.
bool IdleTier::MakeRoom(const MemoryBudget& full, int64_t bytes) {
  if (!mutex_.LockUnlessStopped()) return false;
  const std::lock_guard<FairMutex> lock(mutex_, std::adopt_lock);
  return full.HasRoom(bytes) || SpillFirst(full) || full.HasRoom(bytes);
}

void IdleTier::MakeRoomSoon(const MemoryBudget& full) {
  asked_ = &full;
  wake_.notify_all();
}

void IdleTier::SpillIdle() {
  if (options_.spill_after.count() == 0) return;
  for (bool more = true; more;) {
    more = false;
    const std::lock_guard<FairMutex> lock(mutex_);
    const int64_t before = SequenceUse::PreciseNow() - options_.spill_after.count();
    size_t spilled = 0;
    for (const Found& found : OldestFirst(nullptr)) {
      if (found.family.last_used_ns > before || std::chrono::steady_clock::now() < paused_until_) break;
      if (SpillOne(found, &spills_idle_)) ++spilled;
      more = spilled == kAtOnce && !ends_;
      if (spilled == kAtOnce) break;
    }
  }
}

bool IdleTier::SleepUnlessEnded(std::chrono::nanoseconds longest) {
  std::unique_lock<FairMutex> lock(mutex_);
  wake_.wait_for(lock, longest, [this] { return ends_ || asked_ != nullptr; });
  return !ends_;
}

// Where nothing can go, it is not tried again at once: looking for it costs time.
void IdleTier::MakeRoomAsked() {
  const MemoryBudget* const full = asked_.exchange(nullptr);
  if (full == nullptr || SpillOldest(*full)) return;
  std::unique_lock<FairMutex> lock(mutex_);
  wake_.wait_for(lock, options_.pause, [this] { return ends_.load(); });
}

void IdleTier::Work() {
  NameThread("seine-idle");
  using std::chrono::milliseconds;
  const bool by_time = options_.spill_after.count() > 0;
  const std::chrono::nanoseconds period =
      by_time ? std::clamp<std::chrono::nanoseconds>(options_.spill_after / 8, milliseconds(10), milliseconds(1000))
              : std::chrono::hours(1);
  while (SleepUnlessEnded(period)) {
    try {
      MakeRoomAsked();
      SpillIdle();
    } catch (const std::bad_alloc&) {  // the next time, then
    }
  }
}

absl::StatusOr<std::string> IdleTier::Write(int64_t bytes, const std::function<absl::Status(ByteSink*)>& write) {
  const int64_t held = bytes_.load();
  if (options_.limit_bytes > 0 && bytes > options_.limit_bytes - held) {
    return absl::ResourceExhaustedError(absl::StrCat("the disk limit (idle.limit) is reached: ", bytes,
                                                     " bytes more than the ", held, " there would pass ",
                                                     options_.limit_bytes));
  }
  std::string path = absl::StrCat(folder_, "/", ++last_file_, kSuffix);
  if (absl::Status s = WriteFile(path, write, &files_); !s.ok()) {
    files_.Remove(path);  // it has its name already where the folder could not be written through
    return s;
  }
  families_.fetch_add(1);
  bytes_.fetch_add(bytes);
  return path;
}

void IdleTier::Remove(const std::string& path, int64_t bytes) {
  files_.Remove(path);
  families_.fetch_sub(1);
  bytes_.fetch_sub(bytes);
}

void IdleTier::Restored(const absl::Status& status, std::chrono::nanoseconds time) {
  if (status.ok()) {
    restores_.fetch_add(1, std::memory_order_relaxed);
    restore_times_.Add(time.count());
    return;
  }
  restores_failed_.fetch_add(1, std::memory_order_relaxed);
  Fail(status);
}

void IdleTier::Fail(const absl::Status& why) {
  const std::lock_guard<std::mutex> lock(hooks_mutex_);
  if (hooks_.failed) hooks_.failed(why);
}

IdleReading IdleTier::Read() const {
  IdleReading out;
  out.families = families_.load();
  out.bytes = bytes_.load();
  out.spills_idle = spills_idle_.load();
  out.spills_memory = spills_memory_.load();
  out.restores = restores_.load();
  out.spills_failed = spills_failed_.load();
  out.restores_failed = restores_failed_.load();
  out.restore_times = restore_times_.Read();
  return out;
}

}  // namespace seine
