#include "bench/inputs/dataset.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "bench/inputs/synthetic.h"
#include "kernels/math.h"
#include "profile/io/tensor_file.h"

namespace seine::bench {
namespace {

using Type = TensorFile::Type;

absl::StatusOr<DType> DTypeOf(const std::string& name) {
  if (name == "fp32") return DType::kFloat32;
  if (name == "fp16") return DType::kFloat16;
  if (name == "bf16") return DType::kBFloat16;
  return absl::InvalidArgumentError(absl::StrCat("--dtype: \"", name, "\" is none of fp32, fp16, bf16"));
}

absl::Status Wrong(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("--trace ", path, ": ", what));
}

// `count` of `total` rows, evenly spread and ending with the last.
std::vector<int64_t> Spread(int64_t total, int64_t count) {
  if (count <= 0 || count > total) count = total;
  std::vector<int64_t> rows(count);
  for (int64_t i = 0; i < count; ++i) rows[i] = (i + 1) * total / count - 1;
  return rows;
}

// Tensors layers.{l}.k [tokens, kv_heads, head_dim] and layers.{l}.q [last positions, q_heads, head_dim].
class TraceDataset : public Dataset {
 public:
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const DatasetOptions& options) {
    auto file = TensorFile::Open(options.trace);
    if (!file.ok()) {
      return absl::Status(file.status().code(), absl::StrCat("--trace: ", file.status().message()));
    }
    auto dataset = std::unique_ptr<TraceDataset>(new TraceDataset(*std::move(file)));
    if (absl::Status s = dataset->Init(options); !s.ok()) return s;
    return dataset;
  }

  absl::StatusOr<Head> Load(int index) const override {
    Head head;
    head.layer = info_.layers[index / info_.num_kv_heads];
    head.kv_head = index % info_.num_kv_heads;
    head.num_tokens = info_.num_tokens;
    head.zone_begin = info_.zone_begin;
    head.zone_end = info_.zone_end;
    std::vector<int64_t> all(info_.num_tokens);
    for (int64_t i = 0; i < info_.num_tokens; ++i) all[i] = i;
    auto keys = Rows(head.layer, 'k', all, head.kv_head, 1);
    if (!keys.ok()) return keys.status();
    auto queries = Rows(head.layer, 'q', query_rows_, head.kv_head * info_.group, info_.group);
    if (!queries.ok()) return queries.status();
    head.keys = *std::move(keys);
    head.tokens = ToDType(info_.dtype, &head.keys);
    head.queries = *std::move(queries);
    if (with_values_) {
      auto values = Rows(head.layer, 'v', all, head.kv_head, 1);
      if (!values.ok()) return values.status();
      head.values = ToDType(info_.dtype, &*values);
    }
    auto own = Rows(head.layer, 'q', own_rows_, head.kv_head * info_.group, info_.group);
    if (!own.ok()) return own.status();
    head.own_queries = *std::move(own);
    for (int64_t row : own_rows_) head.own_positions.push_back(info_.query_start + row);
    return head;
  }

  absl::StatusOr<std::vector<float>> LoadValues(int index) const override {
    const int layer = info_.layers[index / info_.num_kv_heads];
    const auto tensor = Tensor3(layer, 'v');
    if (!tensor.ok()) return tensor.status();
    if (tensor->shape != std::vector<int64_t>{trace_tokens_, info_.num_kv_heads, info_.head_dim}) {
      return Wrong(file_.path(), absl::StrCat("layer ", layer, ": values [", absl::StrJoin(tensor->shape, ", "),
                                              "] are not of the keys' shape"));
    }
    std::vector<int64_t> all(info_.num_tokens);
    std::iota(all.begin(), all.end(), 0);
    return Rows(layer, 'v', all, index % info_.num_kv_heads, 1);
  }

 private:
  explicit TraceDataset(TensorFile file) : file_(std::move(file)) {}

  absl::StatusOr<TensorFile::Tensor> Tensor3(int layer, char which) const {
    const std::string name = absl::StrCat("layers.", layer, ".", std::string(1, which));
    auto tensor = file_.Get(name);
    if (absl::IsNotFound(tensor.status())) return Wrong(file_.path(), absl::StrCat("has no tensor ", name));
    if (!tensor.ok()) return tensor.status();
    if (tensor->type != Type::kF16 && tensor->type != Type::kBF16 && tensor->type != Type::kF32) {
      return Wrong(file_.path(),
                   absl::StrCat(name, " is ", TensorFile::NameOf(tensor->type), ", not F16, BF16 or F32"));
    }
    if (tensor->shape.size() != 3 || tensor->num_elements() == 0) {
      return Wrong(file_.path(), absl::StrCat(name, " has shape [", absl::StrJoin(tensor->shape, ", "),
                                              "], not [tokens, heads, head_dim]"));
    }
    return tensor;
  }

  // Rows of heads [first_head, first_head + num_heads) as fp32: [rows, num_heads, head_dim].
  absl::StatusOr<std::vector<float>> Rows(int layer, char which, const std::vector<int64_t>& rows, int first_head,
                                          int num_heads) const {
    auto tensor = Tensor3(layer, which);
    if (!tensor.ok()) return tensor.status();
    const int64_t count = num_heads * tensor->shape[2];
    std::vector<float> out;
    out.reserve(rows.size() * count);
    for (int64_t row : rows) {
      auto part = TensorFile::ToFloat32(*tensor, (row * tensor->shape[1] + first_head) * tensor->shape[2], count);
      if (!part.ok()) return part.status();
      out.insert(out.end(), part->begin(), part->end());
    }
    for (float v : out) {
      if (!std::isfinite(v))
        return Wrong(file_.path(),
                     absl::StrCat("layers.", layer, ".", std::string(1, which), " holds a NaN or infinity"));
    }
    return out;
  }

  absl::Status Init(const DatasetOptions& options) {
    info_.source = options.trace;
    with_values_ = options.values;
    for (const char* key : {"model", "text"}) {
      if (auto it = file_.metadata().find(key); it != file_.metadata().end()) {
        (key[0] == 'm' ? info_.model : info_.text) = it->second;
      }
    }
    if (auto it = file_.metadata().find("rope"); it != file_.metadata().end()) info_.rope_json = it->second;
    if (auto it = file_.metadata().find("rope_style"); it != file_.metadata().end()) {
      if (it->second != "half_split" && it->second != "interleaved") {
        return Wrong(file_.path(), absl::StrCat("rope_style is \"", it->second, "\", not half_split or interleaved"));
      }
      if (it->second == "interleaved") info_.rope_style = Rope::Style::kInterleaved;
    }
    if (auto it = file_.metadata().find("layer_ropes"); it != file_.metadata().end() && !it->second.empty()) {
      return Wrong(file_.path(), "layer_ropes: layers that turn otherwise than others are not measured here");
    }
    if (absl::Status s = ChooseLayers(options.layers); !s.ok()) return s;
    for (int layer : info_.layers) {
      if (absl::Status s = TakeShape(layer); !s.ok()) return s;
    }
    if (!options.dtype.empty()) {
      auto dtype = DTypeOf(options.dtype);
      if (!dtype.ok()) return dtype.status();
      info_.dtype = *dtype;
    }
    if (absl::Status s = CutTokens(options.tokens); !s.ok()) return s;
    return TakeZone(options);
  }

  // Leaves the first `tokens` and the queries among them.
  absl::Status CutTokens(int64_t tokens) {
    trace_tokens_ = info_.num_tokens;
    info_.query_start = trace_tokens_ - num_query_rows_;
    if (tokens == 0) return absl::OkStatus();
    if (tokens <= info_.query_start || tokens > trace_tokens_) {
      return absl::InvalidArgumentError(absl::StrCat("--tokens: ", tokens, " is not in (", info_.query_start, ", ",
                                                     trace_tokens_, "], where the trace has queries"));
    }
    info_.num_tokens = tokens;
    num_query_rows_ = tokens - info_.query_start;
    return absl::OkStatus();
  }

  absl::Status ChooseLayers(const std::vector<int>& wanted) {
    std::set<int> held;
    for (const std::string& name : file_.names()) {
      const std::vector<std::string> parts = absl::StrSplit(name, '.');
      int layer = 0;
      if (parts.size() == 3 && parts[0] == "layers" && parts[2] == "k" && absl::SimpleAtoi(parts[1], &layer)) {
        held.insert(layer);
      }
    }
    if (held.empty()) return Wrong(file_.path(), "is no trace: it has no tensor layers.<number>.k");
    for (int layer : wanted) {
      if (held.count(layer) == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("--layers: ", layer, " is not in the trace, which holds ", absl::StrJoin(held, ", ")));
      }
    }
    info_.layers = wanted.empty() ? std::vector<int>(held.begin(), held.end()) : wanted;
    return absl::OkStatus();
  }

  absl::Status TakeShape(int layer) {
    auto k = Tensor3(layer, 'k');
    if (!k.ok()) return k.status();
    auto q = Tensor3(layer, 'q');
    if (!q.ok()) return q.status();
    if (q->shape[2] != k->shape[2] || q->shape[1] % k->shape[1] != 0 || q->shape[0] > k->shape[0]) {
      return Wrong(file_.path(), absl::StrCat("layer ", layer, ": queries [", absl::StrJoin(q->shape, ", "),
                                              "] do not fit keys [", absl::StrJoin(k->shape, ", "), "]"));
    }
    if (with_values_) {
      auto v = Tensor3(layer, 'v');
      if (!v.ok()) return v.status();
      if (v->shape != k->shape) return Wrong(file_.path(), absl::StrCat("layer ", layer, ": values do not fit keys"));
    }
    const int group = static_cast<int>(q->shape[1] / k->shape[1]);
    if (layer == info_.layers.front()) {
      info_.num_tokens = k->shape[0];
      info_.num_kv_heads = static_cast<int>(k->shape[1]);
      info_.head_dim = static_cast<int>(k->shape[2]);
      info_.group = group;
      num_query_rows_ = q->shape[0];
      info_.dtype = k->type == Type::kF32   ? DType::kFloat32
                    : k->type == Type::kF16 ? DType::kFloat16
                                            : DType::kBFloat16;
    } else if (k->shape[0] != info_.num_tokens || k->shape[1] != info_.num_kv_heads || k->shape[2] != info_.head_dim ||
               group != info_.group || q->shape[0] != num_query_rows_) {
      return Wrong(file_.path(), absl::StrCat("layer ", layer, " has another shape than layer ", info_.layers.front()));
    }
    return absl::OkStatus();
  }

  absl::Status TakeZone(const DatasetOptions& o) {
    const int64_t room = info_.num_tokens - o.sink - o.local;
    if (room < o.granule) {
      return absl::InvalidArgumentError(absl::StrCat("--sink ", o.sink, " and --local ", o.local, " leave ",
                                                     std::max<int64_t>(0, room), " keys of the trace's ",
                                                     info_.num_tokens, " tokens; at least ", o.granule, " are needed"));
    }
    if (o.local < 1) return absl::InvalidArgumentError("--local: at least 1, since queries come from the local tokens");
    info_.zone_begin = o.sink;
    info_.zone_end = o.sink + room / o.granule * o.granule;
    const int64_t usable = o.all_queries ? num_query_rows_ : std::min(num_query_rows_, o.local);
    if (o.own_queries && usable < 2) {
      return absl::InvalidArgumentError(
          "--profile: the trace's one query cannot be measured and asked; give a profile");
    }
    const int64_t most = o.own_queries ? usable / 2 : usable;
    query_rows_ = Spread(usable, o.num_queries > 0 ? std::min(o.num_queries, most) : most);
    const std::set<int64_t> asked(query_rows_.begin(), query_rows_.end());
    for (int64_t row = 0; row < usable && o.own_queries; ++row) {
      if (asked.count(row) == 0) own_rows_.push_back(num_query_rows_ - usable + row);
    }
    for (int64_t& row : query_rows_) row += num_query_rows_ - usable;
    info_.num_positions = static_cast<int64_t>(query_rows_.size());
    return absl::OkStatus();
  }

  TensorFile file_;
  bool with_values_ = false;
  int64_t trace_tokens_ = 0;                    // that the file holds; info_.num_tokens are looked at
  int64_t num_query_rows_ = 0;                  // up to the last token looked at
  std::vector<int64_t> query_rows_, own_rows_;  // asked; kept aside
};

class SyntheticDataset : public Dataset {
 public:
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const DatasetOptions& o) {
    auto dataset = std::unique_ptr<SyntheticDataset>(new SyntheticDataset);
    auto kind = SyntheticKindOf(o.synthetic);
    if (!kind.ok()) return kind.status();
    auto dtype = DTypeOf(o.dtype.empty() ? "fp32" : o.dtype);
    if (!dtype.ok()) return dtype.status();
    constexpr int64_t kMostKeys = int64_t{1} << 28;
    if (o.num_keys < o.granule || o.num_keys > kMostKeys) {
      return absl::InvalidArgumentError(
          absl::StrCat("--num-keys: ", o.num_keys, " is not in [", o.granule, ", ", kMostKeys, "]"));
    }
    if (std::find(std::begin(kHeadDims), std::end(kHeadDims), o.head_dim) == std::end(kHeadDims)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--head-dim: ", o.head_dim, " is none of ", absl::StrJoin(kHeadDims, ", ")));
    }
    if (!o.layers.empty()) return absl::InvalidArgumentError("--layers: only a trace has layers");
    DatasetInfo& info = dataset->info_;
    info.source = o.synthetic;
    info.synthetic = true;
    info.layers = {0};
    info.head_dim = o.head_dim;
    info.dtype = *dtype;
    info.num_tokens = info.zone_end = o.num_keys / o.granule * o.granule;
    info.num_positions = o.num_queries > 0 ? o.num_queries : 64;
    if (*kind == SyntheticKind::kRope) info.rope_json = R"({"rope_type": "default", "rope_theta": 500000.0})";
    dataset->own_ = o.own_queries ? kOwnQueries : 0;
    dataset->options_ = {*kind, info.num_tokens, info.num_positions + dataset->own_, o.head_dim, o.seed};
    return dataset;
  }

  absl::StatusOr<Head> Load(int) const override {
    SyntheticHead made = MakeSynthetic(options_);
    Head head;
    head.num_tokens = head.zone_end = info_.num_tokens;
    head.keys = std::move(made.keys);
    head.queries = std::move(made.queries);
    const int64_t asked = info_.num_positions * info_.head_dim;
    head.own_queries.assign(head.queries.begin() + asked, head.queries.end());
    head.queries.resize(asked);
    for (int64_t i = 0; i < own_; ++i) head.own_positions.push_back(info_.num_tokens + info_.num_positions + i);
    head.tokens = ToDType(info_.dtype, &head.keys);
    return head;
  }

  absl::StatusOr<std::vector<float>> LoadValues(int) const override { return std::vector<float>(); }

 private:
  static constexpr int64_t kOwnQueries = 512;
  SyntheticOptions options_;
  int64_t own_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> Dataset::Open(const DatasetOptions& options) {
  if (options.trace.empty() == options.synthetic.empty()) {
    return absl::InvalidArgumentError("give exactly one of --trace FILE and --synthetic KIND");
  }
  if (options.sink < 0) return absl::InvalidArgumentError("--sink: at least 0");
  if (options.num_queries < 0) return absl::InvalidArgumentError("--num-queries: at least 0");
  return options.trace.empty() ? SyntheticDataset::Open(options) : TraceDataset::Open(options);
}

const char* NameOf(DType dtype) {
  return dtype == DType::kFloat32 ? "fp32" : dtype == DType::kFloat16 ? "fp16" : "bf16";
}

std::vector<uint8_t> ToDType(DType dtype, std::vector<float>* values) {
  std::vector<uint8_t> out(values->size() * SizeOf(dtype));
  if (dtype == DType::kFloat32) {
    std::memcpy(out.data(), values->data(), out.size());
    return out;
  }
  auto* halves = reinterpret_cast<uint16_t*>(out.data());
  for (size_t i = 0; i < values->size(); ++i) {
    float& v = (*values)[i];
    halves[i] = dtype == DType::kFloat16 ? FloatToHalf(v) : FloatToBf16(v);
    v = dtype == DType::kFloat16 ? HalfToFloat(halves[i]) : Bf16ToFloat(halves[i]);
  }
  return out;
}

}  // namespace seine::bench
