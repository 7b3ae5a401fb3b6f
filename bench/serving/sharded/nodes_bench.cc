// See nodes_bench.h.
#include "bench/serving/sharded/nodes_bench.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/report/progress.h"
#include "bench/serving/made_tokens.h"
#include "bench/serving/server_process.h"
#include "bench/serving/service_bench.h"
#include "bench/serving/sharded/counting_relay.h"
#include "client/client.h"
#include "client/settings.h"
#include "client/sharded/merge.h"

namespace seine::bench {
namespace {

using client::Attended;

constexpr int64_t kPieceTokens = 4096;  // of an append
constexpr int64_t kWarmSteps = 5, kCountedSteps = 50;

double Now(clockid_t clock) {
  timespec at;
  clock_gettime(clock, &at);
  return 1e6 * static_cast<double>(at.tv_sec) + 1e-3 * static_cast<double>(at.tv_nsec);
}

// A node: a server, an index of one layer on it, a sequence, and the stream that asks it.
struct Node {
  std::unique_ptr<ServerProcess> server;
  std::unique_ptr<client::Client> client;
  client::Sequence sequence;
  std::unique_ptr<client::DecodeStream> stream;
};

class NodesBench {
 public:
  explicit NodesBench(const NodesOptions& options)
      : o_(options),
        tokens_(MakeTokens(o_.num_kv_heads, o_.group, o_.head_dim,
                           *std::max_element(o_.num_keys.begin(), o_.num_keys.end()), o_.steps, o_.seed)) {}

  absl::Status Start() {
    for (int i = 0; i < o_.nodes; ++i) {
      auto server = ServerProcess::Start(o_.spawn, {"--threads", "1", "--log-level", "error"});
      if (!server.ok()) return server.status();
      auto client = Connected((*server)->endpoint());
      if (!client.ok()) return client.status();
      nodes_.push_back({*std::move(server), *std::move(client), {}, nullptr});
    }
    return absl::OkStatus();
  }

  absl::StatusOr<NodesPoint> Measure(int64_t num_keys, Progress* progress) {
    NodesPoint point;
    point.num_keys = num_keys;
    for (Node& node : nodes_) {
      if (absl::Status s = Fill(&node, num_keys); !s.ok()) return s;
    }
    for (const auto part : {&NodesBench::OneByOne, &NodesBench::AllAtOnce, &NodesBench::CountBytes}) {
      if (absl::Status s = (this->*part)(&point); !s.ok()) return s;
      progress->Step(absl::StrCat(num_keys, " keys a node"));
    }
    const auto info = nodes_[0].client->GetIndex(kIndex);
    if (!info.ok()) return info.status();
    point.token_bytes = static_cast<double>(info->code_bytes() + info->store_bytes()) / static_cast<double>(num_keys);
    for (Node& node : nodes_) {
      node.stream.reset();
      if (absl::Status s = node.client->DeleteIndex(kIndex); !s.ok()) return s;
    }
    return point;
  }

 private:
  static constexpr char kIndex[] = "bench-nodes";

  static absl::StatusOr<std::unique_ptr<client::Client>> Connected(const std::string& endpoint) {
    return client::Client::Connect(endpoint, {.connect_timeout = absl::Seconds(20), .wait_for_server = true});
  }

  absl::Status Fill(Node* node, int64_t num_keys) {
    v1::IndexSpec spec;
    spec.set_name(kIndex);
    *spec.mutable_geometry() =
        client::MakeGeometry(1, o_.num_kv_heads * o_.group, o_.num_kv_heads, o_.head_dim, client::DType::kFloat16);
    spec.set_kv_store(v1::KV_STORE_KEYS_VALUES);
    if (auto made = node->client->CreateIndex(spec); !made.ok()) return made.status();
    auto sequence = node->client->CreateSequence(kIndex, "text");
    if (!sequence.ok()) return sequence.status();
    node->sequence = *std::move(sequence);
    for (int64_t p = 0; p < num_keys; p += kPieceTokens) {
      const client::ConstTensor rows = {&tokens_.keys[p * tokens_.key_bytes],
                                        client::DType::kFloat16,
                                        {std::min(kPieceTokens, num_keys - p), o_.num_kv_heads, o_.head_dim}};
      if (auto end = node->client->Append({node->sequence, 0, p, rows, rows}); !end.ok()) return end.status();
    }
    auto stream = node->client->OpenDecodeStream(client::Transport::kBlocking);
    if (!stream.ok()) return stream.status();
    node->stream = *std::move(stream);
    return absl::OkStatus();
  }

  client::DecodeStep StepOf(const Node& node, int64_t i) const {
    client::DecodeStep step;
    step.items = {{node.sequence,
                   0,
                   {&tokens_.queries[(i % o_.steps) * tokens_.query_bytes],
                    client::DType::kFloat16,
                    {o_.num_kv_heads * o_.group, o_.head_dim}}}};
    step.selector.set_top_k(o_.top_k);
    step.selector.set_scope(v1::SCOPE_PER_Q_HEAD);
    step.attention = v1::Attention{};
    return step;
  }

  static absl::Status ReadAnswer(client::DecodeStream* stream, client::DecodeAnswer* answer) {
    absl::Status status = stream->Read(answer);
    if (status.ok()) status = answer->status;
    return status.ok() ? answer->attended[0].status : status;
  }

  // Each step asks the next node, while the others rest.
  absl::Status OneByOne(NodesPoint* point) {
    std::vector<double> node_us, step_us;
    client::DecodeAnswer answer;
    for (int64_t i = 0; i < kWarmSteps * o_.nodes + o_.steps; ++i) {
      Node& node = nodes_[i % o_.nodes];
      const client::DecodeStep step = StepOf(node, i);
      const double begin = Now(CLOCK_MONOTONIC);
      absl::Status status = node.stream->Write(step);
      if (status.ok()) status = ReadAnswer(node.stream.get(), &answer);
      if (!status.ok()) return status;
      if (i < kWarmSteps * o_.nodes) continue;
      step_us.push_back(Now(CLOCK_MONOTONIC) - begin);
      node_us.push_back(static_cast<double>(answer.server_us));
    }
    point->node_us = Percentile(node_us, 50);
    point->step_us = Percentile(step_us, 50);
    return absl::OkStatus();
  }

  absl::Status AllAtOnce(NodesPoint* point) {
    std::vector<double> all_us, engine_us, merge_us;
    std::vector<client::DecodeAnswer> answers(o_.nodes);
    for (int64_t i = 0; i < o_.steps; ++i) {
      const double begin = Now(CLOCK_MONOTONIC), busy = Now(CLOCK_PROCESS_CPUTIME_ID);
      for (Node& node : nodes_) {
        if (absl::Status s = node.stream->Write(StepOf(node, i)); !s.ok()) return s;
      }
      for (int n = 0; n < o_.nodes; ++n) {
        if (absl::Status s = ReadAnswer(nodes_[n].stream.get(), &answers[n]); !s.ok()) return s;
      }
      const double read = Now(CLOCK_MONOTONIC);
      engine_us.push_back((Now(CLOCK_PROCESS_CPUTIME_ID) - busy) / o_.nodes);
      std::vector<client::FromShard<Attended>> parts;
      for (int n = 0; n < o_.nodes; ++n) parts.push_back({n, std::move(answers[n].attended[0])});
      client::MergeAttended(parts, {.num_tokens = point->num_keys * o_.nodes});
      all_us.push_back(Now(CLOCK_MONOTONIC) - begin);
      merge_us.push_back((Now(CLOCK_MONOTONIC) - read) / o_.nodes);
    }
    point->all_us = Percentile(all_us, 50);
    point->engine_us = Percentile(engine_us, 50);
    point->merge_us = Percentile(merge_us, 50);
    return absl::OkStatus();
  }

  // Over a connection of its own, which is slower.
  absl::Status CountBytes(NodesPoint* point) {
    auto relay = CountingRelay::Start(nodes_[0].server->endpoint());
    if (!relay.ok()) return relay.status();
    auto client = Connected((*relay)->endpoint());
    if (!client.ok()) return client.status();
    auto stream = (*client)->OpenDecodeStream(client::Transport::kBlocking);
    if (!stream.ok()) return stream.status();
    client::DecodeAnswer answer;
    int64_t there = 0, back = 0;
    for (int64_t i = 0; i < kWarmSteps + kCountedSteps; ++i) {
      if (i == kWarmSteps) there = (*relay)->bytes_there(), back = (*relay)->bytes_back();
      absl::Status status = (*stream)->Write(StepOf(nodes_[0], i));
      if (status.ok()) status = ReadAnswer(stream->get(), &answer);
      if (!status.ok()) return status;
    }
    point->bytes_there = static_cast<double>((*relay)->bytes_there() - there) / kCountedSteps;
    point->bytes_back = static_cast<double>((*relay)->bytes_back() - back) / kCountedSteps;
    return absl::OkStatus();
  }

  const NodesOptions o_;
  const Tokens tokens_;
  std::vector<Node> nodes_;
};

}  // namespace

absl::StatusOr<std::vector<NodesPoint>> MeasureNodes(const NodesOptions& options) {
  NodesBench bench(options);
  if (absl::Status s = bench.Start(); !s.ok()) return s;
  Progress progress(3 * static_cast<int64_t>(options.num_keys.size()));
  std::vector<NodesPoint> points;
  for (const int64_t num_keys : options.num_keys) {
    const auto point = bench.Measure(num_keys, &progress);
    if (!point.ok()) return point.status();
    points.push_back(*point);
  }
  return points;
}

}  // namespace seine::bench
