// Plans a block of tokens at its first layer: which of them the server answers. Part of RemoteCache (remote_cache.h).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engines/llama.cpp/profiles/profiles.h"
#include "engines/llama.cpp/remote/remote_cache.h"
#include "engines/llama.cpp/report.h"
#include "engines/llama.cpp/settings.h"

namespace seine::llama {

namespace {

// To find an index again: at least the first, and so often what the last attempt took, since a step waits for it.
constexpr auto kBetweenTries = std::chrono::seconds(1);
constexpr int kTimesATry = 10;

}  // namespace

std::string RemoteCache::Open(const AttentionNode& node) {
  if (texts_.session() != nullptr) return {};
  const Settings& s = settings();
  const bool named = !s.index.empty();
  const auto begin = std::chrono::steady_clock::now();
  if (std::count(block_.positions->begin(), block_.positions->end(), 0) == 0 && !(named && begin >= retry_)) {
    return texts_.why_dropped().empty() ? "positions before these were never seen" : texts_.why_dropped();
  }
  CacheFacts facts;
  if (!FindFacts(RootOf(node.keys)->data, &facts)) return "a cache that was never planned for";
  layers_ = LayersOfCache(facts);
  for (const CacheFacts& layer : LayersOfShape(facts)) {
    if (layer.buffer == facts.buffer && layer.layer == layers_.back()) deepest_ = layer;
  }
  config_ = SessionConfig();
  config_.endpoint = s.endpoint, config_.index = s.index, config_.layers = layers_;
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
  const auto end = std::chrono::steady_clock::now();
  retry_ = end + kBetweenTries;
  if (!opened.ok()) {
    retry_ = std::max(retry_, end + kTimesATry * (end - begin));
    texts_.Drop(ServerError(opened.status()));
    return texts_.why_dropped();
  }
  texts_.Open(*std::move(opened), config_.geometry.num_layers - 1);
  Report::Get().Uses("the server's", s.profile);
  if (s.log) {
    std::fprintf(stderr, "seine: %d layers are sent to %s, which holds %zu sequences of them\n",
                 config_.geometry.num_layers, s.endpoint.c_str(), texts_.session()->found().size());
  }
  return {};
}

std::string RemoteCache::Unfit(const AttentionNode& node) const {
  if (!unfit_.empty()) return unfit_;
  if (const char* why = node.Unfit()) return why;
  if (node.keys->type != node.values->type) return "keys and values of two types";
  if (IsQuantised(*RowTypeOf(node.keys))) return "a cache of another type than f16 or bf16";
  if (block_.positions->size() != block_.cells.size()) return "positions that cannot be read off the graph";
  return {};
}

void RemoteCache::LoseBlock(const std::string& why) {
  block_.runs.clear();
  block_.kernel = true;
  block_.why = why;
  block_.fails = !IsAllWhole();
  for (const int64_t cell : block_.cells) {
    if (texts_.has_cells()) texts_.Lose(cell, why, /*fresh=*/false);
  }
}

std::string RemoteCache::Find(int64_t position, int64_t before) {
  std::vector<int64_t> fresh;
  for (const int64_t cell : seen_) {
    if (texts_.IsKnown(cell)) continue;
    if (!texts_.IsFresh(cell)) return texts_.WhyLost(cell);
    fresh.push_back(cell);
  }
  if (fresh.empty()) return "the cell of the position before is not in the cache, and this may be another text";
  if (layers_.size() < 2) return "a loaded state of one layer, whose rows tell of no other rows";
  const size_t bytes = size_t{2} * config_.geometry.num_kv_heads * config_.geometry.head_dim;
  const absl::StatusOr<bool> found = texts_.Find(fresh, position, before, [&](int64_t cell) {
    return RowHash::Of(deepest_.keys + cell * deepest_.cell_bytes, deepest_.values + cell * deepest_.value_cell_bytes,
                       bytes);
  });
  if (!found.ok()) texts_.Drop(ServerError(found.status()));
  return found.ok() && !*found ? texts_.WhyLost(fresh.front()) : "";
}

std::string RemoteCache::CheckMask(const RemoteText& text, size_t token) {
  for (const int64_t cell : seen_) {
    if (cell == block_.cells[token]) continue;
    if (!texts_.IsOf(text, cell) && (layers_.size() < 2 || !texts_.Adopt(text, cell))) {
      return "cells that the server does not have";
    }
    if (texts_.PositionIn(cell) >= Position(token)) return "tokens that see later ones";
  }
  return {};
}

std::string RemoteCache::PlanToken(const AttentionNode& node, size_t token) {
  const auto t = static_cast<int64_t>(token);
  const int64_t stream = t / node.num_tokens, position = Position(token), base = FirstCell(node, stream);
  std::vector<CellRun> runs;
  if (!node.CellsSeen(t % node.num_tokens, stream, &runs)) return "a mask that weighs cells";
  seen_.clear();
  for (const CellRun& run : runs) {
    for (int64_t cell = run.begin; cell < run.end; ++cell) seen_.push_back(base + cell);
  }
  std::vector<RemoteText*> busy;
  for (const Run& run : block_.runs) busy.push_back(run.text);
  std::string why;
  RemoteText* text = nullptr;
  if (position == 0) {
    text = texts_.Begin(&why);
  } else {
    const auto before = [&]() -> int64_t {
      const auto cell = std::find_if(seen_.begin(), seen_.end(), [&](int64_t c) {
        return texts_.IsKnown(c) && texts_.PositionIn(c) == position - 1;
      });
      return cell == seen_.end() ? -1 : *cell;
    };
    const bool all_known = std::all_of(seen_.begin(), seen_.end(), [&](int64_t cell) { return texts_.IsKnown(cell); });
    if (!all_known || before() < 0) why = Find(position, before());
    if (!why.empty()) return why;
    if (before() >= 0) text = texts_.Behind(before(), position, busy, &why);
  }
  if (text == nullptr) return why;
  if (why = CheckMask(*text, token); !why.empty()) return why;
  auto run = std::find_if(block_.runs.begin(), block_.runs.end(), [&](const Run& r) { return r.text == text; });
  if (run == block_.runs.end()) {
    run = block_.runs.insert(run, {.text = text, .position = position, .tokens = {}});
  } else if (block_.counts[token] != block_.counts[run->tokens.back()] + 1) {
    return kSlide;
  }
  run->tokens.push_back(t);
  texts_.Add(text, block_.cells[token]);
  return {};
}

void RemoteCache::Plan(const AttentionNode& node) {
  block_.fails = false;
  block_.why.clear();
  std::string why = Unfit(node);
  if (why.empty()) why = Open(node);
  if (!why.empty()) return LoseBlock(why);
  const size_t count = block_.cells.size();
  texts_.StartPlan();
  for (size_t t = 0; t < count; ++t) texts_.Write(block_.cells[t], Position(t));
  size_t planned = 0;
  for (size_t t = 0; t < count; ++t) {
    why = PlanToken(node, t);
    if (texts_.session() == nullptr) {
      block_.runs.clear();
      // The server may have been started anew.
      return Position(t) == 0 && !std::exchange(block_.again, true) ? Plan(node) : LoseBlock(texts_.why_dropped());
    }
    planned += why.empty() ? 1 : 0;
    if (why.empty()) continue;
    texts_.Lose(block_.cells[t], why, /*fresh=*/false);
    block_.fails = block_.fails || !IsWhole(t);
    block_.why = why;
  }
  if (block_.fails) {
    for (const Run& run : block_.runs) texts_.CutBack(run.text, run.position);
    return LoseBlock(std::string(block_.why));
  }
  block_.kernel = planned < count;
  for (Run& run : block_.runs) {
    const int64_t last = run.tokens.back();
    const bool whole = std::all_of(run.tokens.begin(), run.tokens.end(), [&](int64_t t) { return IsWhole(t); });
    run.answered = !whole || (run.tokens.size() <= kMostTokens && Position(last) >= settings().min_kv - 1);
    block_.kernel = block_.kernel || !run.answered;
  }
}

}  // namespace seine::llama
