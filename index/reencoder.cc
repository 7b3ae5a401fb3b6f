#include "index/reencoder.h"

#include <algorithm>
#include <chrono>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "index/query_fit.h"

namespace seine {

namespace {

// Keys of all heads encoded under one shared lock: some milliseconds. The pause after it lets a waiting writer in, for
// a shared mutex may prefer readers.
constexpr int64_t kStepKeys = 256;
// The same where an answer waits for all of it, without a pause.
constexpr int64_t kDueStepKeys = 8192;
constexpr std::chrono::microseconds kPause(100), kNoPause(0);

// Loss above which a head's code is unfit, and by which another must be better. Between what fits and what does not:
// the figures in query_fit.h.
constexpr double kUnfit = .25;

}  // namespace

Reencoder::~Reencoder() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
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
  for (;;) {
    Job job;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
      if (stop_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    // Before the work, so that a layer that outgrows the new transform too before it is in place is queued again.
    if (const std::shared_ptr<Sequence> sequence = job.sequence.lock()) sequence->layers[job.layer]->SetQueued(false);
    while (Reencode(job, /*refit=*/true) == Outcome::kCut) continue;
  }
}

void Reencoder::FinishDue(const std::shared_ptr<Sequence>& sequence, int layer) {
  const Layer& target = *sequence->layers[layer];
  while (target.due()) {
    const Outcome outcome = Reencode({sequence, layer}, /*refit=*/false);
    if (outcome == Outcome::kLeft) return target.NotDue();
  }
}

// Transforms are computed without the layer's mutex: they take some ten milliseconds.
Reencoder::Plan Reencoder::MakePlan(const Layer& layer, int number, bool refit) const {
  Plan plan;
  std::shared_ptr<const LayerCodecs> codecs;
  int64_t length = 0;
  bool outgrown = false;
  {
    const std::shared_lock<std::shared_mutex> lock(layer.mutex());
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
  const std::vector<double> noise = NoiseOf(*codecs, seen, context_.config), losses = LossOf(*codecs, noise);
  layer.queries().SetLosses(codecs, losses);
  if (*std::max_element(losses.begin(), losses.end()) < kUnfit || !layer.queries().MayRefit()) return;
  auto learnt = std::make_shared<const QueryMoments>(LearnMoments(seen, context_.config, number));
  auto fitted = context_.transforms.Of(number, length, std::move(learnt));
  if (!fitted.ok()) return;
  const std::vector<double> after = NoiseOf(**fitted, seen, context_.config);
  for (size_t h = 0; h < noise.size(); ++h) {
    if (losses[h] < kUnfit || noise[h] < (1 + kUnfit) * after[h]) continue;
    plan->losses = LossOf(**fitted, after);
    plan->codecs = *std::move(fitted);
    return;
  }
}

// Outlives a sequence that is deleted meanwhile. nullptr: it is already.
std::shared_ptr<std::mutex> Reencoder::TurnOf(const Job& job) {
  const std::shared_ptr<Sequence> sequence = job.sequence.lock();
  return sequence == nullptr ? nullptr : sequence->layers[job.layer]->reencoding();
}

Reencoder::Outcome Reencoder::Reencode(const Job& job, bool refit) {
  const std::shared_ptr<std::mutex> turn = TurnOf(job);
  if (turn == nullptr) return Outcome::kLeft;
  const std::lock_guard<std::mutex> hold(*turn);
  std::vector<CodeStore> next;
  Plan plan;
  for (bool due = false; !stop_; std::this_thread::sleep_for(due ? kNoPause : kPause)) {
    const std::shared_ptr<Sequence> sequence = job.sequence.lock();
    if (sequence == nullptr) return Outcome::kLeft;
    Layer& layer = *sequence->layers[job.layer];
    due = layer.due();
    if (next.empty()) {
      plan = MakePlan(layer, job.layer, refit);
      if (plan.codecs == nullptr) return Outcome::kLeft;
    }
    {
      std::shared_lock<std::shared_mutex> lock(layer.mutex());
      if (layer.cuts() != plan.cuts) return Outcome::kCut;
      if (next.empty()) next = layer.NewCodes(plan.codecs);
      if (!layer.GrowFromStored(due ? kDueStepKeys : kStepKeys, &next).ok()) return Outcome::kLeft;
      if (!layer.Ready(next)) continue;
    }
    std::unique_lock<std::shared_mutex> lock(layer.mutex());
    if (layer.cuts() != plan.cuts) return Outcome::kCut;
    if (!layer.Ready(next)) continue;  // appended to meanwhile
    layer.Swap(&next);
    const int64_t keys = layer.strip(0).codes().visible();
    lock.unlock();  // before the old codes are freed
    Finish(&layer, std::move(plan), keys);
    return Outcome::kDone;
  }
  return Outcome::kLeft;
}

void Reencoder::Finish(Layer* layer, Plan plan, int64_t keys) {
  const bool unfit = !plan.losses.empty();
  if (unfit) {
    layer->queries().Refitted();
    layer->queries().SetLosses(std::move(plan.codecs), std::move(plan.losses));
  }
  keys_done_.fetch_add(keys, std::memory_order_relaxed);
  unfit_layers_done_.fetch_add(unfit ? 1 : 0, std::memory_order_relaxed);
  layers_done_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace seine
