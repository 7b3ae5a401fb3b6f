// Prefill, decode, judge.
#include "client/demo/replay.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/base/exit_code.h"
#include "client/cli/base/output.h"
#include "client/demo/exact.h"
#include "client/settings.h"

namespace seine::demo {
namespace {

// As a bench would set them for 8K tokens of a small model; seine-bench recall has the same zones.
constexpr int kSink = 16;
constexpr int kLocal = 512;
constexpr int kUpdateBuffer = 64;
constexpr int kCentreWindow = 64;

// The whole of a decode: what each layer answered at each step, and how long it took.
struct Decoded {
  std::vector<client::Answer> answers;  // [steps, layers]
  std::vector<double> step_us, layer_us, server_us;
  client::Transport transport = client::Transport::kBlocking;
  std::string fallback;
};

class Engine {
 public:
  Engine(client::Client* client, const Trace& trace, const ReplayOptions& options, client::Sequence sequence)
      : client_(client), trace_(trace), options_(options), sequence_(std::move(sequence)) {}

  int64_t decode_start() const { return trace_.num_tokens() - options_.steps; }

  // Appends every layer's tokens before the first decode step; returns tokens a second.
  absl::StatusOr<double> Prefill() {
    std::vector<client::AppendItem> items;
    for (int layer = 0; layer < trace_.num_layers(); ++layer) {
      items.push_back({sequence_, trace_.model_layers()[layer], 0, trace_.Keys(layer, 0, decode_start()), {}});
    }
    cli::ProgressBar bar("prefill", decode_start() * trace_.num_layers());
    const absl::Time start = absl::Now();
    const auto totals = client_->AppendStream(items, [&](int64_t tokens) { bar.Update(tokens); });
    if (!totals.ok()) return totals.status();
    return totals->tokens / absl::ToDoubleSeconds(absl::Now() - start);
  }

  absl::StatusOr<Decoded> Decode() {
    absl::StatusOr<std::unique_ptr<client::DecodeStream>> stream = client_->OpenDecodeStream(options_.transport);
    if (!stream.ok()) return stream.status();
    Decoded decoded;
    decoded.transport = (*stream)->transport();
    decoded.fallback = (*stream)->fallback();
    decoded.answers.reserve(options_.steps * trace_.num_layers());
    client::DecodeStep step;
    step.appends = {{sequence_, 0, 0, {}, {}}};
    step.items = {{sequence_, 0, {}}};
    cli::ProgressBar bar("decode", options_.steps);
    for (int64_t position = decode_start(); position < trace_.num_tokens(); ++position) {
      double total_us = 0;
      for (int layer = 0; layer < trace_.num_layers(); ++layer) {
        const absl::StatusOr<double> us = DecodeLayer(stream->get(), layer, position, &step, &decoded);
        if (!us.ok()) return us.status();
        decoded.layer_us.push_back(*us);
        total_us += *us;
      }
      decoded.step_us.push_back(total_us);
      bar.Update(position - decode_start());
    }
    const absl::Status finished = (*stream)->Finish();
    if (!finished.ok()) return finished;
    return decoded;
  }

 private:
  // One round trip: appends the token's key of a layer and retrieves for its query. Microseconds.
  absl::StatusOr<double> DecodeLayer(client::DecodeStream* stream, int layer, int64_t position,
                                     client::DecodeStep* step, Decoded* decoded) {
    step->step = position;
    step->appends[0].layer = step->items[0].layer = trace_.model_layers()[layer];
    step->appends[0].position = position;
    step->appends[0].keys = trace_.Keys(layer, position, 1);
    step->items[0].queries = trace_.Query(layer, position);
    const absl::StatusOr<double> us = RoundTrip(stream, *step, &answer_);
    if (!us.ok()) return us;
    if (answer_.answers[0].num_sets != trace_.num_q_heads()) {
      return absl::InternalError("the server did not answer with a set for each query head");
    }
    decoded->server_us.push_back(static_cast<double>(answer_.server_us));
    decoded->answers.push_back(answer_.answers[0]);
    return us;
  }

  client::Client* const client_;
  const Trace& trace_;
  const ReplayOptions& options_;
  const client::Sequence sequence_;
  client::DecodeAnswer answer_;
};

// Holds every set against exact attention, after the decode so that it does not disturb the timing.
void Judge(const Trace& trace, const Decoded& decoded, Report* report) {
  const int layers = trace.num_layers(), group = trace.num_q_heads() / trace.num_kv_heads(), dim = trace.head_dim();
  const int64_t steps = decoded.step_us.size(), first = trace.num_tokens() - steps;
  cli::ProgressBar bar("exact attention, to compare", layers * trace.num_kv_heads() * steps);
  int64_t done = 0;
  report->recall_worst_head = 1;
  for (int layer = 0; layer < layers; ++layer) {
    const std::vector<float> keys = trace.KeysAsFloat(layer);
    for (int kv_head = 0; kv_head < trace.num_kv_heads(); ++kv_head) {
      ExactHead exact(keys, trace.num_tokens(), trace.num_kv_heads(), kv_head, dim);
      std::vector<double> head_recall(group, 0);
      for (int64_t step = 0; step < steps; ++step) {
        const client::Answer& answer = decoded.answers[step * layers + layer];
        const std::vector<float> queries = trace.QueryAsFloat(layer, first + step);
        for (int g = 0; g < group; ++g) {
          const int head = kv_head * group + g;
          const Quality quality = exact.Judge(absl::MakeConstSpan(queries).subspan(head * dim, dim), answer.set(head),
                                              answer.num_tokens, answer.zone_begin, answer.zone_end);
          head_recall[g] += quality.recall / steps;
          report->attention_mass += quality.attention_mass;
          report->attention_covered += quality.attention_covered;
          report->dense_covered += quality.dense_covered;
          report->exact_covered += quality.exact_covered;
          const int64_t dense = answer.zone_begin + answer.num_tokens - answer.zone_end;
          report->tokens_dense += static_cast<double>(dense);
          report->tokens_read += static_cast<double>(dense + answer.counts[head]);
        }
        bar.Update(++done);
      }
      for (double recall : head_recall) {
        report->recall += recall / (layers * trace.num_q_heads());
        report->recall_worst_head = std::min(report->recall_worst_head, recall);
      }
    }
  }
  report->num_queries = steps * layers * trace.num_q_heads();
  for (double* sum : {&report->attention_mass, &report->attention_covered, &report->dense_covered,
                      &report->exact_covered, &report->tokens_read, &report->tokens_dense}) {
    *sum /= static_cast<double>(report->num_queries);
  }
}

absl::Status MeasureMemory(client::Client* client, const Trace& trace, const client::Sequence& sequence,
                           Report* report) {
  const absl::StatusOr<client::SequenceInfo> info = client->GetSequence(sequence);
  if (!info.ok()) return info.status();
  report->code_bytes = info->code_bytes;
  report->store_bytes = info->store_bytes;
  const absl::StatusOr<client::HeadInfo> head = client->DescribeHead(sequence, trace.model_layers().front(), 0);
  if (!head.ok()) return head.status();
  report->bytes_per_key = head->bytes_per_key;
  const absl::StatusOr<v1::GetServerInfoResponse> server = client->GetServerInfo();
  if (!server.ok()) return server.status();
  report->simd_target = server->simd_target();
  report->threads = server->num_threads();
  report->full_cache_bytes =
      int64_t{2} * 2 * trace.num_layers() * trace.num_tokens() * trace.num_kv_heads() * trace.head_dim();
  return absl::OkStatus();
}

absl::Status CheckOptions(const Trace& trace, const ReplayOptions& options) {
  const int64_t queries = trace.num_tokens() - trace.query_start();
  if (options.steps < 1 || options.steps > queries) {
    return cli::UsageError(
        absl::StrCat("--steps: ", options.steps, " is not in [1, ", queries, "], the trace's queries"));
  }
  const int64_t needed = kSink + kLocal + 2 * kUpdateBuffer + options.top_k;
  if (trace.num_tokens() - options.steps < needed) {
    return cli::UsageError(absl::StrCat("--trace: ", trace.num_tokens(), " tokens are too few; before the ",
                                        options.steps, " decode steps it takes ", needed));
  }
  return absl::OkStatus();
}

}  // namespace

v1::IndexSpec SpecFor(const Trace& trace, const ReplayOptions& options) {
  v1::IndexSpec spec;
  spec.set_name(absl::StrCat("demo-", getpid()));
  const int recorded = *std::max_element(trace.model_layers().begin(), trace.model_layers().end()) + 1;
  *spec.mutable_geometry() = client::MakeGeometry(std::max(options.model_layers, recorded), trace.num_q_heads(),
                                                  trace.num_kv_heads(), trace.head_dim(), trace.dtype());
  spec.mutable_zones()->set_sink(kSink);
  spec.mutable_zones()->set_local(kLocal);
  spec.mutable_zones()->set_update_buffer(kUpdateBuffer);
  spec.mutable_zones()->set_dense_threshold(kSink + kLocal + kUpdateBuffer);
  spec.mutable_codec()->set_centre(v1::CENTRE_WINDOW);
  spec.mutable_codec()->set_centre_window(kCentreWindow);
  spec.mutable_retrieval()->set_coarse(v1::COARSE_SIGN_IP);
  spec.mutable_codec()->set_profile(options.profile);  // with one the codec is balanced
  spec.mutable_retrieval()->set_candidate_fraction(options.beta);
  spec.mutable_retrieval()->set_rescore_k(options.refine);
  spec.mutable_retrieval()->set_top_k(options.top_k);
  spec.mutable_retrieval()->set_scope(v1::SCOPE_PER_Q_HEAD);
  spec.set_kv_store(v1::KV_STORE_KEYS);
  return spec;
}

absl::StatusOr<double> RoundTrip(client::DecodeStream* stream, const client::DecodeStep& step,
                                 client::DecodeAnswer* answer) {
  const absl::Time start = absl::Now();
  absl::Status status = stream->Write(step);
  if (status.ok()) status = stream->Read(answer);
  const double us = absl::ToDoubleMicroseconds(absl::Now() - start);
  status.Update(answer->status);
  if (!status.ok()) return status;
  if (answer->append_status.size() != 1 || answer->answers.size() + answer->attended.size() != 1) {
    return absl::InternalError("the server did not answer the step's append and item");
  }
  status = answer->append_status[0];
  status.Update(answer->attended.empty() ? answer->answers[0].status : answer->attended[0].status);
  if (!status.ok()) return status;
  return us;
}

Percentiles PercentilesOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) { return values[static_cast<size_t>(share * (values.size() - 1) + 0.5)]; };
  return {at(0.50), at(0.99)};
}

absl::StatusOr<Report> Replay(client::Client* client, const Trace& trace, const ReplayOptions& options) {
  absl::Status status = CheckOptions(trace, options);
  if (!status.ok()) return status;
  const v1::IndexSpec spec = SpecFor(trace, options);
  const absl::StatusOr<v1::IndexInfo> index = client->CreateIndex(spec);
  if (!index.ok()) return index.status();
  const absl::Cleanup remove = [&] { client->DeleteIndex(spec.name()).IgnoreError(); };
  const absl::StatusOr<client::Sequence> sequence = client->CreateSequence(spec.name(), "trace");
  if (!sequence.ok()) return sequence.status();

  Report report;
  Engine engine(client, trace, options, *sequence);
  const absl::StatusOr<double> rate = engine.Prefill();
  if (!rate.ok()) return rate.status();
  report.append_tokens_per_second = *rate;
  const absl::StatusOr<Decoded> decoded = engine.Decode();
  if (!decoded.ok()) return decoded.status();
  report.transport = decoded->transport;
  report.fallback = decoded->fallback;
  report.step_us = PercentilesOf(decoded->step_us);
  report.layer_us = PercentilesOf(decoded->layer_us);
  report.server_us = PercentilesOf(decoded->server_us);
  status = MeasureMemory(client, trace, *sequence, &report);
  if (!status.ok()) return status;
  Judge(trace, *decoded, &report);
  return report;
}

}  // namespace seine::demo
