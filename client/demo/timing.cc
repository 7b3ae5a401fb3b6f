#include "client/demo/timing.h"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "client/cli/base/output.h"
#include "client/demo/processor_share.h"

namespace seine::demo {
namespace {

constexpr int64_t kMostSteps = 64;    // a length, timed or not
constexpr int64_t kWarmUpShare = 8;   // one step of so many comes first and is not timed
constexpr int64_t kLengthFactor = 4;  // from one length to the next

// Whole copies of the trace, ascending.
std::vector<int64_t> CopiesToTime(const Trace& trace, int64_t long_tokens) {
  std::vector<int64_t> copies;
  const int64_t most = std::max<int64_t>(1, long_tokens / trace.num_tokens());
  for (int64_t c = 1; c < most; c *= kLengthFactor) copies.push_back(c);
  copies.push_back(most);
  return copies;
}

// How one of the two attends, and what it took.
struct Side {
  client::Sequence sequence;
  bool dense = false;
  std::vector<double> us = {}, index_us = {};  // of every timed layer
  int64_t attended = 0;                        // of all heads together
};

class Timer {
 public:
  Timer(client::Client* client, const Trace& trace, const ReplayOptions& options, int threads,
        client::Sequence sequence)
      : client_(client), trace_(trace), options_(options), threads_(threads), sequence_(std::move(sequence)) {}

  absl::StatusOr<TimedLengths> Run() {
    auto stream = client_->OpenDecodeStream(options_.transport);
    if (!stream.ok()) return stream.status();
    stream_ = *std::move(stream);
    TimedLengths timed;
    for (const int64_t copies : CopiesToTime(trace_, options_.long_tokens)) {
      absl::StatusOr<AttentionTimes> times = TimeLength(copies);
      if (absl::IsResourceExhausted(times.status()) && copies > 1) {  // what was measured stays
        timed.stopped = std::string(times.status().message());
        break;
      }
      if (!times.ok()) return times.status();
      timed.times.push_back(*times);
    }
    if (absl::Status s = stream_->Finish(); !s.ok()) return s;
    return timed;
  }

 private:
  client::ConstTensor Keys(int layer, int64_t position, int64_t count) const {
    return trace_.Keys(layer, position % trace_.num_tokens(), count);
  }

  // Appends tokens [held_, end) of every layer, in pieces of the trace.
  absl::Status AppendUpTo(int64_t end) {
    std::vector<client::AppendItem> items;
    for (int layer = 0; layer < trace_.num_layers(); ++layer) {
      for (int64_t at = held_; at < end;) {
        const int64_t count = std::min(end - at, trace_.num_tokens() - at % trace_.num_tokens());
        const client::ConstTensor keys = Keys(layer, at, count);
        items.push_back({sequence_, trace_.model_layers()[layer], at, keys, keys});
        at += count;
      }
    }
    cli::ProgressBar bar(absl::StrCat("prefill of ", end, " tokens"), (end - held_) * trace_.num_layers());
    held_ = end;
    return client_->AppendStream(items, [&](int64_t tokens) { bar.Update(tokens); }).status();
  }

  // Both sides decode the last tokens of a copy, each in a sequence of its own, which share all that came before.
  absl::StatusOr<AttentionTimes> TimeLength(int64_t copies) {
    const int64_t steps = std::min<int64_t>(options_.steps, kMostSteps), end = copies * trace_.num_tokens();
    if (absl::Status s = AppendUpTo(end - steps); !s.ok()) return s;
    absl::StatusOr<client::Sequence> fork = client_->ForkSequence(sequence_, "", std::nullopt);
    if (!fork.ok()) return fork.status();
    std::array<Side, 2> sides = {Side{sequence_}, Side{*std::move(fork), /*dense=*/true}};
    const double share_before = MeasureProcessorShare(threads_);
    cli::ProgressBar bar(absl::StrCat("attention over ", end, " tokens"), steps);
    for (int64_t step = 0; step < steps; ++step) {
      for (int turn = 0; turn < 2; ++turn) {  // each comes first by turns: what else the machine does meets both
        if (absl::Status s = Step(end - steps + step, step >= steps / kWarmUpShare, &sides[(turn + step) % 2]); !s.ok())
          return s;
      }
      bar.Update(step);
    }
    held_ = end;
    const double share = (share_before + MeasureProcessorShare(threads_)) / 2;
    if (absl::Status s = client_->DeleteSequence(sides[1].sequence); !s.ok()) return s;
    AttentionTimes times;
    times.num_tokens = end;
    times.copies = copies;
    times.processor_share = share;
    Summarise(&sides[0], &times.seine_tokens, &times.seine_us, &times.seine_mean_us, &times.seine_index_us);
    Summarise(&sides[1], &times.dense_tokens, &times.dense_us, &times.dense_mean_us, &times.dense_index_us);
    return times;
  }

  void Summarise(Side* side, double* tokens, Percentiles* us, double* mean_us, Percentiles* index_us) const {
    const auto timed = static_cast<double>(side->us.size());
    *tokens = static_cast<double>(side->attended) / (timed * trace_.num_q_heads());
    *mean_us = std::accumulate(side->us.begin(), side->us.end(), 0.0) / timed;
    *us = PercentilesOf(std::move(side->us));
    *index_us = PercentilesOf(std::move(side->index_us));
  }

  // All layers of the token at `position`.
  absl::Status Step(int64_t position, bool timed, Side* side) {
    for (int layer = 0; layer < trace_.num_layers(); ++layer) {
      const int model_layer = trace_.model_layers()[layer];
      const client::ConstTensor keys = Keys(layer, position, 1);
      step_.appends = {{side->sequence, model_layer, position, keys, keys}};
      // Query rows are those of the trace's end, as the keys appended here are.
      const int64_t asked = position % trace_.num_tokens();
      step_.items = {{side->sequence, model_layer, trace_.Query(layer, asked)}};
      if (side->dense) step_.items[0].dense_from = 0;
      step_.selector.set_top_k(options_.top_k);
      step_.attention = v1::Attention{};
      const absl::StatusOr<double> us = RoundTrip(stream_.get(), step_, &answer_);
      if (!us.ok()) return us.status();
      if (answer_.attended.empty()) return absl::InternalError("the server did not attend");
      const int64_t attended = answer_.attended[0].attended_tokens, all = (position + 1) * trace_.num_q_heads();
      if (side->dense && attended != all) {
        return absl::InternalError(absl::StrCat("the server attended ", attended, " tokens, not ", all));
      }
      if (!timed) continue;
      side->us.push_back(*us);
      side->index_us.push_back(static_cast<double>(answer_.server_us));
      side->attended += attended;
    }
    return absl::OkStatus();
  }

  client::Client* const client_;
  const Trace& trace_;
  const ReplayOptions& options_;
  const int threads_;
  const client::Sequence sequence_;
  std::unique_ptr<client::DecodeStream> stream_;
  client::DecodeStep step_;
  client::DecodeAnswer answer_;
  int64_t held_ = 0;  // tokens of sequence_
};

}  // namespace

double AttentionTimes::speedup() const {
  if (seine_us.p50 <= 0 || seine_mean_us <= 0) return 0;
  return std::min(dense_us.p50 / seine_us.p50, dense_mean_us / seine_mean_us);
}

absl::StatusOr<TimedLengths> TimeAttention(client::Client* client, const Trace& trace, const ReplayOptions& options,
                                           int threads) {
  v1::IndexSpec spec = SpecFor(trace, options);
  spec.set_kv_store(v1::KV_STORE_KEYS_VALUES);
  const absl::StatusOr<v1::IndexInfo> index = client->CreateIndex(spec);
  if (!index.ok()) return index.status();
  const absl::Cleanup remove = [&] { client->DeleteIndex(spec.name()).IgnoreError(); };
  const absl::StatusOr<client::Sequence> sequence = client->CreateSequence(spec.name(), "trace");
  if (!sequence.ok()) return sequence.status();
  return Timer(client, trace, options, threads, *sequence).Run();
}

}  // namespace seine::demo
