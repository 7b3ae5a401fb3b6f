#include "index/quality/monitor.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>
#include <utility>

#include "index/context.h"
#include "kernels/thread_name.h"

namespace seine {

namespace {

constexpr int64_t kRunNs = 2'000'000;  // the thread's time between two rests

// The next number of the calling thread (SplitMix64), in [0, 1).
double NextShare() {
  static thread_local uint64_t state = reinterpret_cast<uintptr_t>(&state);
  state += 0x9e3779b97f4a7c15u;
  uint64_t x = state;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

int64_t ThreadNs() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

void Dropped(const Context& context, QualityDrop cause) {
  if (context.counts != nullptr) context.counts->QualityDropped(cause);
}

void Count(const std::vector<HeadQuality>& heads, IndexCounts* counts) {
  counts->QualitySampled();
  for (const HeadQuality& head : heads) {
    for (const SetQuality& set : head.sets) {
      counts->QualityRecall(set.recall);
      counts->QualityMass(set.attention_mass);
      if (set.predicted_recall) counts->QualityPredicted(*set.predicted_recall);
    }
  }
}

}  // namespace

QualityMonitor::QualityMonitor(const QualityOptions& options, SteppedBack stepped_back)
    : options_(options), stepped_back_(std::move(stepped_back)) {}

QualityMonitor::~QualityMonitor() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
    if (working_ != nullptr) stop_->Stop(StopReason::kShutdown);
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool QualityMonitor::Chosen() const { return NextShare() < options_.sample; }

bool QualityMonitor::WantedByGate(const SearchBatch& batch, size_t target, const AttentionParams& attention) const {
  if (batch.ModeOf(target) != SearchMode::kIndex) return false;
  const SearchBatch::Target& of = batch.targets()[target];
  LayerGate* const gate = batch.context().GateOf(*of.item, batch.params(), attention, of.layer().length());
  return gate != nullptr && num_waiting_.load(std::memory_order_relaxed) < kMostWaiting / 2 &&
         gate->Due(of.layer().length());
}

void QualityMonitor::Sample(const SearchBatch& batch, const AttentionParams* attention) noexcept {
  if (batch.context().config.kv_store == KvStore::kNone || batch.params().method == Method::kExact) return;
  for (size_t t = 0; t < batch.targets().size(); ++t) {
    const RetrieveItem& item = *batch.targets()[t].item;
    if (batch.ModeOf(t) == SearchMode::kDense || item.positions != nullptr || item.device != nullptr) continue;
    const bool of_gate = attention != nullptr && WantedByGate(batch, t, *attention);
    const bool by_chance = Chosen();
    if (!of_gate && !by_chance) continue;
    try {
      std::optional<int> only_head;
      if (!by_chance) {
        const int64_t turn = batch.context().gates[batch.targets()[t].item->layer].checks_due() - 1;
        only_head = static_cast<int>(turn % batch.context().config.geometry.num_kv_heads);
      }
      QualitySample sample = SampleOf(batch, t, only_head);
      sample.by_chance = by_chance;
      sample.of_gate = of_gate;
      if (attention != nullptr) sample.softcap = attention->softcap;
      Add(std::move(sample));
    } catch (const std::bad_alloc&) {
      Dropped(batch.context(), QualityDrop::kMemory);
    } catch (const std::system_error&) {  // no thread could be started
      Dropped(batch.context(), QualityDrop::kMemory);
    }
  }
}

void QualityMonitor::Add(QualitySample sample) {
  const Context& context = *sample.context;
  const bool by_chance = sample.by_chance;
  const int64_t bytes = sample.bytes();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (waiting_.size() < kMostWaiting && bytes_ + bytes <= kMostBytes) {
      if (!thread_.joinable()) thread_ = std::thread([this] { Work(); });
      waiting_.push_back(std::move(sample));
      num_waiting_ = waiting_.size();
      bytes_ += bytes;
      wake_.notify_all();
      return;
    }
  }
  if (by_chance) Dropped(context, QualityDrop::kBudget);
}

void QualityMonitor::Leave(const Context* context) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto of_context = [context](const QualitySample& sample) { return sample.context == context; };
  for (const QualitySample& sample : waiting_) {
    if (!of_context(sample)) continue;
    bytes_ -= sample.bytes();
    if (sample.by_chance) Dropped(*context, QualityDrop::kGone);
  }
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), of_context), waiting_.end());
  num_waiting_ = waiting_.size();
  if (working_ == context) stop_->Stop();
  wake_.notify_all();
  idle_.wait(lock, [this, context] { return working_ != context; });
}

void QualityMonitor::WaitUntilIdle() const {
  std::unique_lock<std::mutex> lock(mutex_);
  idle_.wait(lock, [this] { return waiting_.empty() && working_ == nullptr; });
}

void QualityMonitor::Hold(bool held) {
  const std::lock_guard<std::mutex> lock(mutex_);
  held_ = held;
  wake_.notify_all();
}

void QualityMonitor::Work() {
  NameThread("seine-quality");
  const sched_param none = {};
  sched_setscheduler(0, SCHED_BATCH, &none);  // of this thread; where it is refused, an ordinary thread does
  for (;;) {
    QualitySample sample;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      working_ = nullptr;
      idle_.notify_all();
      wake_.wait(lock, [this] { return ends_ || (!held_ && !waiting_.empty()); });
      if (ends_) return;
      sample = std::move(waiting_.front());
      waiting_.pop_front();
      num_waiting_ = waiting_.size();
      bytes_ -= sample.bytes();
      working_ = sample.context;
      stop_.emplace();
    }
    CompareOne(sample);
  }
}

void QualityMonitor::CompareOne(const QualitySample& sample) {
  const StopScope scope(&*stop_);
  const Context& context = *sample.context;
  std::vector<HeadQuality> heads;
  const auto rest = [this] { Rest(); };
  const Compared compared = Compare(sample, rest, &heads);
  const int64_t now = ThreadNs();
  if (context.counts != nullptr) context.counts->QualityBusy(now - std::exchange(told_ns_, now));
  if (compared == Compared::kDone && sample.of_gate) TellGate(sample, heads);
  if (!sample.by_chance) return;
  switch (compared) {
    case Compared::kDone:
      if (context.own_counts != nullptr) Count(heads, context.own_counts.get());
      return;
    case Compared::kChanged:
      return Dropped(context, QualityDrop::kChanged);
    case Compared::kNoMemory:
      return Dropped(context, QualityDrop::kMemory);
    case Compared::kGone:
    case Compared::kStopped:
      return Dropped(context, QualityDrop::kGone);
  }
}

void QualityMonitor::TellGate(const QualitySample& sample, const std::vector<HeadQuality>& heads) {
  double lost = 0;
  int sets = 0;
  for (const HeadQuality& head : heads) {
    for (const SetQuality& set : head.sets) lost += set.lost, ++sets;
  }
  LayerGate& gate = sample.context->gates[sample.layer];
  if (sets == 0 || !gate.Checked(lost / sets)) return;
  if (stepped_back_) stepped_back_(sample.context->config, sample.layer, gate.Read().lost_then);
}

// Sleeps so long that what has run since the last rest is the share of a core.
void QualityMonitor::Rest() {
  const int64_t ran = ThreadNs() - rested_at_ns_;
  if (options_.share >= 1 || ran < kRunNs) return;
  const double pause = static_cast<double>(ran) * (1 / options_.share - 1);
  std::unique_lock<std::mutex> lock(mutex_);
  wake_.wait_for(lock, std::chrono::nanoseconds(static_cast<int64_t>(pause)),
                 [this] { return ends_ || stop_->stop_requested(); });
  rested_at_ns_ = ThreadNs();
}

}  // namespace seine
