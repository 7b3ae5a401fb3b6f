// Codes over an engine's cells: encoding windows, comparing rows with their hashes, attention of one KV head.
#include "index/cells/cell_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"
#include "index/cells/outliers.h"
#include "index/quality/judge.h"
#include "kernels/host.h"
#include "profile/field_error.h"
#include "profile/layout.h"

namespace seine {

namespace {

// Each answer compares a piece of a window with its hashes, a quarter of it.
constexpr int64_t kPieces = 4, kPieceCells = kWindowTokens / kPieces;
constexpr int kOneChunk = std::numeric_limits<int>::max();  // an engine's rows

IndexConfig ToIndexConfig(const CellConfig& config) {
  IndexConfig index;
  index.geometry = config.geometry;
  index.geometry.dtype = DType::kFloat16;
  index.codec = config.codec;
  index.search = config.search;
  index.search.scope = Scope::kPerQHead;
  if (index.search.softmax_scale == 0) {
    index.search.softmax_scale = 1 / std::sqrt(static_cast<float>(config.geometry.head_dim));
  }
  index.kv_store = KvStore::kKeysValues;
  return index;
}

// Cells of the zone, ascending, as counted among the zone's alone.
std::vector<std::vector<int32_t>> ToZoneKeys(std::vector<std::vector<int32_t>> sets, const std::vector<WindowRun>& zone,
                                             int64_t zone_begin) {
  for (std::vector<int32_t>& set : sets) {
    auto run = zone.begin();
    int64_t before = 0;  // keys of the zone's runs before this one
    for (int32_t& cell : set) {
      const int64_t key = cell - zone_begin;
      for (; key >= run->end * kWindowTokens; ++run) before += (run->end - run->begin) * kWindowTokens;
      cell = static_cast<int32_t>(before + key - run->begin * kWindowTokens);
    }
  }
  return sets;
}

}  // namespace

CellContext::CellContext(const CellConfig& config, IndexConfig index)
    : config_(config),
      index_(std::move(index)),
      backend_(MakeCpuBackend(/*threads=*/1)),
      ledger_(backend_.get(), 0, 0, nullptr),
      transforms_(&index_, &ledger_, config.rotation),
      codes_(backend_.get(), transforms_.layout(), /*heads=*/1, /*with_counts=*/false),
      hashes_(/*heads=*/1, sizeof(uint32_t)),
      hash_parts_{&hashes_,         MemoryKind::kCode, codes_.segment_keys, codes_.segment_keys, codes_.segment_keys,
                  &codes_.fine_pool} {}

absl::StatusOr<std::unique_ptr<CellContext>> CellContext::Create(const CellConfig& config) {
  if (config.sink < 0) return BadField("sink", "must not be negative");
  if (config.local < 0) return BadField("local", "must not be negative");
  if (config.capacity < 1 || config.capacity > std::numeric_limits<int32_t>::max()) {
    return BadField("capacity", config.capacity, " is not in [1, 2^31)");
  }
  if (config.shortest < 1) return BadField("shortest", "must be positive");
  if (config.rotation != 0 && (!absl::has_single_bit(static_cast<uint32_t>(config.rotation)) ||
                               config.geometry.head_dim % config.rotation != 0)) {
    return BadField("rotation", config.rotation, " is no power of two that divides head_dim");
  }
  IndexConfig index = ToIndexConfig(config);
  if (absl::Status s = Validate(index); !s.ok()) return s;
  // A window is encoded by itself, whatever its neighbours are.
  const CodecConfig& codec = index.codec;
  if (codec.centre == Centre::kGlobal) return BadField("codec.centre", "global, which cells do not have");
  if (codec.centre == Centre::kWindow && codec.centre_window != kWindowTokens) {
    return BadField("codec.centre_window", codec.centre_window, " is not ", kWindowTokens, ", a window of cells");
  }
  if (absl::Status s = Validate(index.search, index); !s.ok()) return s;
  index.codec.profile = InLayout(std::move(index.codec.profile), index.geometry.rope);
  return std::unique_ptr<CellContext>(new CellContext(config, std::move(index)));
}

absl::StatusOr<std::unique_ptr<CellLayer>> CellLayer::Create(CellContext* context, int layer) {
  std::unique_ptr<CellLayer> made(new CellLayer(context, layer));
  for (int h = 0; h < context->config_.geometry.num_kv_heads; ++h) {
    made->heads_.emplace_back(*context, h);
    if (absl::Status s = made->Refit(h, context->config_.shortest); !s.ok()) return s;
  }
  return made;
}

CellLayer::Head::Head(const CellContext& context, int head)
    : codes(&context.codes_, head), hashes(&context.hashes_, &context.hash_parts_) {}

int64_t CellLayer::LengthToSuit(int64_t length) const {
  const CellConfig& config = context_->config_;
  const auto least = static_cast<uint64_t>(std::max(length, config.shortest));
  return std::min(config.capacity, static_cast<int64_t>(absl::bit_ceil(least)));
}

int CellLayer::FindOutgrown(int64_t length) const {
  const int64_t wanted = LengthToSuit(length);
  for (int h = 0; h < num_heads(); ++h) {
    // Without positions all lengths have the same codecs.
    if (heads_[h].suits < wanted && heads_[h].codes.codecs()->position >= 0) return h;
  }
  return -1;
}

absl::Status CellLayer::Refit(int head, int64_t length) {
  Head& of = heads_[head];
  of.suits = LengthToSuit(length);
  absl::StatusOr<std::shared_ptr<const LayerCodecs>> codecs = context_->transforms_.Of(layer_, of.suits);
  if (!codecs.ok()) return codecs.status();
  if (of.codes.codecs() != *codecs) std::fill(of.fresh.begin(), of.fresh.end(), uint8_t{0});
  of.codes.Choose(*std::move(codecs));
  return absl::OkStatus();
}

std::pair<int64_t, int64_t> CellLayer::WindowsOf(int64_t begin, int64_t end) const {
  const int64_t sink = context_->config_.sink;
  return {std::max<int64_t>(0, begin - sink) / kWindowTokens,
          (std::max(end - sink, int64_t{0}) + kWindowTokens - 1) / kWindowTokens};
}

void CellLayer::Placed(int64_t begin, int64_t end) {
  const auto [first, last] = WindowsOf(begin, end);
  order_.Wrote(first, last);
}

int64_t CellLayer::Changed(int64_t begin, int64_t end) {
  const auto [first, last] = WindowsOf(begin, end);
  int64_t changed = 0;
  for (Head& head : heads_) {
    for (int64_t w = first; w < std::min(windows_, last); ++w) changed += std::exchange(head.fresh[w], uint8_t{0});
  }
  return changed;
}

SeenCells CellLayer::Divide(std::vector<CellRun> runs) const {
  return seine::Divide(std::move(runs), context_->config_.sink, context_->config_.local, order_);
}

absl::Status CellLayer::Reserve(int64_t num_cells) {
  const int64_t wanted = (num_cells - context_->config_.sink) / kWindowTokens;
  if (wanted <= windows_) return absl::OkStatus();
  const int64_t windows = (wanted + kWindowsOfSegment - 1) / kWindowsOfSegment * kWindowsOfSegment;
  const int64_t keys = windows * kWindowTokens;
  Staging staging;
  for (Head& head : heads_) {
    head.codes.PlanGrow(keys, &staging);
    head.hashes.Plan(windows_ * kWindowTokens, keys, &staging);
  }
  if (absl::Status s = staging.Allocate(&context_->ledger_); !s.ok()) return s;
  staging.Install();
  for (Head& head : heads_) {
    head.codes.Extend(keys);
    head.hashes.Refresh();
    head.means.resize(windows * host::WindowMeansBytes(context_->config_.geometry.head_dim));
    head.value_hashes.resize(windows);
    head.fresh.resize(windows, 0);
    head.outliers.resize(windows);
  }
  windows_ = windows;
  return absl::OkStatus();
}

ConstRows CellLayer::Keys(int head, int64_t cell, const CellRows& rows) const {
  return {rows.keys + cell * rows.key_cell + head * rows.key_head, rows.key_cell, rows.key_type};
}

ConstRows CellLayer::Values(int head, int64_t cell, const CellRows& rows) const {
  return {rows.values + cell * rows.value_cell + head * rows.value_head, rows.value_cell, rows.value_type};
}

void CellLayer::HashCells(int head, int64_t first, int64_t count, const CellRows& rows, uint32_t* hashes) const {
  host::HashRows(Keys(head, context_->config_.sink + first, rows), nullptr, static_cast<int>(count),
                 context_->config_.geometry.head_dim, hashes);
}

uint32_t CellLayer::HashValues(int head, int64_t window, const CellRows& rows) const {
  uint32_t of_rows[kWindowTokens];
  host::HashRows(Values(head, context_->config_.sink + window * kWindowTokens, rows), nullptr, kWindowTokens,
                 context_->config_.geometry.head_dim, of_rows);
  constexpr uint32_t kOdd = 0x9E3779B1;  // rows that change places give another sum
  uint32_t sum = 0;
  for (const uint32_t hash : of_rows) sum = sum * kOdd + hash;
  return sum;
}

void CellLayer::ListStale(int64_t begin, int64_t end, int64_t most, std::vector<Run>* runs) const {
  for (int h = 0; h < static_cast<int>(heads_.size()); ++h) {
    const std::vector<uint8_t>& fresh = heads_[h].fresh;
    for (int64_t w = begin; w < end;) {
      const void* const stale = std::memchr(fresh.data() + w, 0, end - w);
      if (stale == nullptr) break;
      w = static_cast<const uint8_t*>(stale) - fresh.data();
      // A run stays in its segment.
      const int64_t stop = std::min({end, w + most, (w / kWindowsOfSegment + 1) * kWindowsOfSegment});
      int64_t next = w;
      while (next < stop && fresh[next] == 0) ++next;
      runs->push_back({h, w, next - w});
      w = next;
    }
  }
}

void CellLayer::ListStale(const SeenCells& seen, int64_t most, std::vector<Run>* runs) const {
  for (const WindowRun& run : seen.zone) ListStale(run.begin, run.end, most, runs);
}

bool CellLayer::Encode(const Run& run, const CellRows& rows) {
  Head& head = heads_[run.head];
  const int dim = context_->config_.geometry.head_dim;
  const int64_t cell = context_->config_.sink + run.window * kWindowTokens;
  const auto count = static_cast<int>(run.count * kWindowTokens);
  const ConstRows keys = Keys(run.head, cell, rows), values = Values(run.head, cell, rows);
  if (host::FirstNonFinite(keys, count, dim) >= 0 || host::FirstNonFinite(values, count, dim) >= 0) return false;
  const int64_t first = run.window * kWindowTokens;
  head.codes.Encode(0, first, keys, count);
  std::vector<float> floats(2 * static_cast<size_t>(kWindowTokens) * dim);
  float* of_values = floats.data() + static_cast<size_t>(kWindowTokens) * dim;
  for (int64_t w = 0; w < run.count; ++w) {
    host::ToFloat(Keys(run.head, cell + w * kWindowTokens, rows), kWindowTokens, dim, floats.data());
    host::ToFloat(Values(run.head, cell + w * kWindowTokens, rows), kWindowTokens, dim, of_values);
    host::EncodeWindowMeans(floats.data(), of_values, dim,
                            head.means.data() + (run.window + w) * host::WindowMeansBytes(dim));
    head.outliers[run.window + w] = FindOutliers(floats.data(), dim);
    head.value_hashes[run.window + w] = HashValues(run.head, run.window + w, rows);
  }
  std::vector<uint32_t> hashes(count);
  HashCells(run.head, first, count, rows, hashes.data());
  head.hashes.Write(first, reinterpret_cast<const uint8_t*>(hashes.data()), count, sizeof(uint32_t));
  std::fill_n(head.fresh.begin() + run.window, run.count, uint8_t{1});
  return true;
}

void CellLayer::FetchCells(int head, int64_t first, int64_t count, const CellRows& rows) const {
  const size_t row_bytes = BytesOf(rows.key_type, context_->config_.geometry.head_dim);
  host::PrefetchRange(&heads_[head].hash(first), count * sizeof(uint32_t));
  for (int64_t i = first; i < first + count; ++i) {
    host::PrefetchRange(Keys(head, context_->config_.sink + i, rows).data, row_bytes);
  }
}

bool CellLayer::Unchanged(int head, int64_t first, int64_t count, const CellRows& rows) const {
  const uint32_t* hashes = &heads_[head].hash(first);  // of one window, and so of one segment
  uint32_t now[kWindowTokens];
  HashCells(head, first, count, rows, now);
  return std::equal(now, now + count, hashes);
}

int64_t CellLayer::Verify(int head, int64_t end, const CellRows& rows) {
  const int64_t windows = std::min(windows_, std::max<int64_t>(0, end - context_->config_.sink) / kWindowTokens);
  int64_t changed = 0;
  for (int64_t w = 0; w < windows; ++w) {
    if (heads_[head].fresh[w] == 0) continue;
    if (Unchanged(head, w * kWindowTokens, kWindowTokens, rows) &&
        HashValues(head, w, rows) == heads_[head].value_hashes[w]) {
      continue;
    }
    heads_[head].fresh[w] = 0;
    ++changed;
  }
  return changed;
}

CellLayer::RowStarts CellLayer::StartsOf(int head, const CellRows& rows) const {
  return {static_cast<const uint8_t*>(Keys(head, 0, rows).data),
          static_cast<const uint8_t*>(Values(head, 0, rows).data), heads_[head].means.data()};
}

host::AttentionTask CellLayer::AttentionOf(const float* queries, int count, const CellRows& rows,
                                           const RowStarts& at) const {
  const Geometry& g = context_->config_.geometry;
  host::AttentionTask task;
  task.queries = queries;
  task.group = count;
  task.windows = {&at.means, kOneChunk};
  task.scale = context_->index_.search.softmax_scale;
  task.softcap = context_->config_.softcap;
  task.keys = {&at.key, kOneChunk, g.head_dim, rows.key_type, rows.key_cell};
  task.values = {&at.value, kOneChunk, g.head_dim, rows.value_type, rows.value_cell};
  return task;
}

SearchParams CellLayer::ParamsOf(int top_k) const {
  SearchParams search = context_->index_.search;
  search.top_k = top_k;
  return search;
}

void CellLayer::Search(int head, const SeenCells& seen, int top_k, host::AttentionTask* attention,
                       SearchOutput* found) const {
  const SearchParams search = ParamsOf(top_k);
  SearchTask task;
  heads_[head].codes.PrepareSearch(0, &task);
  task.num_keys = seen.end_window() * kWindowTokens;
  task.zone_begin = attention->zone_begin = context_->config_.sink;
  task.keys = attention->keys;
  task.queries = attention->queries;
  task.group = attention->group;
  if (!seen.one_run()) {
    task.runs = attention->window_runs = &seen.zone;
    task.keys_of_runs = seen.num_windows * kWindowTokens;
  }
  task.whole = seine::ReadsWhole(search, task.group, task.searched_keys());
  (void)context_->backend_->Search(&task, 1, search, found);  // on the CPU: it is done
  attention->sets = &found->positions;
  attention->logits = &found->scores;
  attention->dense = seen.dense;
  if (context_->config_.tail) attention->num_windows = seen.end_window();
  if (!task.whole) AddOutliers(heads_[head].outliers.data(), seen.zone, *attention, found);
}

bool CellLayer::Attend(int head, const float* queries, int count, const SeenCells& seen, const CellRows& rows,
                       int top_k, float* out, float* log_sum_exp) {
  if (seen.zone.empty()) {
    AttendExactly(head, queries, count, seen, rows, out, log_sum_exp);
    return true;
  }
  Head& of = heads_[head];
  const int64_t sink = context_->config_.sink;
  const int64_t piece = of.next_check.fetch_add(1, std::memory_order_relaxed) % (seen.num_windows * kPieces);
  const int64_t check = seen.window(piece / kPieces) * kWindowTokens + piece % kPieces * kPieceCells;
  FetchCells(head, check, kPieceCells, rows);
  const RowStarts at = StartsOf(head, rows);
  host::AttentionTask attention = AttentionOf(queries, count, rows, at);
  static thread_local SearchOutput found;
  Search(head, seen, top_k, &attention, &found);
  static thread_local std::vector<int32_t> chosen;
  static thread_local std::vector<uint32_t> hashes;
  chosen.clear();
  for (const std::vector<int32_t>& set : found.positions) {
    for (const int32_t cell : set) {
      chosen.push_back(cell);
      host::PrefetchFar(&of.hash(cell - sink));
    }
  }
  float unread[kMaxGroup];
  host::Attend(attention, out, log_sum_exp == nullptr ? unread : log_sum_exp);
  if (hashes.size() < chosen.size()) hashes.resize(chosen.size());
  host::HashRows(Keys(head, 0, rows), chosen.data(), static_cast<int>(chosen.size()), attention.keys.head_dim,
                 hashes.data());
  uint32_t differ = 0;  // read at the end: a branch for each key would take longer
  for (size_t i = 0; i < chosen.size(); ++i) differ |= hashes[i] ^ of.hash(chosen[i] - sink);
  return differ == 0 && Unchanged(head, check, kPieceCells, rows);
}

void CellLayer::AttendExactly(int head, const float* queries, int count, const SeenCells& seen, const CellRows& rows,
                              float* out, float* log_sum_exp) const {
  const RowStarts at = StartsOf(head, rows);
  host::AttentionTask attention = AttentionOf(queries, count, rows, at);
  attention.dense = seen.all;
  float unread[kMaxGroup];
  host::Attend(attention, out, log_sum_exp == nullptr ? unread : log_sum_exp);
}

bool CellLayer::ReadsWhole(const SeenCells& seen, int count, int top_k) const {
  return seine::ReadsWhole(ParamsOf(top_k), count, seen.num_windows * kWindowTokens);
}

double CellLayer::Lost(int head, const float* queries, int count, const SeenCells& seen, const CellRows& rows,
                       int top_k) const {
  const RowStarts at = StartsOf(head, rows);
  host::AttentionTask attention = AttentionOf(queries, count, rows, at);
  SearchOutput found;
  Search(head, seen, top_k, &attention, &found);
  QualitySample::Head judged;  // whose places are the zone's cells in a row, and behind them the dense ones
  judged.zone_keys = judged.size = seen.num_windows * kWindowTokens;
  for (const CellRun& run : seen.dense) judged.size += run.end - run.begin;
  judged.found = ToZoneKeys(std::move(found.positions), seen.zone, attention.zone_begin);
  std::vector<float> logits(count * judged.size);
  float* out = logits.data();
  const auto dot = [&](int64_t begin, int64_t end) {
    host::DotRows(Keys(head, begin, rows), end - begin, attention.keys.head_dim, queries, count, out, judged.size);
    out += end - begin;
  };
  for (const WindowRun& run : seen.zone) {
    dot(attention.zone_begin + run.begin * kWindowTokens, attention.zone_begin + run.end * kWindowTokens);
  }
  for (const CellRun& run : seen.dense) dot(run.begin, run.end);
  ScaleLogits(attention.scale, attention.softcap, &logits);
  double lost = 0;
  for (const SetQuality& set : Judge(judged, ParamsOf(top_k), count, logits)) lost += set.lost;
  return lost / count;
}

int64_t CellLayer::bytes() const {
  int64_t bytes = 0;
  for (const Head& head : heads_) {
    bytes += head.codes.bytes() + head.hashes.bytes();
    bytes += static_cast<int64_t>(head.means.size() + head.value_hashes.size() * sizeof(uint32_t) + head.fresh.size() +
                                  head.outliers.size() * sizeof(uint64_t));
  }
  return bytes;
}

int64_t CellLayer::BytesFor(int64_t num_cells) const {
  const int64_t windows = (num_cells - context_->config_.sink) / kWindowTokens;
  const int64_t segments = (windows + kWindowsOfSegment - 1) / kWindowsOfSegment;
  const CodeLayout& layout = context_->transforms_.layout();
  const size_t window = host::WindowMeansBytes(layout.head_dim) + sizeof(uint32_t) + sizeof(uint8_t) + sizeof(uint64_t);
  const size_t segment = CodeBytes(layout, kSegmentKeys) + kSegmentKeys * sizeof(uint32_t) + kWindowsOfSegment * window;
  return num_heads() * segments * static_cast<int64_t>(segment);
}

}  // namespace seine
