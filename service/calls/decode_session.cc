// Hot path: tensors are used where they lie, messages and scratch are reused.
#include "service/calls/decode_session.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <new>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "index/counts/counts.h"
#include "service/access/access.h"
#include "service/calls/announcing_moment.h"
#include "service/calls/calls.h"
#include "service/calls/convert/eviction.h"
#include "service/calls/convert/step.h"
#include "service/catalog.h"
#include "service/event_log.h"
#include "service/fields/error.h"

namespace seine {
namespace {

using StepClock = std::chrono::steady_clock;

int64_t MicrosecondsSince(StepClock::time_point began) {
  return std::chrono::duration_cast<std::chrono::microseconds>(StepClock::now() - began).count();
}

// Into the answer of a step.
class ResponseTaker final : public StepTaker {
 public:
  ResponseTaker(const v1::DecodeRequest& request, v1::DecodeResponse* response) : request_(request), out_(response) {}

  int64_t Appended(size_t append, const absl::Status& status, Retained retained) override {
    if (append == 0) AddAppends();
    const int i = static_cast<int>(append);
    if (!status.ok()) seine::ToProto(status, out_->mutable_append_status(i));
    if (out_->retained().empty()) return 0;
    if (status.ok() && retained.report != RetainedReport::kNone) seine::ToProto(retained, out_->mutable_retained(i));
    return static_cast<int64_t>(out_->retained(i).ByteSizeLong());
  }
  void TakeAnswer(size_t item, const AnswerShape& shape, ItemAnswer answer) override {
    Items().TakeAnswer(item, shape, std::move(answer));
  }
  void TakeAnswer(size_t item, const AnswerShape& shape, AttendAnswer answer) override {
    Items().TakeAnswer(item, shape, std::move(answer));
  }

 private:
  void AddAppends() {
    const bool reports = std::any_of(request_.appends().begin(), request_.appends().end(), [](const auto& append) {
      return append.report() != v1::RETAINED_REPORT_UNSPECIFIED;
    });
    for (int i = 0; i < request_.appends_size(); ++i) {
      out_->add_append_status();
      if (reports) out_->add_retained();
    }
  }
  MessageTaker& Items() {
    if (items_) return *items_;
    const auto count = static_cast<size_t>(request_.items_size());
    return request_.has_attention() ? items_.emplace(count, out_->mutable_attended())
                                    : items_.emplace(count, out_->mutable_answers());
  }

  const v1::DecodeRequest& request_;
  v1::DecodeResponse* const out_;
  std::optional<MessageTaker> items_;  // once the first is taken
};

}  // namespace

absl::Status DecodeSession::Admit() const {
  if (caller_ == nullptr) return absl::OkStatus();
  return caller_->revoked() ? Unauthenticated() : caller_->tenant->TakeStep();
}

void DecodeSession::Step(const v1::DecodeRequest& request, v1::DecodeResponse* response,
                         const std::function<void()>& announce) {
  response->Clear();
  appends_.clear();
  items_.clear();
  for (const v1::AppendItem& append : request.appends()) appends_.emplace_back(append);
  for (const v1::RetrieveItem& item : request.items()) items_.emplace_back(item);
  const StepView step = {appends_, items_, &request.selector(),
                         request.has_attention() ? &request.attention() : nullptr};
  ResponseTaker taker(request, response);
  int64_t server_us = 0;
  const absl::Status status = Timed(step, &taker, request.notify_early() ? announce : nullptr, &server_us);
  if (!status.ok()) {
    response->Clear();
    seine::ToProto(status, response->mutable_status());
  }
  response->set_step(request.step());
  response->set_server_us(server_us);
}

absl::Status DecodeSession::Step(const StepView& step, StepTaker* taker, int64_t* server_us) {
  return Timed(step, taker, nullptr, server_us);
}

absl::Status DecodeSession::Timed(const StepView& step, StepTaker* taker, const std::function<void()>& announce,
                                  int64_t* server_us) {
  const StepClock::time_point began = StepClock::now();
  const CallerScope scope(caller_);
  int64_t announcing_us = 0;  // the wire's time, not the index's
  AnnouncingMoment moment;
  ProgressCallback progress;
  if (announce) {
    progress = [&](int left) {
      const StepClock::time_point now = StepClock::now();
      if (!moment.IsDue(now, left)) return;
      announce();
      announcing_us = MicrosecondsSince(now);
    };
  }
  const absl::Status status = TryStep(step, taker, progress);
  if (!status.ok()) core_.log.Ended({"Decode step", peer_, began}, status);
  if (core_.log.WantsEvictions()) core_.log.EvictedByThemselves(core_.catalog.List());
  const auto took = StepClock::now() - began;
  *server_us = std::chrono::duration_cast<std::chrono::microseconds>(took).count() - announcing_us;
  if (const std::shared_ptr<Index> stepped = std::exchange(stepped_, nullptr); stepped != nullptr) {
    if (IndexCounts* const counts = stepped->counts(); counts != nullptr) {
      counts->Step(std::chrono::duration_cast<std::chrono::nanoseconds>(took).count());
    }
  }
  return status;
}

// The settings are checked before anything is appended: a step that fails as a whole has changed nothing. What fails
// from then on is said of the append or the item.
absl::Status DecodeSession::TryStep(const StepView& step, StepTaker* taker, const ProgressCallback& progress) {
  const auto appends = static_cast<int>(std::min<size_t>(step.appends.size(), INT_MAX));
  if (auto s = CheckBatch(appends, "appends"); !s.ok()) return s;
  if (auto s = retriever_.Prepare(step.items, *step.selector, step.attention); !s.ok()) return s;
  stepped_ = core_.counts != nullptr ? retriever_.first_index() : nullptr;
  std::shared_ptr<Index>* const found = core_.counts != nullptr ? &stepped_ : nullptr;
  int64_t room = core_.options.max_message_bytes;
  for (size_t i = 0; i < step.appends.size(); ++i) {
    absl::StatusOr<int64_t> length = NoMemory();
    Retained retained;
    try {
      length = AppendTokens(core_, step.appends[i], absl::StrCat("appends[", i, "]"), room, &retained, found);
    } catch (const std::bad_alloc&) {
    }
    room -= taker->Appended(i, length.status(), std::move(retained));
  }
  retriever_.Answer(taker, progress).IgnoreError();  // each item's answer says it
  return absl::OkStatus();
}

}  // namespace seine
