// Sends each layer's rows and queries. How tokens are computed is planned in remote_plan.cc.
#include "engines/llama.cpp/remote/remote_cache.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engines/llama.cpp/remote/give_back.h"
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

bool Holds(const std::vector<CellRun>& runs, int64_t cell) {
  return std::any_of(runs.begin(), runs.end(), [&](const CellRun& r) { return r.begin <= cell && cell < r.end; });
}

}  // namespace

RemoteCache::~RemoteCache() {
  if (texts_.session() != nullptr) {
    const SessionBytes bytes = texts_.session()->bytes();
    Report::Get().Bytes(bytes.codes, bytes.rows);
  }
  StopListening(this);
  for (const auto& [rows, cells] : caches_) Forget(rows);
}

int64_t RemoteCache::FirstCell(const AttentionNode& node, int64_t stream) {
  const ggml_tensor* root = RootOf(node.keys);
  const int64_t at = static_cast<const char*>(node.keys->data) - static_cast<const char*>(root->data);
  return (at / static_cast<int64_t>(root->nb[2]) + stream) * root->ne[1];
}

void RemoteCache::Begin() {
  // Rows of a graph that ended early, or whose attention came to no backend of ours, are not known.
  if (texts_.has_cells() && !slides() && !block_.planned) {
    for (const int64_t cell : block_.cells) texts_.Lose(cell, "rows that were never attended", /*fresh=*/false);
  }
  block_ = {};
}

bool RemoteCache::Writes(int layer, const std::vector<int64_t>& cells) {
  if (!block_.cells.empty() && cells != block_.cells) return false;
  block_.cells = cells;
  layer_ = layer;
  pending_ = true;
  return true;
}

bool RemoteCache::IsAllWhole() const {
  if (!block_.whole) return false;
  return std::find(block_.lacks.begin(), block_.lacks.end(), true) == block_.lacks.end();
}

bool RemoteCache::Sees(const AttentionNode& node, const std::vector<int64_t>* positions) {
  if (seen() || node.mask == nullptr) return false;
  const ggml_tensor* root = RootOf(node.keys);
  if (!texts_.has_cells()) texts_.SetCells(root->ne[1] * root->ne[2], root->ne[1], !settings().index.empty());
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
    const int64_t base = FirstCell(node, i / node.num_tokens);
    bool lacks = false;
    for (const CellRun& run : runs) {
      for (int64_t cell = base + run.begin; cell < base + run.end; ++cell) {
        if (texts_.IsUnseen(cell)) texts_.SetSeen(cell, IsZeros(RowAt(root, cell), root->nb[1]));
        lacks = lacks || texts_.IsGone(cell);
      }
    }
    block_.lacks.push_back(lacks);
    block_.counts.push_back(CountCells(runs));
    block_.whole = block_.whole && block_.counts.back() == (*positions)[i] + 1;
  }
  return true;
}

int64_t RemoteCache::WindowShown(const AttentionNode& node) const {
  if (block_.counts.empty() || block_.counts.size() != block_.cells.size()) return 0;
  const int64_t capacity = RootOf(node.keys)->ne[1];
  std::vector<CellRun> runs;
  for (int64_t t = 1; t < static_cast<int64_t>(block_.counts.size()); ++t) {
    if (t % node.num_tokens == 0) continue;  // of another stream than the one before
    if (block_.counts[t] != block_.counts[t - 1] || Position(t) != Position(t - 1) + 1) continue;
    if (node.CellsSeen(t % node.num_tokens, t / node.num_tokens, &runs) &&
        Holds(runs, block_.cells[t - 1] % capacity)) {
      return block_.counts[t];
    }
  }
  return 0;
}

void RemoteCache::SetSlides(int64_t window) {
  window_ = window;
  block_.untold = false;
  texts_.RemoveMade();
  texts_.Drop(kSlide);
}

bool RemoteCache::ListenTo(const AttentionNode& node) {
  for (const ggml_tensor* cache : {RootOf(node.keys), RootOf(node.values)}) {
    const auto* rows = static_cast<const uint8_t*>(cache->data);
    const auto [at, is_new] = caches_.try_emplace(rows, Cells{cache->ne[1] * cache->ne[2], cache->nb[1]});
    if (is_new && !Listen(cache->buffer, this)) return false;
    if (is_new) written_outside_.emplace_back(const_cast<uint8_t*>(rows), at->second.count * at->second.bytes);
  }
  return true;
}

void RemoteCache::WritesOutside(const uint8_t* at, const uint8_t* data, size_t size) {
  if (!texts_.has_cells()) return;  // all are unknown
  for (const auto& [rows, cells] : caches_) {
    for (const auto& [begin, end] : ChangedCells(rows, cells.count, cells.bytes, at, data, size)) {
      for (int64_t cell = begin; cell < end; ++cell) texts_.Reload(cell);
    }
    const auto [begin, end] = TouchedCells(rows, cells.count, cells.bytes, at, size);
    for (int64_t cell = begin; cell < end; ++cell) texts_.SetLoaded(cell);
    if (settings().cells == 0 || begin == end) continue;
    written_outside_.emplace_back(const_cast<uint8_t*>(rows) + begin * cells.bytes, (end - begin) * cells.bytes);
  }
}

void RemoteCache::GiveBack(int layer) {
  const bool answered =
      std::any_of(block_.runs.begin(), block_.runs.end(), [](const Run& run) { return run.answered; });
  if (settings().cells == 0 || layers_.size() < 2 || !answered || texts_.session() == nullptr ||
      layer != layers_.back())
    return;
  for (const auto& [rows, bytes] : written_outside_) GiveBackZeros(rows, bytes);
  written_outside_.clear();
  int64_t count = 0;
  for (const auto& [begin, end] : texts_.GiveBack(settings().cells)) {
    count += end - begin;
    for (const auto& [rows, cells] : caches_) {
      if (rows == deepest_.keys) continue;
      GiveBackMemory(const_cast<uint8_t*>(rows) + begin * cells.bytes, (end - begin) * cells.bytes);
    }
  }
  Report::Get().GaveBack(count);
  if (count > 0) {
    SayOnce("memory of cells",
            absl::StrCat("memory of ", count, " cells went back to the system: the server has them"));
  }
}

void RemoteCache::Shift(const ggml_tensor* shifts) {
  constexpr char kShift[] = "a shift of the context, after which rows have other positions";
  if (shifts == nullptr) return texts_.LoseAll(kShift);
  const auto* by = static_cast<const int32_t*>(shifts->data);
  for (int64_t cell = 0; cell < shifts->ne[0] && texts_.has_cells(); ++cell) {
    if (by[cell] != 0) texts_.Lose(cell, kShift, /*fresh=*/false);
  }
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
  Session* const session = texts_.session();
  const auto layer = static_cast<int>(std::lower_bound(layers_.begin(), layers_.end(), of_model) - layers_.begin());
  const ggml_tensor *keys = RootOf(node.keys), *values = RootOf(node.values);
  const size_t row = size_t{2} * node.num_kv_heads * node.head_dim;
  const size_t queries = static_cast<size_t>(node.num_q_heads) * node.head_dim;
  size_t most = 0;
  for (const Run& run : block_.runs) {
    const size_t count = run.tokens.size();
    most = std::max(most, run.answered ? count : 0);
    keys_.resize(count * row);
    values_.resize(count * row);
    for (size_t i = 0; i < count; ++i) {
      const int64_t cell = block_.cells[run.tokens[i]];
      std::memcpy(keys_.data() + i * row, RowAt(keys, cell), row);
      std::memcpy(values_.data() + i * row, RowAt(values, cell), row);
      if (layer + 1 < static_cast<int>(layers_.size())) continue;
      texts_.SetHash(run.text, run.position + i, RowHash::Of(RowAt(keys, cell), RowAt(values, cell), row));
    }
    if (run.answered) continue;
    absl::Status status = session->Append(run.text->sequence, layer, run.position, count, keys_.data(), values_.data());
    if (!status.ok()) return status;
  }
  queries_.resize(block_.runs.size() * queries);
  log_sum_exp_.resize(block_.cells.size() * node.num_q_heads);
  // Sends one token of each text at a time: a token sees none of the later ones.
  for (size_t i = 0; i < most; ++i) {
    std::vector<AttendItem> items;
    for (const Run& run : block_.runs) {
      if (!run.answered || i >= run.tokens.size()) continue;
      const int64_t t = run.tokens[i], token = t % node.num_tokens, stream = t / node.num_tokens;
      float* const copy = queries_.data() + items.size() * queries;
      for (int head = 0; head < node.num_q_heads; ++head) {
        std::copy_n(node.Query(head, token, stream), node.head_dim, copy + head * node.head_dim);
      }
      items.push_back({.sequence = run.text->sequence,
                       .position = Position(t),
                       .key = RowAt(keys, block_.cells[t]),
                       .value = RowAt(values, block_.cells[t]),
                       .queries = copy,
                       .output = node.Output(0, token, stream),
                       .log_sum_exp = log_sum_exp_.data() + t * node.num_q_heads});
    }
    if (absl::Status status = session->Attend(layer, items, top_k()); !status.ok()) return status;
  }
  if (absl::Status status = session->Settle(); !status.ok()) return status;
  for (const Run& run : block_.runs) {
    for (const int64_t t : run.tokens) {
      if (!run.answered || node.sinks == nullptr) break;
      node.TakeSinks(0, node.num_q_heads, log_sum_exp_.data() + t * node.num_q_heads,
                     node.Output(0, t % node.num_tokens, t / node.num_tokens));
    }
  }
  return absl::OkStatus();
}

void RemoteCache::Fail(const absl::Status& status) {
  Session* const session = texts_.session();
  session->Settle().IgnoreError();
  const bool goes_on = !session->is_broken() && (absl::IsResourceExhausted(status) || absl::IsNotFound(status));
  if (goes_on && absl::IsResourceExhausted(status) && texts_.Free()) return;
  const auto run = std::find_if(block_.runs.begin(), block_.runs.end(),
                                [&](const Run& r) { return goes_on && r.text->sequence == session->failed(); });
  if (run == block_.runs.end()) {
    texts_.Drop(ServerError(status));
    return LoseBlock(texts_.why_dropped());
  }
  block_.why = ServerError(status);
  block_.kernel = true;
  for (const int64_t t : run->tokens) {
    texts_.Lose(block_.cells[t], block_.why, /*fresh=*/false);
    block_.fails = block_.fails || !IsWhole(t);
  }
  texts_.Remove(run->text);
  block_.runs.erase(run);
}

void RemoteCache::Count() {
  if (texts_.session() == nullptr) return;
  const SessionCounts& c = texts_.session()->counts();
  if (!c.why_grpc.empty()) SayOnce("steps go over gRPC: " + c.why_grpc);
  Report::Get().Remote(c.steps - counted_.steps, c.grpc_steps - counted_.grpc_steps, c.bytes - counted_.bytes,
                       c.waiting_ns - counted_.waiting_ns);
  counted_ = c;
}

ggml_status RemoteCache::Attend(const AttentionNode& node, int layer) {
  const auto begin = std::chrono::steady_clock::now();
  if (!ListenTo(node)) unfit_ = "a buffer of another build of ggml";
  if (slides()) return AttendWindow(node);
  if (!block_.planned) {
    block_.planned = true;
    if (seen()) {
      Plan(node);
    } else {
      LoseBlock("no mask");
    }
  }
  if (!block_.runs.empty()) {
    if (unfit_.empty()) unfit_ = node.mask == nullptr ? "no mask" : CheckLayer(node, layer);
    if (!unfit_.empty()) {
      texts_.Drop(unfit_);
      LoseBlock(unfit_);
    }
  }
  bool computed = false;
  while (!block_.fails) {
    if (block_.kernel && !std::exchange(computed, true)) {
      if (const ggml_status s = team_->Compute(const_cast<ggml_tensor*>(node.node)); s != GGML_STATUS_SUCCESS) return s;
    }
    if (block_.runs.empty()) break;
    const absl::Status status = Exchange(node, layer);
    Count();
    if (status.ok()) break;
    Fail(status);
    computed = false;  // a part of an answer may lie in the output of a text that failed
  }
  pending_ = false;
  if (!block_.why.empty()) Report::Get().Declined(block_.why);
  if (block_.fails) {
    SayOnce(absl::StrCat("decoding fails, since the engine's cache lacks cells and the server cannot answer: ",
                         block_.why));
    return GGML_STATUS_FAILED;
  }
  if (!block_.why.empty()) SayLeft(block_.why);
  const auto run = std::find_if(block_.runs.begin(), block_.runs.end(), [](const Run& r) { return r.answered; });
  if (run != block_.runs.end()) {
    SayAnswered(run->position + 1, absl::StrCat("by the server at ", settings().endpoint), settings().profile);
    Report::Get().Answered(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
  }
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
  block_.untold = block_.planned = true;
  LoseBlock(why);
  return team_->Compute(const_cast<ggml_tensor*>(node.node));
}

ggml_status RemoteCache::Decline(const AttentionNode& node, const std::string& why) {
  block_.planned = true;
  LoseBlock(why);
  return Attend(node, 0);
}

}  // namespace seine::llama
