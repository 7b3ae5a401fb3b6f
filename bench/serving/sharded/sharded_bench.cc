// See sharded_bench.h.
#include "bench/serving/sharded/sharded_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/inputs/dataset.h"
#include "bench/report/progress.h"
#include "client/settings.h"
#include "client/sharded/sharded_sequence.h"

namespace seine::bench {
namespace {

using client::Attended;

// One layer as a client sends it.
struct LayerTokens {
  DatasetInfo info;
  std::vector<uint8_t> keys, values;  // [num_tokens, num_kv_heads, head_dim]
  std::vector<float> queries;         // [questions, num_q_heads, head_dim]
  int64_t questions = 0;
  int q_heads() const { return info.num_kv_heads * info.group; }
  client::ConstTensor Tensor(const std::vector<uint8_t>& rows) const {
    return {rows.data(),
            static_cast<client::DType>(static_cast<int>(info.dtype) + 1),
            {info.num_tokens, info.num_kv_heads, info.head_dim}};
  }
  client::ConstTensor Query(int64_t i) const {
    return {queries.data() + i * q_heads() * info.head_dim, client::DType::kFloat32, {q_heads(), info.head_dim}};
  }
};
static_assert(static_cast<int>(DType::kFloat32) + 1 == static_cast<int>(client::DType::kFloat32));
static_assert(static_cast<int>(DType::kBFloat16) + 1 == static_cast<int>(client::DType::kBFloat16));

// [rows, bytes] of one head into its column of [rows, heads, bytes].
void Place(const void* rows, int64_t count, int head, int heads, size_t bytes, void* out) {
  for (int64_t r = 0; r < count; ++r) {
    std::copy_n(static_cast<const uint8_t*>(rows) + r * bytes, bytes,
                static_cast<uint8_t*>(out) + (r * heads + head) * bytes);
  }
}

absl::StatusOr<LayerTokens> Load(const ShardedBenchOptions& o) {
  DatasetOptions options;
  options.trace = o.trace;
  options.values = true;
  options.num_queries = o.steps;
  if (o.layer >= 0) options.layers = {o.layer};
  auto data = Dataset::Open(options);
  if (!data.ok()) return data.status();
  LayerTokens out;
  out.info = (*data)->info();
  const int heads = out.info.num_kv_heads, dim = out.info.head_dim;
  const int first = out.info.num_heads() - heads;
  for (int h = 0; h < heads; ++h) {
    const absl::StatusOr<Head> head = (*data)->Load(first + h);
    if (!head.ok()) return head.status();
    const size_t row = head->tokens.size() / head->num_tokens, asked = size_t{4} * out.info.group * dim;
    out.questions = static_cast<int64_t>(head->queries.size() * 4 / asked);
    out.keys.resize(head->tokens.size() * heads);
    out.values.resize(out.keys.size());
    out.queries.resize(head->queries.size() * heads);
    Place(head->tokens.data(), head->num_tokens, h, heads, row, out.keys.data());
    Place(head->values.data(), head->num_tokens, h, heads, row, out.values.data());
    Place(head->queries.data(), out.questions, h, heads, asked, out.queries.data());
  }
  return out;
}

v1::IndexSpec SpecOf(const LayerTokens& layer, const std::string& name) {
  v1::IndexSpec spec;
  spec.set_name(name);
  const DatasetInfo& info = layer.info;
  *spec.mutable_geometry() =
      client::MakeGeometry(1, layer.q_heads(), info.num_kv_heads, info.head_dim, layer.Tensor(layer.keys).dtype);
  spec.mutable_zones()->set_sink(64);
  spec.mutable_zones()->set_local(512);
  spec.mutable_zones()->set_update_buffer(64);
  spec.set_kv_store(v1::KV_STORE_KEYS_VALUES);
  spec.mutable_codec()->set_name("rsq");
  return spec;
}

// Mean over heads of |got - want| / |want|.
double ErrorOf(const Attended& got, const Attended& want) {
  double sum = 0;
  for (int h = 0; h < want.num_q_heads; ++h) {
    double off = 0, all = 0;
    for (int j = 0; j < want.head_dim; ++j) {
      const double w = want.head(h)[j], d = got.head(h)[j] - w;
      off += d * d, all += w * w;
    }
    sum += std::sqrt(off / all);
  }
  return sum / want.num_q_heads;
}

double LargestDifference(const Attended& a, const Attended& b) {
  double most = 0;
  for (size_t i = 0; i < a.output.size(); ++i) most = std::max(most, std::abs(double{a.output[i]} - b.output[i]));
  return most;
}

template <typename Call>
auto Timed(std::vector<double>* us, Call call) {
  const auto begin = std::chrono::steady_clock::now();
  auto result = call();
  us->push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  return result;
}

// The layer whole on the first server.
class OneNode {
 public:
  absl::Status Start(client::Client* client, const LayerTokens& layer, const std::string& name) {
    client_ = client;
    layer_ = &layer;
    auto index = client->CreateIndex(SpecOf(layer, name));
    if (!index.ok()) return index.status();
    auto sequence = client->CreateSequence(name, "one");
    if (!sequence.ok()) return sequence.status();
    sequence_ = *std::move(sequence);
    auto appended = client->AppendStream({{sequence_, 0, 0, layer.Tensor(layer.keys), layer.Tensor(layer.values)}});
    if (!appended.ok()) return appended.status();
    auto stream = client->OpenDecodeStream(client::Transport::kBlocking);
    if (!stream.ok()) return stream.status();
    stream_ = *std::move(stream);
    return absl::OkStatus();
  }
  absl::StatusOr<Attended> Attend(int64_t question, int top_k, bool exact) {
    client::DecodeStep step;
    step.items = {{sequence_, 0, layer_->Query(question)}};
    step.selector.set_top_k(top_k);
    step.selector.set_exact(exact);
    step.selector.set_scope(v1::SCOPE_PER_Q_HEAD);
    step.attention = v1::Attention{};
    client::DecodeAnswer answer;
    absl::Status status = stream_->Write(step);
    if (status.ok()) status = stream_->Read(&answer);
    if (status.ok()) status = answer.status;
    if (status.ok()) status = answer.attended[0].status;
    if (!status.ok()) return status;
    return std::move(answer.attended[0]);
  }

 private:
  client::Client* client_ = nullptr;
  const LayerTokens* layer_ = nullptr;
  client::Sequence sequence_;
  std::unique_ptr<client::DecodeStream> stream_;
};

// One question, asked in every way.
absl::Status Ask(const ShardedBenchOptions& o, const LayerTokens& layer, int64_t i, OneNode* node,
                 client::ShardedSequence* striped, ShardedPoint* point) {
  v1::Selector selector, exact;
  selector.set_top_k(o.top_k);
  exact.set_top_k(o.top_k);
  exact.set_exact(true);
  const auto got = Timed(&point->step_us, [&] { return striped->Attend(0, layer.Query(i), selector); });
  if (!got.ok()) return got.status();
  const auto found = Timed(&point->exact_us, [&] { return striped->Attend(0, layer.Query(i), exact); });
  if (!found.ok()) return found.status();
  const auto node_exact = node->Attend(i, o.top_k, true);
  const auto dense = node->Attend(i, static_cast<int>(layer.info.num_tokens), true);
  const auto usual = Timed(&point->node_us, [&] { return node->Attend(i, o.top_k, false); });
  if (!node_exact.ok() || !dense.ok() || !usual.ok()) return usual.status();
  // As many tokens on one node as the shards attended together.
  const auto more = (got->attended_tokens - usual->attended_tokens) / got->num_q_heads;
  const auto as_many = node->Attend(i, o.top_k + static_cast<int>(more), false);
  if (!as_many.ok()) return as_many.status();
  point->attended += static_cast<double>(got->attended_tokens) / got->num_q_heads;
  point->error += ErrorOf(*got, *dense);
  point->node_error += ErrorOf(*usual, *dense);
  point->node_error_as_many += ErrorOf(*as_many, *dense);
  point->merge_error = std::max(point->merge_error, LargestDifference(*found, *node_exact));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ShardedBenchResult> MeasureSharded(const ShardedBenchOptions& o) {
  const absl::StatusOr<LayerTokens> layer = Load(o);
  if (!layer.ok()) return layer.status();
  std::vector<std::unique_ptr<client::Client>> servers;
  for (const std::string& endpoint : o.endpoints) {
    auto client = client::Client::Connect(
        endpoint, {.connect_timeout = absl::Seconds(20), .wait_for_server = o.wait_for_server, .security = o.security});
    if (!client.ok()) return client.status();
    servers.push_back(*std::move(client));
  }
  ShardedBenchResult result = {layer->info.source,       layer->info.num_tokens, layer->q_heads(),
                               layer->info.num_kv_heads, layer->info.head_dim,   {}};
  OneNode node;
  if (absl::Status s = node.Start(servers[0].get(), *layer, "bench-one"); !s.ok()) return s;
  Progress progress(static_cast<int64_t>(o.shards.size()) * layer->questions);
  for (const int count : o.shards) {
    std::vector<client::Client*> shards;
    for (int s = 0; s < count; ++s) shards.push_back(servers[s % servers.size()].get());
    const v1::IndexSpec spec = SpecOf(*layer, absl::StrCat("bench-", count));
    auto striped =
        client::ShardedSequence::Create(shards, spec, absl::StrCat("s", count),
                                        {.run = o.run, .full_top_k = o.full_top_k, .choose_first = o.choose_first});
    if (!striped.ok()) return striped.status();
    auto appended = (*striped)->Append(0, 0, layer->Tensor(layer->keys), layer->Tensor(layer->values));
    if (!appended.ok()) return appended.status();
    ShardedPoint& point = result.points.emplace_back();
    point.shards = count;
    for (int64_t i = 0; i < layer->questions; ++i) {
      if (absl::Status s = Ask(o, *layer, i, &node, striped->get(), &point); !s.ok()) return s;
      progress.Step(absl::StrCat(count, " shards"));
    }
    for (double* sum : {&point.attended, &point.error, &point.node_error, &point.node_error_as_many})
      *sum /= static_cast<double>(layer->questions);
    if (absl::Status s = (*striped)->Delete(); !s.ok()) return s;
    for (client::Client* shard : shards) {
      for (const char* rest : {"", ".rest"})
        shard->DeleteIndex(spec.name() + rest).IgnoreError();  // some have one alone
    }
  }
  if (absl::Status s = servers[0]->DeleteIndex("bench-one"); !s.ok()) return s;
  return result;
}

}  // namespace seine::bench
