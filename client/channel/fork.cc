#include "client/channel/fork.h"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace seine::client {
namespace {

std::atomic<int64_t> forks{0};

class GuardedStream final : public DecodeStream {
 public:
  explicit GuardedStream(std::unique_ptr<DecodeStream> stream) : stream_(std::move(stream)) {}
  ~GuardedStream() override {
    if (!made_.here()) KeepForEver(std::move(stream_));
  }

  absl::Status Write(const DecodeStep& step) override {
    const absl::Status here = made_.Check();
    return here.ok() ? stream_->Write(step) : here;
  }
  absl::Status Read(DecodeAnswer* answer) override {
    const absl::Status here = made_.Check();
    return here.ok() ? stream_->Read(answer) : here;
  }
  absl::Status Finish() override {
    const absl::Status here = made_.Check();
    return here.ok() ? stream_->Finish() : here;
  }
  Transport transport() const override { return stream_->transport(); }
  const std::string& fallback() const override { return stream_->fallback(); }

 private:
  const MadeHere made_;
  std::shared_ptr<DecodeStream> stream_;
};

class GuardedCall final : public JsonCall {
 public:
  GuardedCall(std::unique_ptr<JsonCall> call, const MadeHere& made) : made_(made), call_(std::move(call)) {}
  ~GuardedCall() override {
    if (!made_.here()) KeepForEver(std::move(call_));
  }

  absl::Status Write(absl::string_view request) override {
    const absl::Status here = made_.Check();
    return here.ok() ? call_->Write(request) : here;
  }
  void WritesDone() override {
    if (made_.here()) call_->WritesDone();
  }
  absl::StatusOr<std::optional<std::string>> Read() override {
    if (absl::Status here = made_.Check(); !here.ok()) return here;
    return call_->Read();
  }
  absl::Status Finish() override {
    const absl::Status here = made_.Check();
    return here.ok() ? call_->Finish() : here;
  }

 private:
  const MadeHere made_;
  std::shared_ptr<JsonCall> call_;
};

}  // namespace

int64_t Forks() {
  [[maybe_unused]] static const int counted = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
  return forks.load(std::memory_order_relaxed);
}

absl::Status MadeHere::Check() const {
  if (here()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("made before fork: this belongs to process ", process_, ", and process ", getpid(),
                   " is its child; start processes that use Seine by spawn, and make what they use in them"));
}

void KeepForEver(std::shared_ptr<void> made) {
  static auto* const mutex = new std::mutex;
  static auto* const kept = new std::vector<std::shared_ptr<void>>;  // reached from here, so that it is no leak
  const std::lock_guard<std::mutex> lock(*mutex);
  kept->push_back(std::move(made));
}

std::unique_ptr<DecodeStream> OfThisProcess(std::unique_ptr<DecodeStream> stream) {
  return std::make_unique<GuardedStream>(std::move(stream));
}

std::unique_ptr<JsonCall> OfThisProcess(std::unique_ptr<JsonCall> call, const MadeHere& made) {
  return std::make_unique<GuardedCall>(std::move(call), made);
}

}  // namespace seine::client
