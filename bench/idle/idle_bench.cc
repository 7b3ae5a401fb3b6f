#include "bench/idle/idle_bench.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/idle/made_traffic.h"
#include "bench/report/progress.h"
#include "index/idle/idle_tier.h"

namespace seine::bench {
namespace {

using Clock = std::chrono::steady_clock;

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

bool AreSame(const AttendAnswer& a, const AttendAnswer& b) {
  return a.num_tokens == b.num_tokens && a.path == b.path && SameBits(a.output, b.output) &&
         SameBits(a.log_sum_exp, b.log_sum_exp);
}

IdleBenchResult::Times TimesOf(std::vector<double> ms) {
  if (ms.empty()) return {};
  std::sort(ms.begin(), ms.end());
  const auto at = [&](double share) { return ms[static_cast<size_t>(share * static_cast<double>(ms.size() - 1))]; };
  return {static_cast<int64_t>(ms.size()), at(.5), at(.99), ms.back()};
}

// What one thread has seen.
struct Seen {
  std::vector<double> first_ms, ms;
  int64_t checked = 0, wrong = 0, refused = 0;
  absl::Status status;
};

class IdleBench {
 public:
  explicit IdleBench(const IdleBenchOptions& options)
      : o_(options), traffic_(options), folder_(absl::StrCat(o_.folder, "/seine-bench.idle")) {}
  ~IdleBench() {
    index_ = nullptr;
    tier_ = nullptr;
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  IdleBench(const IdleBench&) = delete;
  IdleBench& operator=(const IdleBench&) = delete;

  absl::StatusOr<IdleBenchResult> Run() {
    if (o_.sequences < 4 * o_.ratio * o_.threads) {
      return absl::InvalidArgumentError(absl::StrCat("--sequences ", o_.sequences, ": ", o_.threads,
                                                     " threads at ratio ", o_.ratio, " need ",
                                                     4 * o_.ratio * o_.threads, " at least"));
    }
    if (absl::Status s = Prepare(); !s.ok()) return s;
    const IdleReading before = tier_->Read();
    std::vector<Seen> seen(o_.threads);
    std::vector<std::thread> others;
    for (int t = 1; t < o_.threads; ++t) others.emplace_back([&, t] { Work(t, nullptr, &seen[t]); });
    Progress progress(o_.steps);
    Work(0, &progress, &seen[0]);
    for (std::thread& other : others) other.join();
    return Sum(seen, before);
  }

 private:
  // Makes every sequence twice: where all of them stay, and where memory holds a part of that.
  absl::Status Prepare() {
    const auto all = std::make_shared<MemoryBudget>(0);
    auto stays = Index::Create(traffic_.Config(), stays_backend_.get(), all);
    if (!stays.ok()) return stays.status();
    stays_ = *std::move(stays);
    if (absl::Status s = traffic_.Fill(stays_.get()); !s.ok()) return s;
    result_.bytes = all->used_bytes();
    result_.limit_bytes = static_cast<int64_t>(static_cast<double>(result_.bytes) / o_.ratio);
    auto tier = IdleTier::Open({.folder = folder_});
    if (!tier.ok()) return tier.status();
    tier_ = *std::move(tier);
    auto index = Index::Create(traffic_.Config(), backend_.get(), std::make_shared<MemoryBudget>(result_.limit_bytes),
                               nullptr, nullptr, tier_);
    if (!index.ok()) return index.status();
    index_ = *std::move(index);
    return traffic_.Fill(index_.get());
  }

  void Work(int thread, Progress* progress, Seen* seen) {
    std::mt19937 random(static_cast<uint32_t>(thread + 3));
    for (int64_t shown = 0, made = 0; (made = next_.fetch_add(1)) < o_.steps && seen->status.ok();) {
      MadeSequence* const sequence = traffic_.Next(&random);
      const std::lock_guard<std::mutex> lock(sequence->busy);
      Step(sequence, seen);
      if (progress != nullptr) progress->Step("steps", made - std::exchange(shown, made));
    }
  }

  // A step that is refused changes nothing that the next one does not find.
  void Step(MadeSequence* sequence, Seen* seen) const {
    const auto info = index_->GetSequence({sequence->id, 0});
    const Clock::time_point begin = Clock::now();
    const auto answers = traffic_.Step(index_.get(), *sequence);
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    if (absl::IsResourceExhausted(answers.status())) {
      ++seen->refused;
      return;
    }
    const auto expected = traffic_.Step(stays_.get(), *sequence);
    seen->status.Update(answers.status());
    seen->status.Update(expected.status());
    if (!seen->status.ok()) return;
    (info.ok() && info->on_disk ? seen->first_ms : seen->ms).push_back(ms);
    seen->checked += static_cast<int64_t>(expected->size());
    for (size_t i = 0; i < expected->size(); ++i) seen->wrong += AreSame((*answers)[i], (*expected)[i]) ? 0 : 1;
    ++sequence->tokens;
  }

  absl::StatusOr<IdleBenchResult> Sum(std::vector<Seen>& seen, const IdleReading& before) {
    std::vector<double> first_ms, ms;
    for (const Seen& one : seen) {
      if (!one.status.ok()) return one.status;
      first_ms.insert(first_ms.end(), one.first_ms.begin(), one.first_ms.end());
      ms.insert(ms.end(), one.ms.begin(), one.ms.end());
      result_.checked += one.checked;
      result_.wrong += one.wrong;
      result_.refused += one.refused;
    }
    const IdleReading after = tier_->Read();
    result_.steps = static_cast<int64_t>(first_ms.size() + ms.size());
    result_.first_step = TimesOf(std::move(first_ms));
    result_.step = TimesOf(std::move(ms));
    result_.disk_bytes = after.bytes;
    result_.restores = after.restores - before.restores;
    result_.spills = after.spills_memory + after.spills_idle - before.spills_memory - before.spills_idle;
    result_.failed = after.spills_failed + after.restores_failed - before.spills_failed - before.restores_failed;
    return result_;
  }

  const IdleBenchOptions o_;
  MadeTraffic traffic_;
  const std::string folder_;
  const std::unique_ptr<Backend> backend_ = MakeCpuBackend(1), stays_backend_ = MakeCpuBackend(1);
  std::shared_ptr<IdleTier> tier_;
  std::unique_ptr<Index> index_, stays_;
  std::atomic<int64_t> next_{0};
  IdleBenchResult result_;
};

}  // namespace

absl::StatusOr<IdleBenchResult> MeasureIdle(const IdleBenchOptions& options) { return IdleBench(options).Run(); }

}  // namespace seine::bench
