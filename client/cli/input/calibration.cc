// Reading traces layer by layer into a ProfileBuilder.
#include "client/cli/input/calibration.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/cli/base/exit_code.h"
#include "client/cli/base/output.h"
#include "profile/io/tensor_file.h"

namespace seine::cli {
namespace {

constexpr int64_t kRows = 4096;  // read at a time: whole windows of 64, a few MiB
constexpr int kMostLayers = 65536;

struct LayerTensors {
  TensorFile::Tensor q, k, v;
  int64_t query_start = 0;  // position of the first query
};

struct CalibrationTrace {
  explicit CalibrationTrace(TensorFile opened) : file(std::move(opened)) {}

  std::string MetadataOr(const char* key, const std::string& otherwise) const {
    const auto it = file.metadata().find(key);
    return it == file.metadata().end() ? otherwise : it->second;
  }
  template <typename... Parts>
  absl::Status Bad(const Parts&... parts) const {
    return FileError(absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", parts...)));
  }

  TensorFile file;
  Rope rope;  // as the trace's own vectors were turned
  LayerRopes layer_ropes;
  int num_q_heads = 0, num_kv_heads = 0, head_dim = 0;
  int num_layers = 0;  // of the model; 0: the trace does not say
  std::map<int, LayerTensors> layers;
};

// l of "layers.<l>.k"; none for other names.
std::optional<int> LayerOfKeys(absl::string_view name) {
  int layer = 0;
  if (!absl::ConsumePrefix(&name, "layers.") || !absl::ConsumeSuffix(&name, ".k") || !absl::SimpleAtoi(name, &layer) ||
      layer < 0 || layer >= kMostLayers) {
    return std::nullopt;
  }
  return layer;
}

absl::Status AddLayer(int layer, CalibrationTrace* trace) {
  const std::string name = absl::StrCat("layers.", layer);
  LayerTensors tensors;
  for (const auto& [suffix, tensor] : {std::pair(".q", &tensors.q), {".k", &tensors.k}, {".v", &tensors.v}}) {
    const absl::StatusOr<TensorFile::Tensor> found = trace->file.Get(name + suffix);
    if (absl::IsNotFound(found.status())) return trace->Bad("tensor ", name, suffix, " is missing");
    if (!found.ok()) return FileError(found.status());
    *tensor = *found;
    if (tensor->shape.size() != 3) return trace->Bad(name, suffix, ": must be [tokens, heads, head_dim]");
  }
  const std::vector<int64_t>&q = tensors.q.shape, &k = tensors.k.shape;
  if (k[0] < 1 || k[1] < 1 || k[2] < 1 || tensors.v.shape != k || q[2] != k[2] || q[1] < 1 || q[1] % k[1] != 0 ||
      q[0] < 1 || q[0] > k[0]) {
    return trace->Bad(name,
                      ": k and v must be [tokens, kv heads, head_dim], and q [queries, a multiple of kv heads, "
                      "head_dim] of no more queries than tokens");
  }
  if (trace->layers.empty()) {
    trace->num_q_heads = static_cast<int>(q[1]);
    trace->num_kv_heads = static_cast<int>(k[1]);
    trace->head_dim = static_cast<int>(k[2]);
  } else if (q[1] != trace->num_q_heads || k[1] != trace->num_kv_heads || k[2] != trace->head_dim) {
    return trace->Bad(name, " differs in its heads from layers.", trace->layers.begin()->first);
  }
  const std::string start = trace->MetadataOr("query_start", absl::StrCat(k[0] - q[0]));  // the last positions
  if (!absl::SimpleAtoi(start, &tensors.query_start) || tensors.query_start < 0 || tensors.query_start > k[0] - q[0]) {
    return trace->Bad("query_start: '", start, "' does not place ", q[0], " queries in ", k[0], " tokens");
  }
  trace->layers.emplace(layer, std::move(tensors));
  return absl::OkStatus();
}

absl::Status ReadRope(CalibrationTrace* trace) {
  const std::string style = trace->MetadataOr("rope_style", "half_split");
  if (style != "half_split" && style != "interleaved") {
    return trace->Bad("rope_style: must be half_split or interleaved, not '", style, "'");
  }
  absl::StatusOr<Rope> rope = ParseRope(trace->MetadataOr("rope", ""), trace->head_dim,
                                        style == "interleaved" ? Rope::Style::kInterleaved : Rope::Style::kHalfSplit,
                                        trace->layers.begin()->second.k.shape[0]);
  if (!rope.ok()) return trace->Bad(rope.status().message());
  absl::StatusOr<LayerRopes> others =
      ParseLayerRopes(trace->MetadataOr("layer_ropes", ""), trace->head_dim, rope->style, /*length=*/1);
  if (!others.ok()) return trace->Bad(others.status().message());
  const int num_layers = std::max(trace->num_layers, trace->layers.rbegin()->first + 1);
  const absl::Status alike = CheckLayerRopes(*rope, *others, num_layers);
  if (!alike.ok()) return trace->Bad("layer_ropes: ", alike.message());
  trace->rope = *std::move(rope);
  trace->layer_ropes = *std::move(others);
  return absl::OkStatus();
}

absl::StatusOr<CalibrationTrace> OpenTrace(const std::string& path) {
  absl::StatusOr<TensorFile> file = TensorFile::Open(path);
  if (!file.ok()) return FileError(file.status());
  CalibrationTrace trace(*std::move(file));
  for (const std::string& name : trace.file.names()) {
    const std::optional<int> layer = LayerOfKeys(name);
    const absl::Status status = layer ? AddLayer(*layer, &trace) : absl::OkStatus();
    if (!status.ok()) return status;
  }
  if (trace.layers.empty()) return trace.Bad("not a trace: it holds no tensor layers.<l>.k");
  const std::string num_layers = trace.MetadataOr("num_layers", "0");
  const int highest = trace.layers.rbegin()->first;
  if (!absl::SimpleAtoi(num_layers, &trace.num_layers) || trace.num_layers < 0 || trace.num_layers > kMostLayers ||
      (trace.num_layers > 0 && highest >= trace.num_layers)) {
    return trace.Bad("num_layers: '", num_layers, "' is no number of layers of which ", highest, " is one");
  }
  const absl::Status rope = ReadRope(&trace);
  if (!rope.ok()) return rope;
  return trace;
}

// The traces must be of one model: its name, its heads, and whether RoPE is stated, which decides the moments' frame.
absl::Status CheckAlike(const CalibrationTrace& a, const CalibrationTrace& b) {
  const auto row = [](const CalibrationTrace& trace) {
    return std::vector<std::pair<const char*, std::string>>{
        {"model", trace.MetadataOr("model", "")},
        {"num_q_heads", absl::StrCat(trace.num_q_heads)},
        {"num_kv_heads", absl::StrCat(trace.num_kv_heads)},
        {"head_dim", absl::StrCat(trace.head_dim)},
        {"rope", trace.rope.stated() ? "stated" : "not stated"},
        {"rope_style", trace.rope.style == Rope::Style::kHalfSplit ? "half_split" : "interleaved"},
        {"coordinates that turn", absl::StrCat(2 * trace.rope.half())},
        {"layer_ropes", LayerRopesJson(trace.layer_ropes)}};
  };
  const auto of_a = row(a), of_b = row(b);
  for (size_t i = 0; i < of_a.size(); ++i) {
    if (of_a[i] == of_b[i]) continue;
    return b.Bad("is of another model than ", a.file.path(), ": ", of_b[i].first, " is '", of_b[i].second, "', not '",
                 of_a[i].second, "'");
  }
  if (a.num_layers > 0 && b.num_layers > 0 && a.num_layers != b.num_layers) {
    return b.Bad("is of another model than ", a.file.path(), ": num_layers is ", b.num_layers, ", not ", a.num_layers);
  }
  return absl::OkStatus();
}

// The number of layers, all of which some trace holds.
absl::StatusOr<int> CountLayers(const std::vector<CalibrationTrace>& traces) {
  int stated = 0, highest = 0;
  for (const CalibrationTrace& trace : traces) {
    stated = std::max(stated, trace.num_layers);
    highest = std::max(highest, trace.layers.rbegin()->first);
  }
  const int num_layers = stated > 0 ? stated : highest + 1;
  if (highest >= num_layers) {
    return traces[0].Bad("num_layers: is ", num_layers, ", and another trace holds layer ", highest);
  }
  std::vector<int32_t> missing;
  for (int layer = 0; layer < num_layers; ++layer) {
    if (std::none_of(traces.begin(), traces.end(), [&](const auto& trace) { return trace.layers.count(layer) > 0; })) {
      missing.push_back(layer);
    }
  }
  if (missing.empty()) return num_layers;
  return traces[0].Bad("a profile needs every layer of the model, and the traces hold none of ", FormatRuns(missing),
                       stated > 0 ? absl::StrCat(" (of ", stated, ")") : "");
}

// Rows [first, end) of a tensor in pieces; add(rows, count, index of the first).
template <typename Add>
absl::Status ForEachPiece(const CalibrationTrace& trace, const std::string& name, const TensorFile::Tensor& tensor,
                          int64_t first, const Add& add) {
  const int64_t width = tensor.shape[1] * tensor.shape[2];
  for (; first < tensor.shape[0]; first += kRows) {
    const int64_t count = std::min(kRows, tensor.shape[0] - first);
    const absl::StatusOr<std::vector<float>> rows = TensorFile::ToFloat32(tensor, first * width, count * width);
    if (!rows.ok()) return trace.Bad("tensor ", name, ": ", rows.status().message());
    if (!std::all_of(rows->begin(), rows->end(), [](float value) { return std::isfinite(value); })) {
      return trace.Bad("tensor ", name, ": holds a value that is not finite");
    }
    add(rows->data(), count, first);
  }
  return absl::OkStatus();
}

// Adds one layer of one trace; `advance` is told the rows done.
absl::Status Measure(const CalibrationTrace& trace, int layer, int64_t sink,
                     const std::function<void(int64_t)>& advance, ProfileBuilder* builder) {
  const LayerTensors& tensors = trace.layers.at(layer);
  const std::string name = absl::StrCat("layers.", layer);
  const Rope& rope = RopeOfLayer(trace.rope, trace.layer_ropes, layer);
  absl::Status status =
      ForEachPiece(trace, name + ".k", tensors.k, sink, [&](const float* rows, int64_t count, int64_t first) {
        builder->AddKeys(layer, rows, count, first, rope);
        advance(count);
      });
  if (status.ok()) {
    status = ForEachPiece(trace, name + ".v", tensors.v, sink, [&](const float* rows, int64_t count, int64_t) {
      builder->AddValues(layer, rows, count);
      advance(count);
    });
  }
  if (status.ok()) {
    status = ForEachPiece(trace, name + ".q", tensors.q, 0, [&](const float* rows, int64_t count, int64_t first) {
      builder->AddQueries(layer, rows, count, tensors.query_start + first, rope);
      advance(count);
    });
  }
  return status;
}

void Describe(const std::vector<CalibrationTrace>& traces, const std::string& licence, Profile* profile) {
  // Stretching a context slows pairs down, so the trace that turns fastest shows the model nearest to unstretched.
  const CalibrationTrace* plainest = &traces[0];
  std::vector<std::string> licences;
  for (const CalibrationTrace& trace : traces) {
    const auto slowest = [](const Rope& rope) {
      double least = 0;  // of the pairs that turn
      for (const double w : rope.inv_freq) least = w > 0 && (least == 0 || w < least) ? w : least;
      return least;
    };
    if (slowest(trace.rope) > slowest(plainest->rope)) plainest = &trace;
    const std::string text = trace.MetadataOr("text", trace.file.path()),
                      terms = trace.MetadataOr("licence", "unstated");
    if (std::count(profile->texts.begin(), profile->texts.end(), text) == 0) profile->texts.push_back(text);
    if (std::count(licences.begin(), licences.end(), terms) == 0) licences.push_back(terms);
  }
  profile->model = traces[0].MetadataOr("model", "");
  profile->licence = licence.empty() ? absl::StrJoin(licences, "; ") : licence;
  profile->rope_json = plainest->rope.stated() ? plainest->MetadataOr("rope", "") : "";
  profile->layer_ropes_json = LayerRopesJson(plainest->layer_ropes);
  profile->rope_style = plainest->rope.style;
}

}  // namespace

absl::StatusOr<Profile> Calibrate(const CalibrationOptions& options,
                                  const std::function<void(int64_t done, int64_t total)>& progress) {
  std::vector<CalibrationTrace> traces;
  for (const std::string& path : options.traces) {
    absl::StatusOr<CalibrationTrace> trace = OpenTrace(path);
    if (!trace.ok()) return trace.status();
    const absl::Status alike = traces.empty() ? absl::OkStatus() : CheckAlike(traces[0], *trace);
    if (!alike.ok()) return alike;
    traces.push_back(*std::move(trace));
  }
  const absl::StatusOr<int> num_layers = CountLayers(traces);
  if (!num_layers.ok()) return num_layers.status();

  int64_t total = 0, done = 0;
  for (const CalibrationTrace& trace : traces) {
    for (const auto& [layer, tensors] : trace.layers) {
      total += 2 * std::max<int64_t>(0, tensors.k.shape[0] - options.sink) + tensors.q.shape[0];
    }
  }
  ProfileBuilder builder(*num_layers, traces[0].num_q_heads, traces[0].num_kv_heads, traces[0].head_dim);
  for (const CalibrationTrace& trace : traces) {
    for (const auto& [layer, tensors] : trace.layers) {
      const auto advance = [&](int64_t rows) { progress(done += rows, total); };
      const absl::Status status = Measure(trace, layer, options.sink, advance, &builder);
      if (!status.ok()) return status;
    }
  }
  absl::StatusOr<Profile> profile = builder.Finish();
  if (!profile.ok()) {
    return traces[0].Bad(profile.status().message(), " beyond the first ", options.sink, " tokens of any trace");
  }
  Describe(traces, options.licence, &*profile);
  return profile;
}

}  // namespace seine::cli
