// Keeps an index over each layer's cells and answers attention nodes by it.
#include "engines/llama.cpp/attention.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engines/llama.cpp/calibration.h"
#include "engines/llama.cpp/profiles.h"
#include "engines/llama.cpp/report.h"
#include "engines/llama.cpp/settings.h"
#include "profile/moments.h"
#include "profile/profile.h"

namespace seine::llama {

namespace {

constexpr int64_t kRunWindows = 8;    // that a task encodes
constexpr int64_t kPromptCells = 64;  // written at once: a prompt's, whose windows are encoded as they come
constexpr char kTurnsOtherwise[] = "a layer of another RoPE than the profile's";
constexpr int kManyLayers = 1024;  // of an index without a profile

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Attention::~Attention() {
  if (Calibration* calibration = Calibration::Get()) calibration->Leave(this);
  if (context_ != nullptr) Report::Get().Bytes(context_->spare_bytes(), 0);
  for (const auto& [keys, layer] : layers_) {
    Forget(keys);
    for (const Stream& stream : layer.streams) {
      const CacheFacts& f = layer.facts;
      Report::Get().Bytes(stream.cells->bytes(),
                          static_cast<int64_t>((f.cell_bytes + f.value_cell_bytes)) * stream.end);
    }
  }
}

absl::Status Attention::ReadProfileOf(const CacheFacts& facts) {
  if (std::exchange(profile_read_, true)) return absl::OkStatus();
  const Settings& s = settings();
  std::string path = s.profile;
  if (path.empty() && !s.profiles.empty()) {
    absl::StatusOr<std::string> found = FindProfile(s.profiles, facts, CountLayers(facts));
    if (found.ok()) {
      path = *std::move(found);
    } else {
      SayOnce(absl::StrCat(found.status().message(), "; the ", CodecConfig().name, " code is used, which needs none"));
    }
  }
  if (path.empty()) return absl::OkStatus();
  absl::StatusOr<Profile> profile = ReadProfile(path);
  if (!profile.ok()) return profile.status();
  profile_ = std::make_shared<const Profile>(*std::move(profile));
  profile_path_ = path;
  return absl::OkStatus();
}

std::string Attention::MakeContext(const CacheFacts& facts) {
  CellConfig config;
  config.geometry = {.num_layers = kManyLayers,
                     .num_q_heads = facts.num_q_heads,
                     .num_kv_heads = facts.num_kv_heads,
                     .head_dim = facts.head_dim,
                     .dtype = facts.dtype,
                     .rope = facts.rope};
  const Settings& s = settings();
  config.search.top_k = s.top_k;
  config.search.beta = s.beta;
  config.search.refine = s.refine;
  config.search.softmax_scale = facts.scale;
  config.sink = s.sink;
  config.local = s.local;
  config.tail = s.tail;
  config.capacity = facts.capacity;
  if (profile_ != nullptr) {
    config.geometry.num_layers = profile_->num_layers();
    config.codec.name = "balanced";
    config.codec.profile_name = profile_path_;
    config.codec.profile = profile_;
    const CodeBits bits = CodeBitsOf(facts.head_dim);
    config.codec.coarse_bits = bits.coarse, config.codec.total_bits = bits.total;
  }
  absl::StatusOr<std::unique_ptr<CellContext>> made = CellContext::Create(config);
  if (!made.ok()) return std::string(made.status().message());
  context_ = *std::move(made);
  Report::Get().Uses(config.codec.name, config.codec.profile_name);
  if (s.log) {
    std::fprintf(stderr, "seine: %d KV heads of %d, head_dim %d, %lld cells, %s code, profile: %s\n",
                 facts.num_kv_heads, facts.num_q_heads / facts.num_kv_heads, facts.head_dim,
                 static_cast<long long>(facts.capacity), config.codec.name.c_str(),
                 config.codec.profile_name.empty() ? "none" : config.codec.profile_name.c_str());
  }
  return {};
}

std::string Attention::MakeStreams(Layer* layer) {
  const CacheFacts& f = layer->facts;
  if (context_ == nullptr && no_context_.empty()) {
    if (const absl::Status status = ReadProfileOf(f); !status.ok()) no_context_ = std::string(status.message());
    if (profile_ != nullptr && !MomentsAreOf(*profile_, f)) return kTurnsOtherwise;
    if (no_context_.empty()) no_context_ = MakeContext(f);
    if (!no_context_.empty()) SayOnce(absl::StrCat(no_context_, "; llama.cpp decodes alone"));
  }
  if (context_ == nullptr) return no_context_;
  const CellConfig& c = context_->config();
  const Geometry& g = c.geometry;
  if (g.num_q_heads != f.num_q_heads || g.num_kv_heads != f.num_kv_heads || g.head_dim != f.head_dim ||
      g.dtype != f.dtype || c.search.softmax_scale != f.scale || f.layer >= g.num_layers) {
    return "a layer of another shape than the first";
  }
  if (c.codec.profile != nullptr && f.rope.inv_freq != g.rope.inv_freq) return kTurnsOtherwise;
  for (int64_t s = 0; s < f.num_streams; ++s) {
    absl::StatusOr<std::unique_ptr<CellLayer>> cells = CellLayer::Create(context_.get(), f.layer);
    if (!cells.ok()) return std::string(cells.status().message());
    Stream& stream = layer->streams.emplace_back();
    stream.cells = *std::move(cells);
    const size_t head_bytes = f.head_dim * SizeOf(f.dtype);
    stream.rows = {f.keys + s * f.stream_bytes,
                   f.values + s * f.value_stream_bytes,
                   f.cell_bytes,
                   head_bytes,
                   f.value_cell_bytes,
                   head_bytes};
  }
  return {};
}

Attention::Layer* Attention::LayerOf(const void* keys) {
  const auto held = layers_.find(keys);
  if (held != layers_.end()) return &held->second;
  CacheFacts facts;
  if (!FindFacts(keys, &facts)) return nullptr;
  Layer& layer = layers_[keys];
  layer.facts = facts;
  layer.unfit = MakeStreams(&layer);
  return &layer;
}

void Attention::Wrote(Layer* layer, int64_t begin, int64_t end, bool keys) {
  const int64_t capacity = layer->facts.capacity;
  for (int64_t s = begin / capacity; s * capacity < end && s < static_cast<int64_t>(layer->streams.size()); ++s) {
    Stream& stream = layer->streams[s];
    const int64_t first = std::max(begin - s * capacity, int64_t{0}), last = std::min(end - s * capacity, capacity);
    stream.cells->Wrote(first, last);
    // Cells that come anew, but for the last few, or behind some that were never seen: others may have changed too.
    if (first > stream.end || first + kMostTokens < stream.end) stream.suspect = true;
    (keys ? stream.keys_written : stream.values_written) = {first, last};
    if (stream.keys_written != stream.values_written) continue;
    stream.end = last;
    stream.keys_written = stream.values_written = {0, 0};
    if (last - first < kPromptCells || !stream.cells->Reserve(last).ok()) continue;
    Encode(&stream, last);
    UseHugePages(layer->facts, stream.rows, last);
  }
}

void Attention::UseHugePages(const CacheFacts& facts, const CellRows& rows, int64_t cells) {
  if (!settings().huge_pages || cells < settings().min_kv) return;
  const auto [of, is_new] = huge_pages_.try_emplace(facts.buffer, ggml_backend_buffer_get_base(facts.buffer),
                                                    ggml_backend_buffer_get_size(facts.buffer));
  HugePages& pages = of->second;
  if (pages.refused()) return;
  const int64_t covered =
      pages.Cover(rows.keys, cells * rows.key_cell) + pages.Cover(rows.values, cells * rows.value_cell);
  if (covered > 0) Report::Get().HugePages(covered);
  if (pages.refused()) SayOnce("the kernel makes no huge pages of the cache; it stays in small ones");
}

bool Attention::Encode(Stream* stream, int64_t end) {
  stream->cells->ListStale(end, kRunWindows, &runs_);
  if (runs_.empty()) return true;
  const int64_t begin = NowNs();
  std::atomic<bool> finite{true};
  team_.Run(static_cast<int>(runs_.size()), [&](int i) {
    if (!stream->cells->Encode(runs_[i], stream->rows)) finite = false;
  });
  int64_t windows = 0;
  for (const CellLayer::Run& run : runs_) windows += run.count;
  Report::Get().Encoded(windows * kWindowTokens, NowNs() - begin);
  return finite;
}

void Attention::Verify(Stream* stream, int64_t end) {
  std::atomic<int64_t> changed{0};
  team_.Run(context_->config().geometry.num_kv_heads,
            [&](int head) { changed += stream->cells->Verify(head, end, stream->rows); });
  if (changed > 0) Report::Get().Changed(changed);
}

bool Attention::Prepare(Stream* stream, int64_t end_window, int64_t cells) {
  const int64_t end = context_->config().sink + end_window * kWindowTokens;
  if (!stream->cells->Reserve(end).ok()) return false;
  if (stream->suspect || cells > stream->end) Verify(stream, end);
  stream->suspect = false;
  stream->end = std::max(stream->end, cells);
  return Encode(stream, end);
}

void Attention::LookForLoads(const Layer& layer, int64_t first_stream, int64_t num_streams) {
  Layer* deepest = nullptr;
  for (auto& [keys, other] : layers_) {
    if (!other.unfit.empty()) continue;
    if (other.facts.layer < layer.facts.layer) return;
    const auto size = [](const Layer& l) { return std::pair(l.facts.capacity, l.facts.layer); };
    if (deepest == nullptr || size(other) > size(*deepest)) deepest = &other;  // a sliding window's cache is smaller
  }
  for (int64_t s = first_stream; s < first_stream + num_streams; ++s) {
    Stream& stream = deepest->streams[s];
    if (!stream.cells->Suspect(0, stream.end, stream.rows)) continue;
    for (auto& [keys, other] : layers_) {
      if (other.unfit.empty()) other.streams[s].suspect = true;
    }
  }
}

void Attention::ListItems(const AttentionNode& node, Layer* layer, int64_t first_stream) {
  items_.clear();
  for (int64_t s = 0; s < node.num_streams; ++s) {
    for (int64_t t = 0; t < node.num_tokens; ++t) {
      for (int h = 0; h < node.num_kv_heads; ++h) {
        items_.push_back(
            {&layer->streams[first_stream + s], s, t, &seen_[s * node.num_tokens + t], h, 0, node.group()});
      }
    }
  }
  // Heads that would leave threads idle at the end are shared, query head by query head: larger parts first, which the
  // thread takes that is done first.
  const auto total = static_cast<int>(items_.size());
  const int threads = team_.threads(), rest = total % threads;
  if (rest == 0 || node.group() == 1) return;
  std::vector<Item> whole(items_.end() - rest, items_.end());
  items_.resize(total - rest);
  const int parts = std::min(node.group(), (threads + rest - 1) / rest);
  for (const Item& item : whole) {
    for (int p = 0; p < parts; ++p) {
      Item part = item;
      const auto begin = [&](int of) { return (node.group() * of + parts - 1) / parts; };
      part.first = begin(p);
      part.count = begin(p + 1) - part.first;
      items_.push_back(part);
    }
  }
}

bool Attention::AttendItems(const AttentionNode& node, bool exactly) {
  std::atomic<bool> unchanged{true};
  const int dim = node.head_dim, k = top_k();
  team_.Run(static_cast<int>(items_.size()), [&](int i) {
    const Item& item = items_[i];
    const int first = item.kv_head * node.group() + item.first;
    alignas(64) float queries[kMaxGroup * kMaxHeadDim];
    for (int q = 0; q < item.count; ++q) {
      std::memcpy(queries + q * dim, node.Query(first + q, item.token, item.index), dim * sizeof(float));
    }
    float* out = node.Output(first, item.token, item.index);
    CellLayer& cells = *item.stream->cells;
    if (exactly) {
      cells.AttendExactly(item.kv_head, queries, item.count, *item.seen, item.stream->rows, out);
    } else if (!cells.Attend(item.kv_head, queries, item.count, *item.seen, item.stream->rows, k, out)) {
      unchanged = false;
    }
  });
  return unchanged;
}

void Attention::Check(const AttentionNode& node) {
  const size_t count = static_cast<size_t>(node.head_dim) * node.num_q_heads * node.num_tokens * node.num_streams;
  float* out = node.Output(0, 0, 0);
  const std::vector<float> answer(out, out + count);
  AttendItems(node, /*exactly=*/true);
  const std::vector<float> exact(out, out + count);
  const auto distance = [&](const float* x) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; ++i) {
      difference += (x[i] - exact[i]) * (x[i] - exact[i]);
      norm += exact[i] * exact[i];
    }
    return std::sqrt(difference / std::max(norm, 1e-30));
  };
  double plain_error = 0;
  if (team_.Compute(const_cast<ggml_tensor*>(node.node)) == GGML_STATUS_SUCCESS) plain_error = distance(out);
  std::copy(answer.begin(), answer.end(), out);
  std::atomic<int64_t> stale{0};
  team_.Run(static_cast<int>(items_.size()), [&](int i) {
    const Item& item = items_[i];
    const int64_t end = context_->config().sink + item.seen->end_window() * kWindowTokens;
    if (item.token == 0 && item.first == 0) stale += item.stream->cells->Verify(item.kv_head, end, item.stream->rows);
  });
  Report::Get().Checked(distance(answer.data()), plain_error, stale);
}

std::string Attention::Answer(const AttentionNode& node) {
  if (const char* why = node.Unfit()) return why;
  Layer* layer = LayerOf(RootOf(node.keys)->data);
  if (layer == nullptr) return "a cache that was never planned for";
  if (!layer->unfit.empty()) return layer->unfit;
  const auto offset = static_cast<size_t>(static_cast<const uint8_t*>(node.keys->data) - layer->facts.keys);
  const size_t stream_bytes = layer->facts.stream_bytes;
  if (offset % stream_bytes != 0) return "cells that do not begin with a stream's first";
  const auto first_stream = static_cast<int64_t>(offset / stream_bytes);
  seen_.clear();
  std::vector<CellRun> runs;
  for (int64_t s = 0; s < node.num_streams; ++s) {
    for (int64_t t = 0; t < node.num_tokens; ++t) {
      if (!node.CellsSeen(t, s, &runs)) return "a mask that weighs cells";
      seen_.push_back(context_->Divide(runs));
    }
  }
  LookForLoads(*layer, first_stream, node.num_streams);
  ListItems(node, layer, first_stream);
  if (mode() == Mode::kExact) {
    AttendItems(node, /*exactly=*/true);
    return {};
  }
  constexpr int kTries = 2;
  for (int i = 0; i < kTries; ++i) {
    for (int64_t s = 0; s < node.num_streams; ++s) {
      int64_t end_window = 0, cells = 0;
      for (int64_t t = s * node.num_tokens; t < (s + 1) * node.num_tokens; ++t) {
        end_window = std::max(end_window, seen_[t].end_window());
        if (!seen_[t].all.empty()) cells = std::max(cells, seen_[t].all.back().end);
      }
      Stream* stream = &layer->streams[first_stream + s];
      if (i > 0) stream->suspect = true;
      UseHugePages(layer->facts, stream->rows, cells);  // of what came otherwise than by a prompt
      if (!Prepare(stream, end_window, cells)) return "a key or value that is not finite, or no memory for codes";
    }
    if (AttendItems(node, /*exactly=*/false)) return {};
  }
  return "rows that change while they are read";
}

ggml_status Attention::Attend(ggml_tensor* tensor) {
  const AttentionNode node(tensor);
  if (Calibration* calibration = Calibration::Get()) {
    calibration->RecordQueries(this, node);
    return Decline(tensor, "a run that measures a profile");
  }
  const int64_t begin = NowNs();
  const std::string why = Answer(node);
  if (!why.empty()) return Decline(tensor, why);
  Report::Get().Answered(NowNs() - begin);
  const int64_t every = settings().check;
  if (every > 0 && ++answered_ % every == 0) Check(node);
  return GGML_STATUS_SUCCESS;
}

ggml_status Attention::Decline(ggml_tensor* node, const std::string& why) {
  Report::Get().Declined(why);
  return team_.Compute(node);
}

ggml_status Attention::SetRows(ggml_tensor* node) {
  if (Calibration* calibration = Calibration::Get()) {
    calibration->RecordRows(this, node);
    return team_.Compute(node);
  }
  const ggml_tensor *rows = node->src[0], *indices = node->src[1];
  const int64_t count = rows->ne[1];
  if (count <= kMostTokens && rows->type == GGML_TYPE_F32 && node->type == GGML_TYPE_F16 && rows->ne[2] == 1 &&
      rows->ne[3] == 1) {
    for (int64_t i = 0; i < count; ++i) {
      ggml_fp32_to_fp16_row(
          reinterpret_cast<const float*>(static_cast<const char*>(rows->data) + i * rows->nb[1]),
          reinterpret_cast<ggml_fp16_t*>(static_cast<char*>(node->data) + RowIndex(indices, i) * node->nb[1]),
          rows->ne[0]);
    }
  } else if (const ggml_status status = team_.Compute(node); status != GGML_STATUS_SUCCESS) {
    return status;
  }
  const ggml_tensor* root = RootOf(node);
  const bool keys = IsKeyCache(root);
  const void* key_data = keys ? root->data : KeysOfValues(root->data);
  Layer* layer = key_data == nullptr ? nullptr : LayerOf(key_data);
  if (layer == nullptr || !layer->unfit.empty()) return GGML_STATUS_SUCCESS;
  for (int64_t i = 0; i < count;) {  // run by run of neighbouring cells
    const int64_t begin = RowIndex(indices, i);
    int64_t end = begin;
    while (i < count && RowIndex(indices, i) == end) ++i, ++end;
    Wrote(layer, begin, end, keys);
  }
  return GGML_STATUS_SUCCESS;
}

ggml_status Attention::Shift(ggml_tensor* node) {
  const ggml_status status = team_.Compute(node);
  if (Layer* layer = LayerOf(RootOf(node)->data); layer != nullptr && layer->unfit.empty()) {
    for (Stream& stream : layer->streams) stream.cells->Wrote(0, layer->facts.capacity);
  }
  return status;
}

}  // namespace seine::llama
