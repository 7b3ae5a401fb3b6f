// See service_bench.h.
#include "bench/serving/service_bench.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/report/progress.h"
#include "bench/serving/bare_futex.h"
#include "bench/serving/bare_socket.h"
#include "bench/serving/made_tokens.h"
#include "client/settings.h"
#include "index/index.h"

namespace seine::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kRunSteps = 50;      // remote, then in process, then remote again
constexpr int64_t kWarmUpSteps = 100;  // of each, not counted

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// The steps in process.
class LocalSide {
 public:
  absl::Status Start(const ServiceOptions& o, int threads, const Tokens& tokens) {
    tokens_ = &tokens;
    backend_ = MakeCpuBackend(threads);
    IndexConfig config;
    config.name = "bench";
    config.geometry = {o.num_layers, o.num_kv_heads * o.group, o.num_kv_heads, o.head_dim, DType::kFloat16};
    params_.top_k = o.top_k;
    params_.candidate_fraction = o.beta;
    auto index = Index::Create(config, backend_.get());
    if (!index.ok()) return index.status();
    index_ = *std::move(index);
    auto sequence = index_->CreateSequence("");
    if (!sequence.ok()) return sequence.status();
    sequence_ = *sequence;
    for (int layer = 0; layer < o.num_layers; ++layer) {
      if (absl::Status s = Append(layer, 0, o.num_keys); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status Append(int layer, int64_t position, int64_t count) {
    return index_
        ->Append(sequence_, layer, position,
                 {&tokens_->keys[position * tokens_->key_bytes], count, count * tokens_->key_bytes}, {})
        .status();
  }

  absl::Status Step(int layer, int64_t step, int64_t position, std::vector<std::vector<int32_t>>* sets) {
    if (absl::Status s = Append(layer, position, 1); !s.ok()) return s;
    const seine::RetrieveItem item{sequence_, layer, &tokens_->queries32[step * tokens_->query_bytes / 2]};
    auto answers = index_->Retrieve({&item, 1}, params_);
    if (!answers.ok()) return answers.status();
    *sets = std::move(answers->front().positions);
    return answers->front().status;
  }

 private:
  const Tokens* tokens_ = nullptr;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Index> index_;
  SequenceHandle sequence_;
  SearchParams params_;
};

// The same steps through a client. Deletes its index at the end.
class RemoteSide {
 public:
  ~RemoteSide() {
    stream_.reset();
    if (created_) client_->DeleteIndex(name_).IgnoreError();
  }

  absl::Status Start(const ServiceOptions& o, const Tokens& tokens, ServiceResult* result) {
    tokens_ = &tokens;
    o_ = o;
    client::Options options;
    options.wait_for_server = o.wait_for_server;
    options.spin = o.spin;
    options.security = o.security;
    auto made = client::Client::Connect(o.endpoint, options);
    if (!made.ok()) return made.status();
    client_ = *std::move(made);
    auto server = client_->GetServerInfo();
    if (!server.ok()) return server.status();
    result->backend = server->backend();
    result->simd_target = server->simd_target();
    result->server_threads = server->num_threads();

    v1::IndexSpec spec;
    spec.set_name(name_ = absl::StrCat("seine-bench-", getpid()));
    *spec.mutable_geometry() = client::MakeGeometry(o.num_layers, o.num_kv_heads * o.group, o.num_kv_heads, o.head_dim,
                                                    client::DType::kFloat16);
    if (auto index = client_->CreateIndex(spec); !index.ok()) return index.status();
    created_ = true;
    auto sequence = client_->CreateSequence(name_, "");
    if (!sequence.ok()) return sequence.status();
    sequence_ = *sequence;
    if (absl::Status s = Prefill(result); !s.ok()) return s;
    return OpenStream();
  }

  absl::Status Step(int layer, int64_t step, int64_t position, std::vector<std::vector<int32_t>>* sets) {
    request_.step = step;
    request_.appends.assign(1, Item(layer, position, 1));
    request_.items.assign(1, {sequence_,
                              layer,
                              {&tokens_->queries[step * tokens_->query_bytes],
                               client::DType::kFloat16,
                               {o_.num_kv_heads * o_.group, o_.head_dim}}});
    request_.selector.set_top_k(o_.top_k);
    request_.selector.set_candidate_fraction(o_.beta);
    client::Answer* answer = nullptr;
    if (absl::Status s = o_.unary ? AskUnary(&answer) : AskStream(&answer); !s.ok()) return s;
    if (!answer->status.ok()) return answer->status;
    sets->resize(answer->num_sets);
    for (int i = 0; i < answer->num_sets; ++i) (*sets)[i].assign(answer->set(i).begin(), answer->set(i).end());
    return absl::OkStatus();
  }

  // A step without appends and items: there and back.
  absl::Status EmptyStep() {
    if (absl::Status s = stream_->Write({}); !s.ok()) return s;
    return stream_->Read(&step_answer_);
  }

  int64_t server_us() const { return step_answer_.server_us; }  // of the last step, stream only

  absl::Status OpenStream() {
    if (o_.unary) return absl::OkStatus();
    auto stream = client_->OpenDecodeStream(o_.transport);
    if (!stream.ok()) return stream.status();
    stream_ = *std::move(stream);
    return absl::OkStatus();
  }

 private:
  client::AppendItem Item(int layer, int64_t position, int64_t count) const {
    return {
        sequence_,
        layer,
        position,
        {&tokens_->keys[position * tokens_->key_bytes], client::DType::kFloat16, {count, o_.num_kv_heads, o_.head_dim}},
        {}};
  }

  absl::Status Prefill(ServiceResult* result) {
    const Clock::time_point begin = Clock::now();
    for (int layer = 0; layer < o_.num_layers; ++layer) {
      const client::AppendItem item = Item(layer, 0, o_.num_keys);
      auto totals = client_->AppendStream({&item, 1});
      if (!totals.ok()) return totals.status();
    }
    result->tokens_per_s_append = static_cast<double>(o_.num_keys) * o_.num_layers / SecondsSince(begin);
    return absl::OkStatus();
  }

  absl::Status AskStream(client::Answer** answer) {
    if (absl::Status s = stream_->Write(request_); !s.ok()) return s;
    if (absl::Status s = stream_->Read(&step_answer_); !s.ok()) return s;
    if (!step_answer_.status.ok()) return step_answer_.status;
    if (step_answer_.append_status.size() != 1 || step_answer_.answers.size() != 1) {
      return absl::InternalError("an append and an item were sent, other numbers of answers came");
    }
    *answer = &step_answer_.answers.front();
    return step_answer_.append_status.front();
  }

  absl::Status AskUnary(client::Answer** answer) {
    if (auto length = client_->Append(request_.appends.front()); !length.ok()) return length.status();
    auto result = client_->Retrieve(request_.items, request_.selector);
    if (!result.ok()) return result.status();
    unary_answer_ = *std::move(result);
    if (unary_answer_.answers.size() != 1)
      return absl::InternalError("an item was sent, another number of answers came");
    *answer = &unary_answer_.answers.front();
    return absl::OkStatus();
  }

  const Tokens* tokens_ = nullptr;
  ServiceOptions o_;
  std::string name_;
  bool created_ = false;
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<client::DecodeStream> stream_;
  client::Sequence sequence_;
  client::DecodeStep request_;
  client::DecodeAnswer step_answer_;
  client::RetrieveResult unary_answer_;
};

// Tokens [begin, end) on one side, a step a layer, one layer behind another as a model asks them. step_us and token_us
// grow by the times of those that count.
template <typename Side, typename After>
absl::Status RunTokens(Side* side, const ServiceOptions& o, int64_t begin, int64_t end,
                       std::vector<std::vector<std::vector<int32_t>>>* sets, std::vector<double>* step_us,
                       std::vector<double>* token_us, const After& after) {
  for (int64_t token = begin; token < end; ++token) {
    const Clock::time_point first = Clock::now();
    for (int layer = 0; layer < o.num_layers; ++layer) {
      const Clock::time_point start = Clock::now();
      auto* const answered = &(*sets)[(token - begin) * o.num_layers + layer];
      if (absl::Status s = side->Step(layer, token, o.num_keys + token, answered); !s.ok()) return s;
      if (token < kWarmUpSteps) continue;
      step_us->push_back(SecondsSince(start) * 1e6);
      after(step_us->back());
    }
    if (token >= kWarmUpSteps) token_us->push_back(SecondsSince(first) * 1e6);
  }
  return absl::OkStatus();
}

bool IsShared(client::Transport transport) {
  return transport == client::Transport::kSharedMemory || transport == client::Transport::kSharedMemoryPolling;
}

// Empty steps and a bare futex pair, in turns, so that a neighbour's noise meets both.
absl::Status MeasureEmptySteps(const ServiceOptions& o, RemoteSide* remote, ServiceResult* result) {
  constexpr int kTurns = 5, kEmptySteps = 2000;
  constexpr double kSettling = .05;  // seconds in which the kernel gives two sides that spin on one core a core each
  std::vector<double> empty, bare;
  for (int turn = 0; turn < kTurns; ++turn) {
    std::vector<double> us;
    const Clock::time_point first = Clock::now();
    while (us.size() < kEmptySteps) {
      const Clock::time_point begin = Clock::now();
      if (absl::Status s = remote->EmptyStep(); !s.ok()) return s;
      if (SecondsSince(first) > kSettling) us.push_back(SecondsSince(begin) * 1e6);
    }
    empty.push_back(Percentile(us, 50));
    auto floor = MeasureBareFutex({.spin = o.transport == client::Transport::kSharedMemoryPolling});
    if (!floor.ok()) return floor.status();
    bare.push_back(*floor);
  }
  result->empty_step_us = Percentile(empty, 50);
  result->bare_futex_us = Percentile(bare, 50);
  return absl::OkStatus();
}

}  // namespace

double Percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  const size_t at =
      std::min(values.size() - 1, static_cast<size_t>(percent / 100 * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[at];
}

absl::StatusOr<ServiceResult> MeasureService(const ServiceOptions& o) {
  const int64_t steps = o.steps + kWarmUpSteps;
  ServiceResult result;
  const Tokens tokens = MakeTokens(o.num_kv_heads, o.group, o.head_dim, o.num_keys + steps, steps, o.seed);
  RemoteSide remote;
  if (absl::Status s = remote.Start(o, tokens, &result); !s.ok()) return s;
  LocalSide local;
  if (absl::Status s = local.Start(o, result.server_threads, tokens); !s.ok()) return s;

  Progress progress(steps);
  const size_t answers = kRunSteps * o.num_layers;
  std::vector<std::vector<std::vector<int32_t>>> remote_sets(answers), local_sets(answers);
  for (int64_t begin = 0; begin < steps; begin += kRunSteps) {
    const int64_t end = std::min(steps, begin + kRunSteps);
    absl::Status s =
        RunTokens(&local, o, begin, end, &local_sets, &result.local_us, &result.local_token_us, [](double) {});
    if (!s.ok()) return s;
    s = RunTokens(&remote, o, begin, end, &remote_sets, &result.remote_us, &result.remote_token_us, [&](double us) {
      if (!o.unary) result.wire_us.push_back(us - static_cast<double>(remote.server_us()));
    });
    if (!s.ok()) {  // a gap would follow: no later step can be right
      result.errors += end - begin;
      result.first_error = std::string(s.message());
      break;
    }
    for (int64_t i = 0; i < (end - begin) * o.num_layers; ++i) {
      if (remote_sets[i] == local_sets[i]) continue;
      if (result.errors++ == 0) {
        result.first_error = absl::StrCat("step ", begin + i / o.num_layers, ": other sets than in process");
      }
    }
    progress.Step("decode steps", end - begin);
  }
  double total_us = 0;
  for (double us : result.remote_us) total_us += us;
  if (total_us > 0) result.steps_per_s = static_cast<double>(result.remote_us.size()) / total_us * 1e6;
  BareSocketOptions bare;
  bare.request_bytes = tokens.key_bytes + tokens.query_bytes;
  bare.response_bytes = sizeof(int32_t) * o.top_k * o.num_kv_heads;
  bare.work_us = Percentile(result.local_us, 50);
  bare.spin = o.transport == client::Transport::kPolling || o.transport == client::Transport::kSharedMemoryPolling;
  auto floor = MeasureBareSocket(bare);
  if (!floor.ok()) return floor.status();
  result.bare_socket_us = *floor;
  if (IsShared(o.transport) && result.errors == 0) {
    if (absl::Status s = MeasureEmptySteps(o, &remote, &result); !s.ok()) return s;
  }
  auto append = MeasureAppend(o.num_kv_heads, o.head_dim, o.seed);
  if (!append.ok()) return append.status();
  result.append_keys_per_s_core = *append;
  return result;
}

absl::StatusOr<double> MeasureAppend(int num_kv_heads, int head_dim, uint64_t seed) {
  constexpr int64_t kTokens = 32768, kCallTokens = 2048;
  constexpr int kSequences = 5;
  const Tokens tokens = MakeTokens(num_kv_heads, 1, head_dim, kTokens, 1, seed);
  auto backend = MakeCpuBackend(1);
  IndexConfig config;
  config.name = "append";
  config.geometry = {1, num_kv_heads, num_kv_heads, head_dim, DType::kFloat16};
  auto index = Index::Create(config, backend.get());
  if (!index.ok()) return index.status();
  std::vector<double> keys_per_s;
  for (int i = 0; i < kSequences; ++i) {
    auto sequence = (*index)->CreateSequence("");
    if (!sequence.ok()) return sequence.status();
    const Clock::time_point begin = Clock::now();
    for (int64_t p = 0; p < kTokens; p += kCallTokens) {
      auto length = (*index)->Append(
          *sequence, 0, p, {&tokens.keys[p * tokens.key_bytes], kCallTokens, kCallTokens * tokens.key_bytes}, {});
      if (!length.ok()) return length.status();
    }
    keys_per_s.push_back(static_cast<double>(kTokens) * num_kv_heads / SecondsSince(begin));
    if (absl::Status s = (*index)->DeleteSequence(*sequence); !s.ok()) return s;
  }
  return Percentile(keys_per_s, 50);
}

}  // namespace seine::bench
