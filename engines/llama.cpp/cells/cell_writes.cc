// Attention's half that hears what is written into its cells, by graphs and outside of them.
#include <algorithm>
#include <utility>

#include "engines/llama.cpp/cells/attention.h"
#include "engines/llama.cpp/ggml/origin.h"
#include "engines/llama.cpp/profiles/calibration.h"
#include "engines/llama.cpp/report.h"
#include "engines/llama.cpp/settings.h"

namespace seine::llama {

namespace {

constexpr int64_t kPromptCells = 64;  // written at once: a prompt's, whose windows are encoded as they come

}  // namespace

void Attention::Wrote(Layer* layer, int64_t begin, int64_t end, bool keys) {
  const int64_t capacity = layer->facts.capacity;
  for (int64_t s = begin / capacity; s * capacity < end && s < static_cast<int64_t>(layer->streams.size()); ++s) {
    Stream& stream = layer->streams[s];
    const int64_t first = std::max(begin - s * capacity, int64_t{0}), last = std::min(end - s * capacity, capacity);
    stream.cells->Wrote(first, last);
    stream.end = std::max(stream.end, last);
    stream.length = std::max(stream.length, length_ > 0 ? length_ : stream.end);
    (keys ? stream.keys_written : stream.values_written) = {first, last};
    if (stream.keys_written != stream.values_written) continue;
    stream.keys_written = stream.values_written = {0, 0};
    stream.run = {first == stream.run.second ? stream.run.first : first, last};
    if (last - first < kPromptCells || !stream.cells->Reserve(last).ok()) continue;
    RefitAll(&stream);
    const int64_t sink = settings().sink;
    runs_.clear();
    stream.cells->ListStale((std::max(stream.run.first - sink, int64_t{0}) + kWindowTokens - 1) / kWindowTokens,
                            std::max(last - sink, int64_t{0}) / kWindowTokens, kRunWindows, &runs_);
    Encode(&stream);
    UseHugePages(layer->facts, stream.rows, last);
  }
}

void Attention::WritesOutside(const uint8_t* at, const uint8_t* data, size_t size) {
  for (auto& [keys, layer] : layers_) {
    const CacheFacts& f = layer.facts;
    const auto each_stream = [&](std::pair<int64_t, int64_t> cells, auto fn) {
      for (int64_t s = cells.first / f.capacity; s * f.capacity < cells.second; ++s) {
        if (s < static_cast<int64_t>(layer.streams.size())) {
          fn(&layer.streams[s], std::max(cells.first - s * f.capacity, int64_t{0}),
             std::min(cells.second - s * f.capacity, f.capacity));
        }
      }
    };
    const int64_t cells = f.capacity * f.num_streams;
    const auto placed = [](Stream* stream, int64_t begin, int64_t end) {
      stream->cells->Placed(begin, end);
      stream->end = std::max(stream->end, end);
    };
    // What is cleared holds no tokens.
    if (data != nullptr) each_stream(TouchedCells(f.keys, cells, f.cell_bytes, at, size), placed);
    const auto changed = [](Stream* stream, int64_t begin, int64_t end) {
      if (const int64_t windows = stream->cells->Changed(begin, end); windows > 0) Report::Get().Changed(windows);
    };
    for (const auto& run : ChangedCells(f.keys, cells, f.cell_bytes, at, data, size)) each_stream(run, changed);
    for (const auto& run : ChangedCells(f.values, cells, f.value_cell_bytes, at, data, size)) each_stream(run, changed);
  }
}

void Attention::ReadLength(const Layer& layer, const ggml_tensor* rows) {
  if (layer.facts.layer > length_layer_) return;
  const absl::Span<const int32_t> positions = PositionsOf(rows);
  if (positions.empty()) return;
  length_ = 1 + *std::max_element(positions.begin(), positions.end());
  length_layer_ = layer.facts.layer;
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
  } else if (const ggml_status status = team_.Compute(node, /*alone=*/count <= kMostTokens);
             status != GGML_STATUS_SUCCESS) {
    return status;
  }
  const ggml_tensor* root = RootOf(node);
  const bool keys = IsKeyCache(root);
  const void* key_data = keys ? root->data : KeysOfValues(root->data);
  const Refusal refusal = key_data == nullptr ? Refusal{} : FindRefusal(key_data);
  if (!refusal.why.empty()) {                                         // nobody is to ask for codes
    if (keys && refusal.counts) Report::Get().Declined(refusal.why);  // one write of keys a node
    return GGML_STATUS_SUCCESS;
  }
  Layer* layer = key_data == nullptr ? nullptr : LayerOf(key_data);
  if (layer == nullptr || !layer->unfit.empty()) return GGML_STATUS_SUCCESS;
  if (keys) ReadLength(*layer, rows);
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
    for (Stream& stream : layer->streams) stream.cells->Changed(0, layer->facts.capacity);
  }
  return status;
}

}  // namespace seine::llama
