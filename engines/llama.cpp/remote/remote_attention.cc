// Plans a block of tokens at its first layer, then sends each layer's rows and queries.
#include "engines/llama.cpp/remote/remote_attention.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engines/llama.cpp/report.h"
#include "engines/llama.cpp/settings.h"

namespace seine::llama {

namespace {

const char* RowAt(const ggml_tensor* cache, int64_t cell) {
  return static_cast<const char*>(cache->data) + cell * cache->nb[1];
}

int64_t CountCells(const std::vector<CellRun>& runs) {
  int64_t count = 0;
  for (const CellRun& run : runs) count += run.end - run.begin;
  return count;
}

std::string TextOf(const absl::Status& status) {
  return absl::StrCat("the server: ", absl::StatusCodeToString(status.code()), ": ", status.message());
}

}  // namespace

RemoteAttention::~RemoteAttention() {
  if (session_ != nullptr) {
    const SessionBytes bytes = session_->bytes();
    Report::Get().Bytes(bytes.codes, bytes.rows);
  }
  StopListening(this);
  for (const auto& [rows, cells] : caches_) Forget(rows);
}

void RemoteAttention::ReadBlock(const ggml_tensor* node, int layer) {
  const ggml_tensor *rows = node->src[0], *indices = node->src[1];
  const int64_t count = rows->ne[1];
  std::vector<int64_t> cells(count);
  for (int64_t i = 0; i < count; ++i) cells[i] = RowIndex(indices, i);
  const bool next = layer > layer_ && cells == block_.cells;
  layer_ = layer;
  pending_ = true;
  if (next) return;
  block_ = {};
  block_.cells = std::move(cells);
  // They are read at the first layer: behind the last one's RoPE their memory may be another tensor's.
  const ggml_tensor* rope = FindRope(rows);
  const ggml_tensor* positions = rope == nullptr ? nullptr : rope->src[1];
  if (positions == nullptr || positions->type != GGML_TYPE_I32 || positions->ne[0] != count || !IsOnHost(positions)) {
    return;
  }
  const auto* data = static_cast<const int32_t*>(positions->data);
  block_.positions.assign(data, data + count);
}

bool RemoteAttention::IsComplete(const AttentionNode& node) const {
  const std::vector<int64_t>& positions = block_.positions;
  if (node.mask == nullptr || node.mask->type != GGML_TYPE_F16 ||
      static_cast<int64_t>(positions.size()) != node.num_tokens * node.num_streams) {
    return false;
  }
  std::vector<CellRun> runs;
  for (int64_t i = 0; i < node.num_tokens * node.num_streams; ++i) {
    if (!node.CellsSeen(i % node.num_tokens, i / node.num_tokens, &runs)) return false;
    if (CountCells(runs) != positions[i] + 1) return false;
  }
  return true;
}

absl::Status RemoteAttention::Restart(const AttentionNode& node) {
  CacheFacts facts;
  if (!FindFacts(RootOf(node.keys)->data, &facts)) return absl::InternalError("a cache that was never planned for");
  lost_.clear();
  held_.Clear(facts.capacity);
  if (session_ != nullptr) {
    const absl::Status status = session_->Truncate(0);
    if (status.ok()) return status;
    session_.reset();  // the server may have been started anew
  }
  const Settings& s = settings();
  config_ = {.endpoint = s.endpoint,
             .geometry = {.num_layers = CountLayers(facts),
                          .num_q_heads = facts.num_q_heads,
                          .num_kv_heads = facts.num_kv_heads,
                          .head_dim = facts.head_dim,
                          .dtype = facts.key_type,
                          .rope = facts.rope},
             .scale = facts.scale,
             .profile = s.profile,
             .beta = s.beta,
             .refine = s.refine,
             .sink = s.sink,
             .local = s.local,
             .tail = s.tail,
             .dense_tokens = s.min_kv};
  counted_ = {};
  absl::StatusOr<std::unique_ptr<Session>> opened = OpenSession(config_);
  if (!opened.ok()) return opened.status();
  session_ = *std::move(opened);
  Report::Get().Uses("the server's", s.profile);
  if (s.log) {
    std::fprintf(stderr, "seine: %d layers are sent to %s\n", config_.geometry.num_layers, s.endpoint.c_str());
  }
  return absl::OkStatus();
}

bool RemoteAttention::ListenTo(const AttentionNode& node) {
  for (const ggml_tensor* cache : {RootOf(node.keys), RootOf(node.values)}) {
    const auto* rows = static_cast<const uint8_t*>(cache->data);
    const auto [at, is_new] = caches_.try_emplace(rows, Cells{cache->ne[1], cache->nb[1]});
    if (is_new && !Listen(cache->buffer, this)) return false;
  }
  return true;
}

void RemoteAttention::WritesOutside(const uint8_t* at, const uint8_t* data, size_t size) {
  for (const auto& [rows, cells] : caches_) {
    for (const auto& [begin, end] : ChangedCells(rows, cells.count, cells.bytes, at, data, size)) {
      for (int64_t cell = begin; cell < end; ++cell) held_.Lose(cell);
    }
  }
}

std::string RemoteAttention::CheckPast(const AttentionNode& node) const {
  const int64_t first = block_.positions[0];
  if (first == 0) return {};
  if (first > held_.length()) return "positions before these were never seen";
  // All that came before is in the rows of the last position. Other sequences have it in other cells, and what loads
  // them changes cells.
  const int64_t cell = held_.CellOf(first - 1);
  std::vector<CellRun> runs;
  bool seen = node.CellsSeen(0, 0, &runs);
  if (!seen) return "a mask that weighs cells";
  seen = std::any_of(runs.begin(), runs.end(), [&](const CellRun& r) { return r.begin <= cell && cell < r.end; });
  if (cell < 0 || !seen) return "the cell of the position before is not in the cache, and this may be another text";
  return {};
}

std::string RemoteAttention::CheckMask(const AttentionNode& node) const {
  std::vector<CellRun> runs;
  const int64_t first = block_.positions[0];
  int64_t cells = 0;
  for (int64_t t = 0; t < node.num_tokens; ++t) {
    if (!node.CellsSeen(t, 0, &runs)) return "a mask that weighs cells";
    const int64_t count = CountCells(runs);
    if (t == 0) cells = count;
    if (count != cells + t) return "layers that slide";
    for (const CellRun& run : runs) {
      for (int64_t cell = run.begin; cell < run.end; ++cell) {
        const int64_t position = held_.PositionIn(cell);
        if (position < 0) return "cells that the server does not have";
        if (position > first + t) return "tokens that see later ones";
      }
    }
  }
  return {};
}

std::string RemoteAttention::Plan(const AttentionNode& node) {
  if (!unfit_.empty()) return unfit_;
  const std::vector<int64_t>& positions = block_.positions;
  if (const char* why = node.Unfit()) return why;
  if (node.keys->type != node.values->type) return "keys and values of two types";
  if (IsQuantised(*RowTypeOf(node.keys))) return "a cache of another type than f16 or bf16";
  if (node.softcap != 0) return "a soft cap of logits";
  if (node.sinks != nullptr) return "attention sinks";
  if (positions.empty()) return "positions that cannot be read off the graph";
  if (node.num_streams != 1 || RootOf(node.keys)->ne[2] != 1) return "a cache of several streams";
  for (size_t i = 1; i < positions.size(); ++i) {
    if (positions[i] != positions[0] + static_cast<int64_t>(i)) return "tokens of several sequences in one batch";
  }
  if (positions[0] == 0) {
    if (absl::Status status = Restart(node); !status.ok()) return TextOf(status);
  }
  if (!lost_.empty()) return lost_;
  if (std::string why = CheckPast(node); !why.empty()) return why;
  if (positions[0] < held_.length()) {
    if (absl::Status status = session_->Truncate(positions[0]); !status.ok()) {
      session_.reset();
      return TextOf(status);
    }
    held_.Truncate(positions[0]);
  }
  for (const int64_t cell : block_.cells) held_.Append(cell);
  if (std::string why = CheckMask(node); !why.empty()) return why;
  block_.answered = !block_.complete || (node.num_tokens <= kMostTokens && positions.back() >= settings().min_kv - 1);
  return {};
}

std::string RemoteAttention::CheckLayer(const AttentionNode& node, int layer) const {
  if (RootOf(node.mask) != block_.mask) return "layers that slide";
  if (!pending_ || layer != layer_) return "layers that share a cache";
  const Geometry& g = config_.geometry;
  if (layer >= g.num_layers || node.num_q_heads != g.num_q_heads || node.num_kv_heads != g.num_kv_heads ||
      node.head_dim != g.head_dim || RowTypeOf(node.keys) != g.dtype || node.scale != config_.scale) {
    return "a layer of another shape than the first";
  }
  return {};
}

absl::Status RemoteAttention::Exchange(const AttentionNode& node, int layer) {
  const ggml_tensor *keys = RootOf(node.keys), *values = RootOf(node.values);
  const auto count = static_cast<int64_t>(block_.cells.size());
  const size_t row = size_t{2} * node.num_kv_heads * node.head_dim;
  keys_.resize(count * row);
  values_.resize(count * row);
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(keys_.data() + i * row, RowAt(keys, block_.cells[i]), row);
    std::memcpy(values_.data() + i * row, RowAt(values, block_.cells[i]), row);
  }
  if (!block_.answered) {
    const absl::Status status = session_->Append(layer, block_.positions[0], count, keys_.data(), values_.data());
    return status.ok() ? session_->Settle() : status;
  }
  queries_.resize(static_cast<size_t>(node.num_q_heads) * node.head_dim);
  for (int64_t t = 0; t < count; ++t) {  // each after its own row: it sees none of the later ones
    for (int head = 0; head < node.num_q_heads; ++head) {
      std::copy_n(node.Query(head, t, 0), node.head_dim, queries_.data() + head * node.head_dim);
    }
    absl::Status status = session_->Attend(layer, block_.positions[t], keys_.data() + t * row, values_.data() + t * row,
                                           queries_.data(), top_k(), node.Output(0, t, 0));
    if (!status.ok()) return status;
  }
  return session_->Settle();
}

void RemoteAttention::Count() {
  const SessionCounts& c = session_->counts();
  if (!c.why_grpc.empty()) SayOnce("steps go over gRPC: " + c.why_grpc);
  Report::Get().Remote(c.steps - counted_.steps, c.grpc_steps - counted_.grpc_steps, c.bytes - counted_.bytes,
                       c.waiting_ns - counted_.waiting_ns);
  counted_ = c;
}

ggml_status RemoteAttention::Attend(ggml_tensor* tensor) {
  const AttentionNode node(tensor);
  int layer = 0;
  IsKeyCache(RootOf(node.keys), &layer);
  const auto begin = std::chrono::steady_clock::now();
  if (!ListenTo(node)) unfit_ = "a buffer of another build of ggml";
  if (block_.mask == nullptr && node.mask != nullptr) {
    block_.mask = RootOf(node.mask);
    block_.complete = IsComplete(node);
    block_.why = Plan(node);
  }
  std::string why = node.mask == nullptr ? "no mask" : block_.why;
  if (why.empty()) {
    why = CheckLayer(node, layer);
    if (!why.empty()) unfit_ = why;
  }
  if (why.empty()) {
    const absl::Status status = Exchange(node, layer);
    Count();
    pending_ = false;
    if (!status.ok()) {
      why = TextOf(status);
      session_.reset();
    }
  }
  if (why.empty() && block_.answered) {
    SayAnswered(block_.positions[0] + 1, absl::StrCat("by the server at ", settings().endpoint), settings().profile);
    Report::Get().Answered(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
    return GGML_STATUS_SUCCESS;
  }
  return why.empty() ? team_.Compute(tensor) : Decline(node, why);
}

ggml_status RemoteAttention::Decline(const AttentionNode& node, const std::string& why) {
  lost_ = block_.why = why;
  Report::Get().Declined(why);
  const bool planned = node.mask != nullptr && RootOf(node.mask) == block_.mask;
  if (planned ? block_.complete : IsComplete(node)) {
    SayLeft(why);
    return team_.Compute(const_cast<ggml_tensor*>(node.node));
  }
  SayOnce(absl::StrCat("decoding fails, since the engine's cache lacks cells and the server cannot answer: ", why));
  return GGML_STATUS_FAILED;
}

ggml_status RemoteAttention::SetRows(ggml_tensor* node) {
  if (const ggml_status status = team_.Compute(node); status != GGML_STATUS_SUCCESS) return status;
  int layer = 0;
  if (IsKeyCache(RootOf(node), &layer)) {
    ReadBlock(node, layer);
  } else if (node->ne[0] == 1) {  // values lie transposed
    SayOnce("decoding fails: SEINE_ENDPOINT needs flash attention (-fa on)");
    return GGML_STATUS_FAILED;
  }
  return GGML_STATUS_SUCCESS;
}

ggml_status RemoteAttention::Shift(ggml_tensor* node) {
  lost_ = "a shift of the context, after which rows have other positions";
  return team_.Compute(node);
}

}  // namespace seine::llama
