// A session over the C++ client's decode stream. All of libggml-seine-remote.so that is not the client.
#include "engines/llama.cpp/remote/session.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/settings.h"
#include "engines/llama.cpp/settings.h"

namespace seine::llama {

namespace {

constexpr client::Transport kTransport = client::Transport::kAuto;
constexpr absl::Duration kTimeout = absl::Seconds(20);  // of calls but the stream
// The server drops a stream whose client does not answer its pings for 18 s, and only a client that waits answers them.
constexpr auto kIdle = std::chrono::seconds(8);
constexpr size_t kMostUnread = 8;  // answers: the server stops reading while they are not taken

client::DType DTypeOf(DType dtype) {
  return dtype == DType::kBFloat16 ? client::DType::kBFloat16 : client::DType::kFloat16;
}

// Nobody else's, also where several programs serve one model from several machines.
std::string NewName() {
  std::random_device random;
  return absl::StrFormat("llama.cpp-%08x%08x", random(), random());
}

void StateRope(const Rope& rope, v1::Rope* wire) {
  wire->set_style(rope.style == Rope::Style::kInterleaved ? v1::ROPE_STYLE_INTERLEAVED : v1::ROPE_STYLE_HALF_SPLIT);
  wire->mutable_inv_freq()->Assign(rope.inv_freq.begin(), rope.inv_freq.end());
  wire->set_rotary_dim(rope.rotary_dim);
}

v1::IndexSpec SpecOf(const SessionConfig& c) {
  const Geometry& g = c.geometry;
  v1::IndexSpec spec;
  spec.set_name(NewName());
  *spec.mutable_geometry() =
      client::MakeGeometry(g.num_layers, g.num_q_heads, g.num_kv_heads, g.head_dim, DTypeOf(g.dtype));
  if (g.rope.stated()) StateRope(g.rope, spec.mutable_geometry()->mutable_rope());
  for (const auto& [layer, rope] : g.layer_ropes) {
    v1::LayerRope* const own = spec.mutable_geometry()->add_layer_ropes();
    own->add_layers(layer);
    StateRope(rope, own->mutable_rope());
  }
  spec.mutable_zones()->set_sink(c.sink);
  spec.mutable_zones()->set_local(c.local);
  spec.mutable_zones()->set_update_buffer(64);  // a window: as the plug-in's own index
  spec.mutable_zones()->set_dense_threshold(static_cast<int>(c.dense_tokens));
  spec.mutable_codec()->set_profile(c.profile);
  if (!c.profile.empty()) {
    const CodeBits bits = CodeBitsOf(g.head_dim);
    spec.mutable_codec()->set_coarse_bits(bits.coarse);
    spec.mutable_codec()->set_total_bits(bits.total);
  }
  spec.mutable_retrieval()->set_beta(c.beta);
  spec.mutable_retrieval()->set_refine(c.refine);
  spec.mutable_retrieval()->set_softmax_scale(c.scale);
  spec.mutable_retrieval()->set_gate(c.gate);
  spec.set_kv_store(v1::KV_STORE_KEYS_VALUES);
  return spec;
}

class ClientSession final : public Session {
 public:
  explicit ClientSession(const SessionConfig& config) : config_(config) {}

  ~ClientSession() override {
    stream_.reset();
    if (!index_.empty()) client_->DeleteIndex(index_).IgnoreError();  // of a server that is gone nothing is left
  }

  absl::Status Open() {
    absl::StatusOr<std::unique_ptr<client::Client>> connected =
        client::Client::Connect(config_.endpoint, {.timeout = kTimeout, .security = client::SecurityFromEnvironment()});
    if (!connected.ok()) return connected.status();
    client_ = *std::move(connected);
    absl::StatusOr<v1::GetServerInfoResponse> server = client_->GetServerInfo();
    if (!server.ok()) return server.status();
    most_rows_ = std::max<int64_t>(1, server->max_message_bytes() / 2 / (2 * RowBytes()));
    absl::StatusOr<v1::IndexInfo> made = client_->CreateIndex(SpecOf(config_));
    if (!made.ok()) return made.status();
    index_ = made->spec().name();
    absl::StatusOr<client::Sequence> sequence = client_->CreateSequence(index_, "");
    if (!sequence.ok()) return sequence.status();
    sequence_ = *std::move(sequence);
    if (absl::Status status = CheckSoftcap(server->version()); !status.ok()) return status;
    return OpenStream();
  }

  absl::Status Append(int layer, int64_t position, int64_t count, const void* keys, const void* values) override {
    step_.items.clear();
    step_.attention.reset();
    for (int64_t done = 0; done < count; done += most_rows_) {
      const int64_t rows = std::min(most_rows_, count - done);
      SetRows(layer, position + done, rows, static_cast<const char*>(keys) + done * RowBytes(),
              static_cast<const char*>(values) + done * RowBytes());
      if (absl::Status status = Write({}); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Attend(int layer, int64_t position, const void* key, const void* value, const float* queries, int top_k,
                      float* out, float* log_sum_exp) override {
    const Geometry& g = config_.geometry;
    SetRows(layer, position, 1, key, value);
    step_.items = {{sequence_, layer, {queries, client::DType::kFloat32, {g.num_q_heads, g.head_dim}}}};
    step_.selector.set_top_k(top_k);
    if (!step_.attention) {
      step_.attention.emplace().set_tail(config_.tail);
      step_.attention->set_softcap(config_.softcap);
    }
    counts_.bytes += int64_t{g.num_q_heads} * g.head_dim * static_cast<int64_t>(sizeof(float));
    return Write({out, log_sum_exp});
  }

  absl::Status Settle() override { return ReadUntil(0); }

  absl::Status Truncate(int64_t position) override {
    if (absl::Status status = Settle(); !status.ok()) return status;
    return client_->TruncateSequence(sequence_, position).status();
  }

  SessionBytes bytes() override {
    const absl::StatusOr<v1::IndexInfo> index = client_->GetIndex(index_);
    return index.ok() ? SessionBytes{index->code_bytes(), index->store_bytes()} : SessionBytes{};
  }
  const SessionCounts& counts() const override { return counts_; }

 private:
  // Where an answer goes; nullptr: it is of rows alone.
  struct Taker {
    float* output = nullptr;
    float* log_sum_exp = nullptr;
  };

  // A server that does not know the field passes over it, as protobuf has it, and would answer without the cap: so it
  // is asked with one that is refused by whoever knows it.
  absl::Status CheckSoftcap(const std::string& version) {
    if (config_.softcap == 0) return absl::OkStatus();
    const Geometry& g = config_.geometry;
    const std::vector<float> queries(static_cast<size_t>(g.num_q_heads) * g.head_dim);
    v1::Selector selector;
    selector.set_top_k(1);
    v1::Attention wrong;
    wrong.set_softcap(-1);
    const client::RetrieveItem item = {
        sequence_, 0, {queries.data(), client::DType::kFloat32, {g.num_q_heads, g.head_dim}}};
    const absl::Status status = client_->Attend({item}, selector, wrong).status();
    if (absl::IsInvalidArgument(status) && absl::StrContains(status.message(), "softcap")) return absl::OkStatus();
    if (!status.ok()) return status;
    return absl::FailedPreconditionError(absl::StrCat("seined ", version, " is too old for a soft cap of logits"));
  }

  absl::Status OpenStream() {
    stream_.reset();
    absl::StatusOr<std::unique_ptr<client::DecodeStream>> stream = client_->OpenDecodeStream(kTransport);
    if (!stream.ok()) return stream.status();
    stream_ = *std::move(stream);
    counts_.why_grpc = stream_->fallback();
    used_ = std::chrono::steady_clock::now();
    return absl::OkStatus();
  }

  int64_t RowBytes() const {
    const Geometry& g = config_.geometry;
    return int64_t{g.num_kv_heads} * g.head_dim * static_cast<int64_t>(SizeOf(g.dtype));
  }

  void SetRows(int layer, int64_t position, int64_t count, const void* keys, const void* values) {
    const Geometry& g = config_.geometry;
    const client::Shape shape = {count, g.num_kv_heads, g.head_dim};
    const client::DType dtype = DTypeOf(g.dtype);
    step_.appends = {{sequence_, layer, position, {keys, dtype, shape}, {values, dtype, shape}}};
    counts_.bytes += 2 * count * RowBytes();
  }

  absl::Status Write(const Taker& taker) {
    if (absl::Status status = ReadUntil(kMostUnread - 1); !status.ok()) return status;
    if (unread_.empty() && std::chrono::steady_clock::now() - used_ > kIdle) {
      if (absl::Status opened = OpenStream(); !opened.ok()) return opened;
    }
    ++step_.step;
    ++counts_.steps;
    if (!counts_.why_grpc.empty()) ++counts_.grpc_steps;
    if (absl::Status status = stream_->Write(step_); !status.ok()) return status;
    unread_.push_back(taker);
    return absl::OkStatus();
  }

  absl::Status ReadUntil(size_t most_unread) {
    if (unread_.size() <= most_unread) return absl::OkStatus();
    const auto begin = std::chrono::steady_clock::now();
    absl::Status status;
    while (status.ok() && unread_.size() > most_unread) status = ReadOne();
    used_ = std::chrono::steady_clock::now();
    counts_.waiting_ns += std::chrono::nanoseconds(used_ - begin).count();
    return status;
  }

  absl::Status ReadOne() {
    absl::Status status = stream_->Read(&answer_);
    const Taker taker = unread_.front();
    unread_.pop_front();
    if (status.ok()) status = answer_.status;
    if (status.ok() && answer_.append_status.size() == 1) status = answer_.append_status[0];
    if (!status.ok() || taker.output == nullptr) return status;
    if (answer_.attended.size() != 1) return absl::InternalError("the server did not answer a step's item");
    const client::Attended& attended = answer_.attended[0];
    if (!attended.status.ok()) return attended.status;
    const Geometry& g = config_.geometry;
    if (attended.output.size() != static_cast<size_t>(g.num_q_heads) * g.head_dim ||
        attended.log_sum_exp.size() != static_cast<size_t>(g.num_q_heads)) {
      return absl::InternalError("the server answered a step in another shape");
    }
    std::copy(attended.output.begin(), attended.output.end(), taker.output);
    std::copy(attended.log_sum_exp.begin(), attended.log_sum_exp.end(), taker.log_sum_exp);
    return absl::OkStatus();
  }

  const SessionConfig config_;
  std::unique_ptr<client::Client> client_;
  std::string index_;  // empty: none was made
  client::Sequence sequence_;
  std::unique_ptr<client::DecodeStream> stream_;
  std::chrono::steady_clock::time_point used_;  // when an answer was last waited for
  int64_t most_rows_ = 1;                       // of a message
  client::DecodeStep step_;
  client::DecodeAnswer answer_;
  std::deque<Taker> unread_;
  SessionCounts counts_;
};

}  // namespace

}  // namespace seine::llama

extern "C" __attribute__((visibility("default"))) absl::Status SeineOpenSession(
    const seine::llama::SessionConfig& config, std::unique_ptr<seine::llama::Session>* session) {
  auto made = std::make_unique<seine::llama::ClientSession>(config);
  absl::Status status = made->Open();
  if (status.ok()) *session = std::move(made);
  return status;
}
