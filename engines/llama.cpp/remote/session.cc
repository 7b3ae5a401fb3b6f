// A session over the C++ client's calls and decode stream. All of libggml-seine-remote.so that is not the client.
#include "engines/llama.cpp/remote/session.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
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
  spec.mutable_retrieval()->set_candidate_fraction(c.beta);
  spec.mutable_retrieval()->set_rescore_k(c.refine);
  spec.mutable_retrieval()->set_softmax_scale(c.scale);
  spec.mutable_retrieval()->set_gate(c.gate);
  spec.set_kv_store(v1::KV_STORE_KEYS_VALUES);
  // Names an index by its settings and layers, so that all sequences found in it can be asked. Layers that slide may
  // be as many as the others, with the same settings.
  const std::string told = absl::StrCat(spec.SerializeAsString(), absl::StrJoin(c.layers, ","));
  spec.set_name(c.index.empty() ? NewName() : absl::StrFormat("%s-%016x", c.index, std::hash<std::string>()(told)));
  return spec;
}

class ClientSession final : public Session {
 public:
  explicit ClientSession(const SessionConfig& config) : config_(config) {}

  ~ClientSession() override {
    stream_.reset();
    if (!own_index_.empty())
      client_->DeleteIndex(own_index_).IgnoreError();  // of a server that is gone nothing is left
  }

  absl::Status Open() {
    absl::StatusOr<std::unique_ptr<client::Client>> connected =
        client::Client::Connect(config_.endpoint, {.timeout = kTimeout, .security = client::SecurityFromEnvironment()});
    if (!connected.ok()) return connected.status();
    client_ = *std::move(connected);
    absl::StatusOr<v1::GetServerInfoResponse> server = client_->GetServerInfo();
    if (!server.ok()) return server.status();
    most_rows_ = std::max<int64_t>(1, server->max_message_bytes() / 2 / (2 * RowBytes()));
    const v1::IndexSpec spec = SpecOf(config_);
    index_ = spec.name();
    const absl::Status made = client_->CreateIndex(spec).status();
    if (!made.ok() && !(absl::IsAlreadyExists(made) && !config_.index.empty())) return made;
    if (config_.index.empty()) own_index_ = index_;
    if (absl::Status status = CheckSoftcap(server->version()); !status.ok()) return status;
    if (absl::Status status = FindSequences(); !status.ok()) return status;
    return OpenStream();
  }

  const std::vector<FoundSequence>& found() const override { return found_; }

  absl::StatusOr<int> Create() override {
    absl::StatusOr<client::Sequence> made = client_->CreateSequence(index_, "");
    if (!made.ok()) return made.status();
    return Number(*std::move(made));
  }

  absl::StatusOr<int> Fork(int sequence, int64_t position) override {
    if (absl::Status status = Settle(); !status.ok()) return status;
    absl::StatusOr<client::Sequence> made = client_->ForkSequence(sequences_.at(sequence), "", position);
    if (!made.ok()) return made.status();
    return Number(*std::move(made));
  }

  absl::Status Truncate(int sequence, int64_t position) override {
    if (absl::Status status = Settle(); !status.ok()) return status;
    return client_->TruncateSequence(sequences_.at(sequence), position).status();
  }

  void Delete(int sequence) override {
    client_->DeleteSequence(sequences_.at(sequence)).IgnoreError();  // one that is gone needs no deletion
    sequences_.erase(sequence);
  }

  absl::Status Read(int sequence, int layer, int64_t position, int64_t count, std::string* keys,
                    std::string* values) override {
    const Geometry& g = config_.geometry;
    const auto row = static_cast<size_t>(RowBytes()), part = row / g.num_kv_heads;
    keys->resize(count * row), values->resize(count * row);
    for (int64_t done = 0; done < count; done += most_rows_) {
      std::vector<int32_t> positions(std::min(most_rows_, count - done));
      std::iota(positions.begin(), positions.end(), static_cast<int32_t>(position + done));
      for (int head = 0; head < g.num_kv_heads; ++head) {
        const absl::StatusOr<client::Gathered> rows =
            client_->Gather(sequences_.at(sequence), layer, head, positions, /*keys=*/true, /*values=*/true);
        if (!rows.ok()) return rows.status();
        if (rows->keys.size() != positions.size() * part || rows->values.size() != rows->keys.size()) {
          return absl::InternalError("the server gathered rows in another shape");
        }
        for (size_t i = 0; i < positions.size(); ++i) {
          const size_t at = (done + i) * row + head * part;
          std::copy_n(rows->keys.data() + i * part, part, keys->data() + at);
          std::copy_n(rows->values.data() + i * part, part, values->data() + at);
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status Append(int sequence, int layer, int64_t position, int64_t count, const void* keys,
                      const void* values) override {
    step_.items.clear();
    step_.attention.reset();
    for (int64_t done = 0; done < count; done += most_rows_) {
      const int64_t rows = std::min(most_rows_, count - done);
      step_.appends.clear();
      AddRows(sequence, layer, position + done, rows, static_cast<const char*>(keys) + done * RowBytes(),
              static_cast<const char*>(values) + done * RowBytes());
      if (absl::Status status = Write({{.sequence = sequence}}); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Attend(int layer, const std::vector<AttendItem>& items, int top_k) override {
    const Geometry& g = config_.geometry;
    step_.appends.clear();
    step_.items.clear();
    for (const AttendItem& item : items) {
      AddRows(item.sequence, layer, item.position, 1, item.key, item.value);
      step_.items.push_back(
          {sequences_.at(item.sequence), layer, {item.queries, client::DType::kFloat32, {g.num_q_heads, g.head_dim}}});
      counts_.bytes += int64_t{g.num_q_heads} * g.head_dim * static_cast<int64_t>(sizeof(float));
    }
    step_.selector.set_top_k(top_k);
    if (!step_.attention) {
      step_.attention.emplace().set_tail(config_.tail);
      step_.attention->set_softcap(config_.softcap);
    }
    return Write(items);
  }

  absl::Status Settle() override {
    const absl::Status status = ReadUntil(0);
    return broken_.ok() ? std::exchange(failed_, absl::OkStatus()) : status;
  }

  int failed() const override { return failed_sequence_; }
  bool is_broken() const override { return !broken_.ok(); }

  SessionBytes bytes() override {
    const absl::StatusOr<v1::IndexInfo> index = client_->GetIndex(index_);
    return index.ok() ? SessionBytes{index->code_bytes(), index->store_bytes()} : SessionBytes{};
  }
  const SessionCounts& counts() const override { return counts_; }

 private:
  int Number(client::Sequence sequence) {
    sequences_[++last_] = std::move(sequence);
    return last_;
  }

  absl::Status FindSequences() {
    if (config_.index.empty()) return absl::OkStatus();
    absl::StatusOr<std::vector<client::SequenceInfo>> list = client_->ListSequences(index_);
    if (!list.ok()) return list.status();
    for (client::SequenceInfo& info : *list) {
      const auto least = std::min_element(info.layer_tokens.begin(), info.layer_tokens.end());
      if (least == info.layer_tokens.end() || *least == 0) continue;
      found_.push_back({Number(std::move(info.handle)), *least});
    }
    return absl::OkStatus();
  }

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
    const absl::StatusOr<int> sequence = Create();
    if (!sequence.ok()) return sequence.status();
    const client::RetrieveItem item = {
        sequences_.at(*sequence), 0, {queries.data(), client::DType::kFloat32, {g.num_q_heads, g.head_dim}}};
    const absl::Status status = client_->Attend({item}, selector, wrong).status();
    Delete(*sequence);
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

  void AddRows(int sequence, int layer, int64_t position, int64_t count, const void* keys, const void* values) {
    const Geometry& g = config_.geometry;
    const client::Shape shape = {count, g.num_kv_heads, g.head_dim};
    const client::DType dtype = DTypeOf(g.dtype);
    step_.appends.push_back({sequences_.at(sequence), layer, position, {keys, dtype, shape}, {values, dtype, shape}});
    counts_.bytes += 2 * count * RowBytes();
  }

  // `takers`: where the answer goes; one without an output is of rows alone.
  absl::Status Write(std::vector<AttendItem> takers) {
    if (absl::Status status = ReadUntil(kMostUnread - 1); !status.ok()) return status;
    if (unread_.empty() && std::chrono::steady_clock::now() - used_ > kIdle) {
      if (absl::Status opened = OpenStream(); !opened.ok()) return broken_ = opened;
    }
    ++step_.step;
    ++counts_.steps;
    if (!counts_.why_grpc.empty()) ++counts_.grpc_steps;
    if (absl::Status status = stream_->Write(step_); !status.ok()) return broken_ = status;
    unread_.push_back(std::move(takers));
    return absl::OkStatus();
  }

  // The first error of a step ends no reading: the others' answers are taken.
  absl::Status ReadUntil(size_t most_unread) {
    if (!broken_.ok()) return broken_;
    if (unread_.size() <= most_unread) return failed_;
    const auto begin = std::chrono::steady_clock::now();
    while (broken_.ok() && unread_.size() > most_unread) {
      int of = 0;
      const absl::Status status = ReadOne(&of);
      if (failed_.ok() && !status.ok()) failed_ = status, failed_sequence_ = of;
    }
    used_ = std::chrono::steady_clock::now();
    counts_.waiting_ns += std::chrono::nanoseconds(used_ - begin).count();
    return broken_.ok() ? failed_ : broken_;
  }

  // `of`: the sequence of the error, where it is of one.
  absl::Status ReadOne(int* of) {
    if (broken_ = stream_->Read(&answer_); !broken_.ok()) return broken_;
    const std::vector<AttendItem> takers = std::move(unread_.front());
    unread_.pop_front();
    if (!answer_.status.ok()) return answer_.status;
    for (size_t i = 0; i < std::min(takers.size(), answer_.append_status.size()); ++i) {
      *of = takers[i].sequence;
      if (!answer_.append_status[i].ok()) return answer_.append_status[i];
    }
    if (takers.front().output == nullptr) return absl::OkStatus();
    *of = 0;
    if (answer_.attended.size() != takers.size())
      return absl::InternalError("the server did not answer a step's items");
    const Geometry& g = config_.geometry;
    for (size_t i = 0; i < takers.size(); ++i) {
      const client::Attended& attended = answer_.attended[i];
      *of = takers[i].sequence;
      if (!attended.status.ok()) return attended.status;
      if (attended.output.size() != static_cast<size_t>(g.num_q_heads) * g.head_dim ||
          attended.log_sum_exp.size() != static_cast<size_t>(g.num_q_heads)) {
        return absl::InternalError("the server answered a step in another shape");
      }
      std::copy(attended.output.begin(), attended.output.end(), takers[i].output);
      std::copy(attended.log_sum_exp.begin(), attended.log_sum_exp.end(), takers[i].log_sum_exp);
    }
    return absl::OkStatus();
  }

  const SessionConfig config_;
  std::unique_ptr<client::Client> client_;
  std::string index_, own_index_;  // own_index_: that it deletes; empty: none
  std::map<int, client::Sequence> sequences_;
  int last_ = 0, failed_sequence_ = 0;  // numbers
  std::vector<FoundSequence> found_;
  std::unique_ptr<client::DecodeStream> stream_;
  std::chrono::steady_clock::time_point used_;  // when an answer was last waited for
  int64_t most_rows_ = 1;                       // of a message
  client::DecodeStep step_;
  client::DecodeAnswer answer_;
  std::deque<std::vector<AttendItem>> unread_;  // of each step, where its answer goes
  absl::Status failed_, broken_;  // failed_: the first error of a step since Settle; broken_: the stream's
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
