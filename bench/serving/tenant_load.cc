// See tenant_load.h.
#include "bench/serving/tenant_load.h"
#include "client/settings.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace seine::bench {
namespace {

using Clock = std::chrono::steady_clock;

client::ConstTensor KeysAt(const Tokens& tokens, const TenantGeometry& g, int64_t position, int64_t count) {
  return {&tokens.keys[position * tokens.key_bytes], client::DType::kFloat16, {count, g.num_kv_heads, g.head_dim}};
}

absl::Status MakeIndex(client::Client* client, const std::string& name, const TenantGeometry& g) {
  v1::IndexSpec spec;
  spec.set_name(name);
  *spec.mutable_geometry() =
      client::MakeGeometry(1, g.num_kv_heads * g.group, g.num_kv_heads, g.head_dim, client::DType::kFloat16);
  const absl::Status made = client->CreateIndex(spec).status();
  return absl::IsAlreadyExists(made) ? absl::OkStatus() : made;
}

void Note(const absl::Status& status, LoadResult* result) {
  if (absl::IsResourceExhausted(status)) {
    ++result->refused;
  } else if (!status.ok() && result->first_error.empty()) {
    result->first_error = std::string(status.message());
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<client::Client>> ConnectAs(const std::string& endpoint, const std::string& token) {
  client::Options options;
  options.wait_for_server = true;
  options.security.token = token;
  return client::Client::Connect(endpoint, options);
}

void LoadResult::Add(const LoadResult& o) {
  us.insert(us.end(), o.us.begin(), o.us.end());
  sent += o.sent;
  refused += o.refused;
  tokens += o.tokens;
  seconds = std::max(seconds, o.seconds);
  if (first_error.empty()) first_error = o.first_error;
}

absl::StatusOr<std::unique_ptr<StepStream>> StepStream::Open(const std::string& endpoint, const std::string& token,
                                                             const std::string& index, const TenantGeometry& geometry,
                                                             const Tokens& tokens, uint64_t seed) {
  std::unique_ptr<StepStream> out(new StepStream(geometry, tokens, seed));
  auto connected = ConnectAs(endpoint, token);
  if (!connected.ok()) return connected.status();
  out->client_ = *std::move(connected);
  if (auto s = MakeIndex(out->client_.get(), index, geometry); !s.ok()) return s;
  auto sequence = out->client_->CreateSequence(index, "");
  if (!sequence.ok()) return sequence.status();
  out->sequence_ = *sequence;
  const client::AppendItem all = {out->sequence_, 0, 0, KeysAt(tokens, geometry, 0, geometry.num_keys), {}};
  if (auto totals = out->client_->AppendStream({&all, 1}); !totals.ok()) return totals.status();
  out->position_ = geometry.num_keys;
  auto stream = out->client_->OpenDecodeStream(client::Transport::kBlocking);
  if (!stream.ok()) return stream.status();
  out->stream_ = *std::move(stream);
  out->request_.selector.set_top_k(geometry.top_k);
  return out;
}

absl::Status StepStream::Step() {
  const auto held = static_cast<int64_t>(tokens_.keys.size() / tokens_.key_bytes);
  const auto steps = static_cast<int64_t>(tokens_.queries.size() / tokens_.query_bytes);
  ++request_.step;
  request_.appends.assign(1, {sequence_, 0, position_, KeysAt(tokens_, geometry_, position_ % held, 1), {}});
  request_.items.assign(1, {sequence_,
                            0,
                            {&tokens_.queries[position_ % steps * tokens_.query_bytes],
                             client::DType::kFloat16,
                             {geometry_.num_kv_heads * geometry_.group, geometry_.head_dim}}});
  absl::Status ended = stream_->Write(request_);
  if (ended.ok()) ended = stream_->Read(&answer_);
  if (!ended.ok()) {
    broken_ = true;
    return ended;
  }
  if (!answer_.status.ok()) return answer_.status;
  if (!answer_.append_status.front().ok()) return answer_.append_status.front();
  ++position_;
  return answer_.answers.front().status;
}

LoadResult StepStream::Run(double steps_per_second, Clock::time_point end) {
  std::exponential_distribution<double> seconds(steps_per_second);
  const auto gap = [&] {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds(random_)));
  };
  LoadResult result;
  const Clock::time_point first = Clock::now();
  for (auto next = first + gap(); next < end && !broken_; next = std::max(next + gap(), Clock::now())) {
    std::this_thread::sleep_until(next);
    const Clock::time_point begin = Clock::now();
    const absl::Status status = Step();
    ++result.sent;
    if (status.ok()) result.us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    Note(status, &result);
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - first).count();
  return result;
}

LoadResult RunPrefills(const std::string& endpoint, const std::string& token, const std::string& index,
                       const TenantGeometry& geometry, const Tokens& tokens, int64_t tokens_each,
                       Clock::time_point end) {
  LoadResult result;
  auto client = ConnectAs(endpoint, token);
  Note(client.status(), &result);
  if (!client.ok()) return result;
  Note(MakeIndex(client->get(), index, geometry), &result);
  std::vector<client::Sequence> made;
  const auto delete_all = [&] {
    for (const client::Sequence& sequence : made) Note((*client)->DeleteSequence(sequence), &result);
    made.clear();
  };
  const Clock::time_point first = Clock::now();
  while (Clock::now() < end && result.first_error.empty()) {
    auto sequence = (*client)->CreateSequence(index, "");
    Note(sequence.status(), &result);
    if (!sequence.ok()) {
      delete_all();
      continue;
    }
    made.push_back(*sequence);
    const client::AppendItem item = {*sequence, 0, 0, KeysAt(tokens, geometry, 0, tokens_each), {}};
    auto totals = (*client)->AppendStream({&item, 1});
    ++result.sent;
    Note(totals.status(), &result);
    if (totals.ok()) result.tokens += tokens_each;
    if (absl::IsResourceExhausted(totals.status())) delete_all();
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - first).count();
  delete_all();
  return result;
}

}  // namespace seine::bench
