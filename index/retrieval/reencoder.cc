#include "index/retrieval/reencoder.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "index/sequence/layer_lock.h"
#include "index/transforms/query_fit.h"
#include "kernels/thread_name.h"

namespace seine {

namespace {

// Keys of all heads encoded under one shared lock: some milliseconds, for which a writer may wait.
constexpr int64_t kStepKeys = 256;
// The same where an answer waits for all of it.
constexpr int64_t kDueStepKeys = 8192;

// Loss above which a head's code is unfit, and by which another must be better. Between what fits and what does not:
// the figures in query_fit.h.
constexpr double kUnfit = .25;

}  // namespace

Reencoder::~Reencoder() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_.Stop(StopReason::kShutdown);
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Reencoder::Add(const std::shared_ptr<Sequence>& sequence, int layer) {
  if (sequence->layers[layer]->SetQueued(true)) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  jobs_.push_back({sequence, layer});
  if (!thread_.joinable()) thread_ = std::thread([this] { Work(); });
  wake_.notify_one();
}

void Reencoder::Work() {
  NameThread("seine-reencode");
  const StopScope scope(&ends_);
  for (;;) {
    Job job;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      working_ = false;
      if (jobs_.empty()) idle_.notify_all();
      wake_.wait(lock, [this] { return ends_.stop_requested() || !jobs_.empty(); });
      if (ends_.stop_requested()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      working_ = true;
    }
    // Before the work, so that a layer that outgrows the new transform too before it is in place is queued again.
    if (const std::shared_ptr<Sequence> sequence = job.sequence.lock()) sequence->layers[job.layer]->SetQueued(false);
    while (Reencode(job, /*refit=*/true) == Outcome::kCut) continue;
  }
}

void Reencoder::WaitUntilIdle() const {
  std::unique_lock<std::mutex> lock(mutex_);
  idle_.wait(lock, [this] { return jobs_.empty() && !working_; });
}

absl::Status Reencoder::FinishDue(const std::shared_ptr<Sequence>& sequence, int layer) {
  const Layer& target = *sequence->layers[layer];
  while (target.due()) {
    const Outcome outcome = Reencode({sequence, layer}, /*refit=*/false);
    if (outcome == Outcome::kStopped) {
      Add(sequence, layer);
      return StopStatus();
    }
    if (outcome == Outcome::kLeft) {
      target.ClearReencodeDue();
      break;
    }
  }
  return absl::OkStatus();
}

// Transforms are computed without the layer's mutex: they take some ten milliseconds.
Reencoder::Plan Reencoder::MakePlan(const Layer& layer, int number, bool refit) const {
  Plan plan;
  std::shared_ptr<const LayerCodecs> codecs;
  int64_t length = 0;
  bool outgrown = false;
  {
    const auto lock = ReadLock::Of(layer);
    if (!lock.ok()) return plan;
    plan.cuts = layer.cuts();
    codecs = layer.codecs();
    if (codecs == nullptr) return plan;
    length = layer.length();
    outgrown = layer.Outgrown();
  }
  if (outgrown) {
    auto further = context_.transforms.Of(number, length, codecs->queries);
    if (further.ok()) plan.codecs = *std::move(further);
  } else if (refit && layer.Refittable()) {
    Refit(layer, number, length, codecs, &plan);
  }
  return plan;
}

// Codes for the queries asked, where those that the layer has are unfit for a head's and others would be better: what
// is hard to encode for stays as it is.
void Reencoder::Refit(const Layer& layer, int number, int64_t length, const std::shared_ptr<const LayerCodecs>& codecs,
                      Plan* plan) const {
  const SeenQueries seen = layer.queries().Seen();
  if (seen.positions.size() < QueryWindow::kFewest) return;
  const std::vector<double> noise = NoiseOf(*codecs, seen, context_.config, number), losses = LossOf(*codecs, noise);
  layer.queries().SetLosses(codecs, losses);
  if (*std::max_element(losses.begin(), losses.end()) < kUnfit || !layer.queries().MayRefit()) return;
  auto learnt = std::make_shared<const QueryMoments>(LearnMoments(seen, context_.config, number));
  auto fitted = context_.transforms.Of(number, length, std::move(learnt));
  if (!fitted.ok()) return;
  const std::vector<double> after = NoiseOf(**fitted, seen, context_.config, number);
  for (size_t h = 0; h < noise.size(); ++h) {
    if (losses[h] < kUnfit || noise[h] < (1 + kUnfit) * after[h]) continue;
    plan->losses = LossOf(**fitted, after);
    plan->codecs = *std::move(fitted);
    return;
  }
}

// Outlives a sequence that is deleted meanwhile. nullptr: it is already.
std::shared_ptr<FairMutex> Reencoder::TurnOf(const Job& job) {
  const std::shared_ptr<Sequence> sequence = job.sequence.lock();
  return sequence == nullptr ? nullptr : sequence->layers[job.layer]->reencoding();
}

Reencoder::Outcome Reencoder::Reencode(const Job& job, bool refit) {
  const std::shared_ptr<FairMutex> turn = TurnOf(job);
  if (turn == nullptr) return Outcome::kLeft;
  if (!turn->LockUnlessStopped()) return Outcome::kStopped;
  const std::lock_guard<FairMutex> hold(*turn, std::adopt_lock);
  // Why it does not go on: the call is stopped, or there is nothing to do or no memory to do it.
  const auto left = [] { return StopRequested() ? Outcome::kStopped : Outcome::kLeft; };
  std::vector<CodeStore> next;
  Plan plan;
  while (!StopRequested()) {
    const std::shared_ptr<Sequence> sequence = job.sequence.lock();
    if (sequence == nullptr) return Outcome::kLeft;
    Layer& layer = *sequence->layers[job.layer];
    if (next.empty()) {
      plan = MakePlan(layer, job.layer, refit);
      if (plan.codecs == nullptr) return left();
    }
    {
      const auto lock = ReadLock::Of(layer);
      if (!lock.ok()) return left();
      if (layer.cuts() != plan.cuts) return Outcome::kCut;
      if (next.empty()) next = layer.NewCodes(plan.codecs);
      if (!layer.GrowFromStored(layer.due() ? kDueStepKeys : kStepKeys, &next).ok()) return left();
      if (!layer.Ready(next)) continue;
    }
    auto lock = WriteLock::Of(&layer);
    if (!lock.ok()) return left();
    if (layer.cuts() != plan.cuts) return Outcome::kCut;
    if (!layer.Ready(next)) continue;  // appended to meanwhile
    layer.Swap(&next);
    const int64_t keys = layer.cache(0).codes().visible();
    lock->Unlock();  // before the old codes are freed
    Finish(&layer, std::move(plan), keys);
    return Outcome::kDone;
  }
  return Outcome::kStopped;
}

void Reencoder::Finish(Layer* layer, Plan plan, int64_t keys) {
  const bool unfit = !plan.losses.empty();
  if (unfit) {
    layer->queries().Refitted();
    layer->queries().SetLosses(std::move(plan.codecs), std::move(plan.losses));
  }
  keys_done_.fetch_add(keys, std::memory_order_relaxed);
  if (context_.counts != nullptr) context_.counts->Reencoded(unfit, keys);
  unfit_layers_done_.fetch_add(unfit ? 1 : 0, std::memory_order_relaxed);
  layers_done_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace seine
