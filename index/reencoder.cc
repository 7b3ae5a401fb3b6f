#include "index/reencoder.h"

#include <algorithm>
#include <chrono>
#include <shared_mutex>

namespace seine {

namespace {

// Keys of all heads encoded under one shared lock: some milliseconds. The pause after it lets a waiting writer in, for
// a shared mutex may prefer readers.
constexpr int64_t kStepKeys = 256;
constexpr std::chrono::microseconds kPause(100);

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
    while (Reencode(job) == Outcome::kCut) continue;
  }
}

Reencoder::Outcome Reencoder::Reencode(const Job& job) {
  CodeStore next(&context_.codes);
  int64_t cuts = -1;
  for (; !stop_; std::this_thread::sleep_for(kPause)) {
    const std::shared_ptr<Sequence> sequence = job.sequence.lock();
    if (sequence == nullptr) return Outcome::kLeft;
    Layer& layer = *sequence->layers[job.layer];
    {
      std::shared_lock<std::shared_mutex> lock(layer.mutex());
      if (cuts < 0) cuts = layer.cuts();
      if (layer.cuts() != cuts) return Outcome::kCut;
      if (!layer.Outgrown()) return Outcome::kLeft;
      if (next.codecs() == nullptr) {
        auto codecs = context_.transforms.Of(job.layer, layer.length());
        if (!codecs.ok()) return Outcome::kLeft;
        next.Choose(*std::move(codecs));
      }
      if (!layer.GrowFromStored(kStepKeys, &next).ok()) return Outcome::kLeft;
      if (next.visible() < layer.zone_keys()) continue;
    }
    std::unique_lock<std::shared_mutex> lock(layer.mutex());
    if (layer.cuts() != cuts) return Outcome::kCut;
    if (next.visible() < layer.zone_keys()) continue;  // appended to meanwhile
    layer.Swap(&next);
    lock.unlock();  // before the old codes are freed
    layers_done_.fetch_add(1, std::memory_order_relaxed);
    keys_done_.fetch_add(next.visible(), std::memory_order_relaxed);
    return Outcome::kDone;
  }
  return Outcome::kLeft;
}

}  // namespace seine
