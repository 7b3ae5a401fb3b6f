// Keeps an index over each layer's cells and answers attention nodes by it.
#include "engines/llama.cpp/cells/attention.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engines/llama.cpp/profiles/calibration.h"
#include "engines/llama.cpp/report.h"
#include "engines/llama.cpp/settings.h"
#include "index/cells/share_rest.h"

namespace seine::llama {

namespace {

constexpr int kManyLayers = 1024;  // of an index without a profile

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

size_t CountOutputs(const AttentionNode& node) {
  return static_cast<size_t>(node.head_dim) * node.num_q_heads * node.num_tokens * node.num_streams;
}

// As a share of the norm.
double Distance(const float* x, const std::vector<float>& exact) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    difference += (x[i] - exact[i]) * (x[i] - exact[i]);
    norm += exact[i] * exact[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-30));
}

// Those of query heads [first, first + count) of a token, in a row.
void CopyQueries(const AttentionNode& node, int64_t stream, int64_t token, int first, int count, float* queries) {
  for (int q = 0; q < count; ++q) {
    std::memcpy(queries + q * node.head_dim, node.Query(first + q, token, stream), node.head_dim * sizeof(float));
  }
}

}  // namespace

Attention::~Attention() {
  if (Calibration* calibration = Calibration::Get()) calibration->Leave(this);
  StopListening(this);
  for (const auto& context : contexts_) Report::Get().Bytes(context->spare_bytes(), 0);
  for (const auto& [keys, layer] : layers_) {
    Forget(keys);
    for (const Stream& stream : layer.streams) {
      const CacheFacts& f = layer.facts;
      Report::Get().Bytes(stream.cells->bytes(),
                          static_cast<int64_t>((f.cell_bytes + f.value_cell_bytes)) * stream.end);
    }
  }
}

CellConfig Attention::ConfigOf(const CacheFacts& facts) const {
  CellConfig config;
  config.geometry = {.num_layers = kManyLayers,
                     .num_q_heads = facts.num_q_heads,
                     .num_kv_heads = facts.num_kv_heads,
                     .head_dim = facts.head_dim,
                     .dtype = DType::kFloat16,
                     .rope = facts.rope};
  const Settings& s = settings();
  config.search.top_k = s.top_k;
  config.search.candidate_fraction = s.beta;
  config.search.rescore_k = s.refine;
  config.search.softmax_scale = facts.scale;
  config.softcap = facts.softcap;
  config.rotation = facts.rotation;
  config.sink = s.sink;
  config.local = s.local;
  config.tail = s.tail;
  config.capacity = facts.capacity;
  config.shortest = std::max<int64_t>(s.min_kv, 1);
  profile_.State(facts, &config);
  return config;
}

CellContext* Attention::ContextOf(const CacheFacts& f, std::string* why) {
  for (const auto& context : contexts_) {
    const CellConfig& c = context->config();
    const Geometry& g = c.geometry;
    if (g.num_q_heads == f.num_q_heads && g.num_kv_heads == f.num_kv_heads && g.head_dim == f.head_dim &&
        c.rotation == f.rotation && c.search.softmax_scale == f.scale && c.softcap == f.softcap &&
        c.capacity == f.capacity) {
      return context.get();
    }
  }
  const CellConfig config = ConfigOf(f);
  absl::StatusOr<std::unique_ptr<CellContext>> made = CellContext::Create(config);
  if (!made.ok()) {
    *why = std::string(made.status().message());
    return nullptr;
  }
  Report::Get().Uses(config.codec.name, config.codec.profile_name);
  if (settings().log) {
    std::fprintf(stderr, "seine: %d KV heads of %d, head_dim %d, %lld cells, %s code, profile: %s%s\n", f.num_kv_heads,
                 f.num_q_heads / f.num_kv_heads, f.head_dim, static_cast<long long>(f.capacity),
                 config.codec.name.c_str(),
                 config.codec.profile_name.empty() ? "none" : config.codec.profile_name.c_str(),
                 f.rotation > 0 ? ", keys turned before they are quantised" : "");
  }
  return contexts_.emplace_back(*std::move(made)).get();
}

std::string Attention::MakeStreams(Layer* layer) {
  const CacheFacts& f = layer->facts;
  std::string why;
  if (const absl::Status status = profile_.Read(f); !status.ok()) {
    why = std::string(status.message());
  } else if (std::string unfit = profile_.Unfit(f); !unfit.empty()) {
    return unfit;
  } else {
    layer->context = ContextOf(f, &why);
  }
  if (layer->context == nullptr) {
    SayOnce(absl::StrCat(why, "; llama.cpp decodes alone"));
    return why;
  }
  if (std::string unfit = profile_.Unfit(f, layer->context->config().geometry); !unfit.empty()) return unfit;
  layer->gate = std::make_unique<LayerGate>(settings().gate, f.layer);
  // Before anything of its rows is kept.
  if (!Listen(f.buffer, this) || !Listen(f.value_buffer, this)) return "a buffer of another build of ggml";
  for (int64_t s = 0; s < f.num_streams; ++s) {
    absl::StatusOr<std::unique_ptr<CellLayer>> cells = CellLayer::Create(layer->context, profile_.NumberOf(f));
    if (!cells.ok()) return std::string(cells.status().message());
    Stream& stream = layer->streams.emplace_back();
    stream.cells = *std::move(cells);
    stream.rows = {
        f.keys + s * f.stream_bytes, f.values + s * f.value_stream_bytes, f.cell_bytes, BytesOf(f.key_type, f.head_dim),
        f.value_cell_bytes,          BytesOf(f.value_type, f.head_dim),   f.key_type,   f.value_type};
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

bool Attention::Encode(Stream* stream) {
  if (runs_.empty()) return true;
  stream->encoded = true;
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
  team_.Run(stream->cells->num_heads(), [&](int head) { changed += stream->cells->Verify(head, end, stream->rows); });
  if (changed > 0) Report::Get().Changed(changed);
}

void Attention::Refit(Stream* stream, int head) {
  if (const absl::Status status = stream->cells->Refit(head, stream->length); !status.ok()) {
    SayOnce(absl::StrCat(status.message(), "; codes for a shorter text are used"));
  }
}

void Attention::RefitAll(Stream* stream) {
  for (int head; (head = stream->cells->FindOutgrown(stream->length)) >= 0;) Refit(stream, head);
}

void Attention::RefitOne(Layer* layer, int64_t first_stream, int64_t num_streams) {
  if (++since_refit_ < layers_.size()) return;
  for (int64_t s = first_stream; s < first_stream + num_streams; ++s) {
    Stream& stream = layer->streams[s];
    const int head = stream.cells->FindOutgrown(stream.length);
    if (head < 0) continue;
    since_refit_ = 0;
    Refit(&stream, head);
    return;
  }
}

bool Attention::Prepare(Stream* stream, const SeenCells& seen) {
  const int64_t end = settings().sink + seen.end_window() * kWindowTokens;
  const int64_t cells = seen.all.empty() ? 0 : seen.all.back().end;
  if (!stream->cells->Reserve(end).ok()) return false;
  if (stream->suspect || cells > stream->end) Verify(stream, std::max(end, stream->end));
  stream->suspect = false;
  stream->end = std::max(stream->end, cells);
  runs_.clear();
  stream->cells->ListStale(seen, kRunWindows, &runs_);
  return Encode(stream);
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
  ShareRest(team_.threads(), node.group(), &items_);
}

bool Attention::AttendItems(const AttentionNode& node, int top_k) {
  std::atomic<bool> unchanged{true};
  team_.Run(static_cast<int>(items_.size()), [&](int i) {
    const Item& item = items_[i];
    const int first = item.kv_head * node.group() + item.first;
    alignas(64) float queries[kMaxGroup * kMaxHeadDim];
    CopyQueries(node, item.index, item.token, first, item.count, queries);
    float* out = node.Output(first, item.token, item.index);
    CellLayer& cells = *item.stream->cells;
    float log_sum_exp[kMaxGroup];
    if (top_k == 0) {
      cells.AttendExactly(item.kv_head, queries, item.count, *item.seen, item.stream->rows, out, log_sum_exp);
    } else if (!cells.Attend(item.kv_head, queries, item.count, *item.seen, item.stream->rows, top_k, out,
                             log_sum_exp)) {
      unchanged = false;
    }
    if (node.sinks != nullptr) node.TakeSinks(first, item.count, log_sum_exp, out);
  });
  return unchanged;
}

void Attention::Watch(const AttentionNode& node, Layer* layer, int64_t first_stream) {
  // KV heads take turns. Of the streams the one with the most windows is checked, and of its tokens the last.
  const auto head = static_cast<int>(layer->gate->checks_due() % node.num_kv_heads);
  const int64_t t = node.num_tokens - 1;
  int64_t s = 0;
  for (int64_t other = 1; other < node.num_streams; ++other) {
    const int64_t windows = seen_[other * node.num_tokens + t].num_windows;
    if (windows > seen_[s * node.num_tokens + t].num_windows) s = other;
  }
  const SeenCells& seen = seen_[s * node.num_tokens + t];
  LayerGate& gate = *layer->gate;
  const int k = gate.Widened(top_k());
  const Stream& stream = layer->streams[first_stream + s];
  if (seen.zone.empty() || stream.cells->ReadsWhole(seen, node.group(), k)) return;
  if (!gate.Due(seen.all.back().end)) return;
  alignas(64) float queries[kMaxGroup * kMaxHeadDim];
  CopyQueries(node, s, t, head * node.group(), node.group(), queries);
  const double lost = stream.cells->Lost(head, queries, node.group(), seen, stream.rows, k);
  Report::Get().Gated(lost);
  if (!gate.Checked(lost)) return;
  const int number = layer->facts.layer;
  const double lost_then = gate.Read().lost_then;
  Report::Get().SteppedBack(number, lost_then);
  SayOnce("the gate", absl::StrCat("layer ", number, " attends exactly from now on: the code loses ", lost_then,
                                   " of its attention, more than SEINE_GATE=", settings().gate,
                                   "; SEINE_REPORT tells of every layer"));
}

void Attention::Check(const AttentionNode& node) {
  const size_t count = CountOutputs(node);
  float* out = node.Output(0, 0, 0);
  const std::vector<float> answer(out, out + count);
  AttendItems(node, /*top_k=*/0);
  const std::vector<float> exact(out, out + count);
  double plain_error = 0;
  if (team_.Compute(const_cast<ggml_tensor*>(node.node)) == GGML_STATUS_SUCCESS) plain_error = Distance(out, exact);
  std::copy(answer.begin(), answer.end(), out);
  std::atomic<int64_t> stale{0};
  team_.Run(static_cast<int>(items_.size()), [&](int i) {
    const Item& item = items_[i];
    const int64_t end = item.stream->end;
    if (item.token == 0 && item.first == 0) stale += item.stream->cells->Verify(item.kv_head, end, item.stream->rows);
  });
  Report::Get().Checked(Distance(answer.data(), exact), plain_error, stale);
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
      seen_.push_back(layer->streams[first_stream + s].cells->Divide(runs));
    }
  }
  ListItems(node, layer, first_stream);
  const bool steps_back = mode() != Mode::kExact && layer->gate->Exact();
  if (mode() == Mode::kExact || steps_back) {
    AttendItems(node, /*top_k=*/0);
    if (steps_back) Report::Get().AnsweredExactly();
    return {};
  }
  for (int64_t s = first_stream; s < first_stream + node.num_streams; ++s) {
    if (Stream& stream = layer->streams[s]; !stream.encoded) RefitAll(&stream);  // of a state that was loaded
  }
  RefitOne(layer, first_stream, node.num_streams);
  constexpr int kTries = 2;
  for (int i = 0; i < kTries; ++i) {
    for (int64_t s = 0; s < node.num_streams; ++s) {
      Stream* stream = &layer->streams[first_stream + s];
      if (i > 0) stream->suspect = true;
      for (int64_t t = s * node.num_tokens; t < (s + 1) * node.num_tokens; ++t) {
        if (!Prepare(stream, seen_[t])) return "a key or value that is not finite, or no memory for codes";
      }
      UseHugePages(layer->facts, stream->rows, stream->end);  // of what came otherwise than by a prompt
    }
    if (AttendItems(node, layer->gate->Widened(top_k()))) {
      Watch(node, layer, first_stream);
      return {};
    }
  }
  return "rows that change while they are read";
}

ggml_status Attention::Attend(ggml_tensor* tensor) {
  const AttentionNode node(tensor);
  if (Calibration* calibration = Calibration::Get()) {
    calibration->RecordQueries(this, node);
    return Decline(tensor, "a run that measures a profile");
  }
  if (node.num_tokens > kMostTokens) return AttendPrompt(tensor, node);
  const int64_t begin = NowNs();
  const std::string why = Answer(node);
  if (!why.empty()) return Decline(tensor, why);
  Report::Get().Answered(NowNs() - begin);
  if (mode() != Mode::kExact && !std::exchange(said_, true)) SayAnswered(node);
  const int64_t every = settings().check;
  if (every > 0 && ++answered_ % every == 0) Check(node);
  return GGML_STATUS_SUCCESS;
}

ggml_status Attention::AttendPrompt(ggml_tensor* tensor, const AttentionNode& node) {
  int layer = 0;
  if (const char* why = node.Unfit()) return Decline(tensor, why);
  IsKeyCache(RootOf(node.keys), &layer);
  PromptParams params;
  params.least = settings().prompt_min;
  if (mode() != Mode::kExact && node.num_cells >= settings().prompt_min) params.mass = prompt_mass();
  const int64_t begin = NowNs();
  const std::string why = prompt_.Answer(node, layer, params);
  if (!why.empty()) return Decline(tensor, why);
  const int64_t ns = NowNs() - begin;
  Report::Get().AnsweredPrompt(ns);
  const int64_t every = mode() == Mode::kCompare ? 1 : settings().check;
  if (every > 0 && ++prompts_ % every == 0) ComparePrompt(tensor, node, ns);
  return GGML_STATUS_SUCCESS;
}

void Attention::ComparePrompt(ggml_tensor* tensor, const AttentionNode& node, int64_t ns) {
  float* out = node.Output(0, 0, 0);
  const std::vector<float> answer(out, out + CountOutputs(node));
  const int64_t begin = NowNs();
  if (team_.Compute(tensor) == GGML_STATUS_SUCCESS) {
    Report::Get().ComparedPrompt(ns, NowNs() - begin, Distance(out, answer));
  }
  std::copy(answer.begin(), answer.end(), out);
}

void Attention::SayAnswered(const AttentionNode& node) {
  int64_t cells = 0;
  for (const CellRun& run : seen_.front().all) cells += run.end - run.begin;
  const CodecConfig& codec = LayerOf(RootOf(node.keys)->data)->context->config().codec;
  llama::SayAnswered(cells, absl::StrCat("by the ", codec.name, " code"), codec.profile_name);
}

ggml_status Attention::Decline(ggml_tensor* node, const std::string& why) {
  SayLeft(why);
  Report::Get().Declined(why);
  return team_.Compute(node);
}

}  // namespace seine::llama
