// Plans a block of tokens at its first layer, then sends each layer's rows and queries.
#include "engines/llama.cpp/remote/remote_cache.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engines/llama.cpp/profiles.h"
#include "engines/llama.cpp/report.h"
#include "engines/llama.cpp/settings.h"

namespace seine::llama {

namespace {

constexpr char kSlide[] = "layers that slide";

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

bool Holds(const std::vector<CellRun>& runs, int64_t cell) {
  return std::any_of(runs.begin(), runs.end(), [&](const CellRun& r) { return r.begin <= cell && cell < r.end; });
}

}  // namespace

RemoteCache::~RemoteCache() {
  if (session_ != nullptr) {
    const SessionBytes bytes = session_->bytes();
    Report::Get().Bytes(bytes.codes, bytes.rows);
  }
  StopListening(this);
  for (const auto& [rows, cells] : caches_) Forget(rows);
}

void RemoteCache::Begin() { block_ = {}; }

bool RemoteCache::Writes(int layer, const std::vector<int64_t>& cells) {
  if (!block_.cells.empty() && cells != block_.cells) return false;
  block_.cells = cells;
  layer_ = layer;
  pending_ = true;
  return true;
}

bool RemoteCache::Sees(const AttentionNode& node, const std::vector<int64_t>* positions) {
  if (seen() || node.mask == nullptr) return false;
  block_.mask = RootOf(node.mask);
  block_.positions = positions;
  const int64_t tokens = node.num_tokens * node.num_streams;
  if (node.mask->type != GGML_TYPE_F16 || static_cast<int64_t>(positions->size()) != tokens) return true;
  std::vector<CellRun> runs;
  block_.whole = true;
  for (int64_t i = 0; i < tokens; ++i) {
    if (!node.CellsSeen(i % node.num_tokens, i / node.num_tokens, &runs)) {
      block_.counts.clear(), block_.whole = false;
      return true;
    }
    block_.counts.push_back(CountCells(runs));
    block_.whole = block_.whole && block_.counts.back() == (*positions)[i] + 1;
  }
  return true;
}

int64_t RemoteCache::WindowShown(const AttentionNode& node) const {
  if (block_.counts.empty() || node.num_streams != 1 || block_.counts.size() != block_.cells.size()) return 0;
  std::vector<CellRun> runs;
  for (size_t t = 1; t < block_.counts.size(); ++t) {
    if (block_.counts[t] != block_.counts[t - 1] || (*block_.positions)[t] != (*block_.positions)[t - 1] + 1) continue;
    if (node.CellsSeen(static_cast<int64_t>(t), 0, &runs) && Holds(runs, block_.cells[t - 1])) return block_.counts[t];
  }
  return 0;
}

void RemoteCache::SetSlides(int64_t window) {
  window_ = window;
  block_.untold = false;
  session_.reset();
}

absl::Status RemoteCache::Restart(const AttentionNode& node) {
  CacheFacts facts;
  if (!FindFacts(RootOf(node.keys)->data, &facts)) return absl::InternalError("a cache that was never planned for");
  lost_.clear();
  held_.Clear(facts.capacity);
  if (session_ != nullptr) {
    const absl::Status status = session_->Truncate(0);
    if (status.ok()) return status;
    session_.reset();  // the server may have been started anew
  }
  layers_ = LayersOfCache(facts);
  const Settings& s = settings();
  config_ = SessionConfig();
  config_.endpoint = s.endpoint;
  config_.geometry.num_layers = static_cast<int>(layers_.size());
  config_.geometry.num_q_heads = facts.num_q_heads;
  config_.geometry.num_kv_heads = facts.num_kv_heads;
  config_.geometry.head_dim = facts.head_dim;
  config_.geometry.dtype = facts.key_type;
  config_.scale = facts.scale, config_.softcap = facts.softcap;
  config_.profile = s.profile;
  config_.beta = s.beta, config_.refine = s.refine;
  config_.sink = s.sink, config_.local = s.local;
  config_.tail = s.tail, config_.gate = s.gate;
  config_.dense_tokens = s.min_kv;
  StateRopes(facts, /*profile=*/nullptr, &config_.geometry);
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

bool RemoteCache::ListenTo(const AttentionNode& node) {
  for (const ggml_tensor* cache : {RootOf(node.keys), RootOf(node.values)}) {
    const auto* rows = static_cast<const uint8_t*>(cache->data);
    const auto [at, is_new] = caches_.try_emplace(rows, Cells{cache->ne[1], cache->nb[1]});
    if (is_new && !Listen(cache->buffer, this)) return false;
  }
  return true;
}

void RemoteCache::WritesOutside(const uint8_t* at, const uint8_t* data, size_t size) {
  for (const auto& [rows, cells] : caches_) {
    for (const auto& [begin, end] : ChangedCells(rows, cells.count, cells.bytes, at, data, size)) {
      for (int64_t cell = begin; cell < end; ++cell) held_.Lose(cell);
    }
  }
}

std::string RemoteCache::CheckPast(const AttentionNode& node) const {
  const int64_t first = block_.positions->front();
  if (first == 0) return {};
  if (first > held_.length()) return "positions before these were never seen";
  // All that came before is in the rows of the last position. Other sequences have it in other cells, and what loads
  // them changes cells.
  const int64_t cell = held_.CellOf(first - 1);
  std::vector<CellRun> runs;
  if (!node.CellsSeen(0, 0, &runs)) return "a mask that weighs cells";
  if (cell < 0 || !Holds(runs, cell))
    return "the cell of the position before is not in the cache, and this may be another text";
  return {};
}

std::string RemoteCache::CheckMask(const AttentionNode& node) const {
  std::vector<CellRun> runs;
  const int64_t first = block_.positions->front();
  int64_t cells = 0;
  for (int64_t t = 0; t < node.num_tokens; ++t) {
    if (!node.CellsSeen(t, 0, &runs)) return "a mask that weighs cells";
    const int64_t count = CountCells(runs);
    if (t == 0) cells = count;
    if (count != cells + t) return kSlide;
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

std::string RemoteCache::Plan(const AttentionNode& node) {
  if (!unfit_.empty()) return unfit_;
  const std::vector<int64_t>& positions = *block_.positions;
  if (const char* why = node.Unfit()) return why;
  if (node.keys->type != node.values->type) return "keys and values of two types";
  if (IsQuantised(*RowTypeOf(node.keys))) return "a cache of another type than f16 or bf16";
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
  block_.answered = !block_.whole || (node.num_tokens <= kMostTokens && positions.back() >= settings().min_kv - 1);
  return {};
}

std::string RemoteCache::CheckLayer(const AttentionNode& node, int layer) const {
  if (RootOf(node.mask) != block_.mask) return "layers of several masks that share a cache";
  if (!pending_ || layer != layer_) return "layers that share a cache";
  const Geometry& g = config_.geometry;
  if (!std::binary_search(layers_.begin(), layers_.end(), layer) || node.num_q_heads != g.num_q_heads ||
      node.num_kv_heads != g.num_kv_heads || node.head_dim != g.head_dim || RowTypeOf(node.keys) != g.dtype ||
      node.scale != config_.scale || node.softcap != config_.softcap) {
    return "a layer of another shape than the first";
  }
  return {};
}

absl::Status RemoteCache::Exchange(const AttentionNode& node, int of_model) {
  const auto layer = static_cast<int>(std::lower_bound(layers_.begin(), layers_.end(), of_model) - layers_.begin());
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
    const absl::Status status = session_->Append(layer, block_.positions->front(), count, keys_.data(), values_.data());
    return status.ok() ? session_->Settle() : status;
  }
  queries_.resize(static_cast<size_t>(node.num_q_heads) * node.head_dim);
  log_sum_exp_.resize(count * node.num_q_heads);
  for (int64_t t = 0; t < count; ++t) {  // each after its own row: it sees none of the later ones
    for (int head = 0; head < node.num_q_heads; ++head) {
      std::copy_n(node.Query(head, t, 0), node.head_dim, queries_.data() + head * node.head_dim);
    }
    absl::Status status =
        session_->Attend(layer, (*block_.positions)[t], keys_.data() + t * row, values_.data() + t * row,
                         queries_.data(), top_k(), node.Output(0, t, 0), log_sum_exp_.data() + t * node.num_q_heads);
    if (!status.ok()) return status;
  }
  if (absl::Status status = session_->Settle(); !status.ok()) return status;
  for (int64_t t = 0; t < count && node.sinks != nullptr; ++t) {
    node.TakeSinks(0, node.num_q_heads, log_sum_exp_.data() + t * node.num_q_heads, node.Output(0, t, 0));
  }
  return absl::OkStatus();
}

void RemoteCache::Count() {
  const SessionCounts& c = session_->counts();
  if (!c.why_grpc.empty()) SayOnce("steps go over gRPC: " + c.why_grpc);
  Report::Get().Remote(c.steps - counted_.steps, c.grpc_steps - counted_.grpc_steps, c.bytes - counted_.bytes,
                       c.waiting_ns - counted_.waiting_ns);
  counted_ = c;
}

ggml_status RemoteCache::Attend(const AttentionNode& node, int layer) {
  const auto begin = std::chrono::steady_clock::now();
  if (!ListenTo(node)) unfit_ = "a buffer of another build of ggml";
  if (slides()) return AttendWindow(node);
  if (seen() && !block_.planned) {
    block_.planned = true;
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
  if (!why.empty()) return Decline(node, why);
  if (!block_.answered) return team_->Compute(const_cast<ggml_tensor*>(node.node));
  const int64_t tokens = block_.positions->front() + 1;
  SayAnswered(tokens, absl::StrCat("by the server at ", settings().endpoint), settings().profile);
  Report::Get().Answered(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
  return GGML_STATUS_SUCCESS;
}

ggml_status RemoteCache::AttendWindow(const AttentionNode& node) {
  // Layers that attend in chunks see more and more cells up to a border: no window of theirs is known, nor what lacks.
  in_chunks_ =
      in_chunks_ || std::any_of(block_.counts.begin(), block_.counts.end(), [&](int64_t n) { return n > window_; });
  bool complete = in_chunks_ || !block_.counts.empty();
  for (size_t i = 0; i < block_.counts.size(); ++i) {
    complete = complete && (in_chunks_ || block_.counts[i] == std::min((*block_.positions)[i] + 1, window_));
  }
  if (!complete) {
    constexpr char kLacking[] = "layers that slide lack cells of their window";
    Report::Get().Declined(kLacking);
    SayOnce(absl::StrCat("decoding fails, since ", kLacking));
    return GGML_STATUS_FAILED;
  }
  SayLeft(kSlide);
  if (node.num_tokens <= kMostTokens && node.num_cells >= settings().min_kv) Report::Get().Declined(kSlide);
  return team_->Compute(const_cast<ggml_tensor*>(node.node));
}

ggml_status RemoteCache::AttendUntold(const AttentionNode& node, const std::string& why) {
  block_.untold = true;
  Lose(why);
  return team_->Compute(const_cast<ggml_tensor*>(node.node));
}

ggml_status RemoteCache::Decline(const AttentionNode& node, const std::string& why) {
  lost_ = block_.why = why;
  Report::Get().Declined(why);
  if (block_.whole) {
    SayLeft(why);
    return team_->Compute(const_cast<ggml_tensor*>(node.node));
  }
  SayOnce(absl::StrCat("decoding fails, since the engine's cache lacks cells and the server cannot answer: ", why));
  return GGML_STATUS_FAILED;
}

}  // namespace seine::llama
