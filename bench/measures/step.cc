// See step.h.
#include "bench/measures/step.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/machine/median.h"
#include "bench/measures/recall.h"
#include "bench/report/progress.h"
#include "index/index.h"
#include "kernels/ops/attend/window_means.h"

namespace seine::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 51;
constexpr int kFewestRounds = 9;     // however slow
constexpr double kRoundSeconds = 4;  // no more rounds after so long
constexpr int64_t kTokensAtOnce = 8192;

double Microseconds(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// One index that holds all layers of a set.
class FilledIndex {
 public:
  static absl::StatusOr<std::unique_ptr<FilledIndex>> Make(const LayerSource& source, const LayerSet& set,
                                                           const StepOptions& options, Backend* backend) {
    const LayerDataOptions& data = source.options();
    IndexConfig config;
    config.name = "step";
    config.geometry = {data.layers, data.kv_heads * data.group, data.kv_heads, data.head_dim, DType::kFloat16, {}};
    config.zones = {data.sink, data.local, kWindowTokens, /*dense_threshold=*/0};
    config.codec = options.codec;
    if (set.profile != nullptr) {
      config.codec.profile = set.profile;
      config.codec.profile_name = set.profile->model;
      config.geometry.rope = source.rope();
      if (source.rope().stated()) config.codec.query_position = data.sink + set.num_keys;
    }
    config.search = options.search;
    config.kv_store = KvStore::kKeysValues;
    auto made = std::make_unique<FilledIndex>();
    auto index = Index::Create(config, backend);
    if (!index.ok()) return index.status();
    made->index_ = *std::move(index);
    auto sequence = made->index_->CreateSequence("");
    if (!sequence.ok()) return sequence.status();
    made->sequence_ = *sequence;
    return made;
  }

  absl::Status Append(int layer, const LayerRows& rows) {
    const size_t row = rows.head_dim * sizeof(uint16_t), token = rows.num_kv_heads * row;
    std::vector<uint8_t> keys(kTokensAtOnce * token), values(kTokensAtOnce * token);
    for (int64_t begin = 0; begin < rows.num_tokens; begin += kTokensAtOnce) {
      const int64_t count = std::min(kTokensAtOnce, rows.num_tokens - begin);
      for (int64_t t = 0; t < count; ++t) {
        for (int h = 0; h < rows.num_kv_heads; ++h) {
          const int64_t from = h * rows.head_bytes() + (begin + t) * static_cast<int64_t>(row);
          std::memcpy(&keys[t * token + h * row], rows.keys.data() + from, row);
          std::memcpy(&values[t * token + h * row], rows.values.data() + from, row);
        }
      }
      const size_t bytes = count * token;
      auto length = index_->Append(sequence_, layer, begin, {keys.data(), count, bytes}, {values.data(), count, bytes});
      if (!length.ok()) return length.status();
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ItemAnswer> Retrieve(int layer, const float* queries, const SearchParams& params) const {
    auto answers = index_->Retrieve({{sequence_, layer, queries}}, params);
    if (!answers.ok()) return answers.status();
    if (!answers->front().status.ok()) return answers->front().status;
    return std::move(answers->front());
  }

  absl::StatusOr<AttendAnswer> Attend(int layer, const float* queries, SearchParams params) const {
    params.scope = Scope::kPerQHead;
    auto answers = index_->Attend({{sequence_, layer, queries}}, params, AttentionParams());
    if (!answers.ok()) return answers.status();
    if (!answers->front().status.ok()) return answers->front().status;
    return std::move(answers->front());
  }

  absl::StatusOr<HeadInfo> Describe() const { return index_->DescribeHead(sequence_, 0, 0); }
  absl::StatusOr<SequenceInfo> Info() const { return index_->GetSequence(sequence_); }

 private:
  std::unique_ptr<Index> index_;
  SequenceHandle sequence_;
};

// How many different positions the lists of each group of heads hold, over all groups.
int64_t CountDistinct(const std::vector<std::vector<int32_t>>& lists, int group) {
  int64_t count = 0;
  for (size_t first = 0; first < lists.size(); first += group) {
    std::set<int32_t> all;
    for (int g = 0; g < group; ++g) all.insert(lists[first + g].begin(), lists[first + g].end());
    count += static_cast<int64_t>(all.size());
  }
  return count;
}

double Share(const std::vector<int32_t>& found, const std::vector<int32_t>& exact) {
  std::vector<int32_t> both;
  std::set_intersection(found.begin(), found.end(), exact.begin(), exact.end(), std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(exact.size());
}

// What is measured at one zone length.
class LengthBench {
 public:
  LengthBench(const LayerSource& source, const StepOptions& options, Backend* backend, MemoryProbe* probe)
      : source_(source), options_(options), data_(source.options()), backend_(backend), probe_(probe) {}

  absl::StatusOr<StepRow> Run(int64_t num_keys, Progress* progress) {
    const std::string what = absl::StrCat(num_keys, " keys: ");
    auto set = source_.Make(num_keys, backend_, [&] { progress->Step(what + "making heads", num_keys); });
    if (!set.ok()) return set.status();
    set_ = *std::move(set);
    auto index = FilledIndex::Make(source_, set_, options_, backend_);
    if (!index.ok()) return index.status();
    index_ = *std::move(index);
    for (int l = 0; l < data_.layers; ++l) {
      progress->Step(what + "encoding", 0);
      if (absl::Status s = index_->Append(l, set_.layers[l].rows); !s.ok()) return s;
      progress->Step(what + "encoding", num_keys * data_.kv_heads);
    }
    row_.num_keys = num_keys;
    row_.num_tokens = set_.num_tokens;
    if (absl::Status s = Count(); !s.ok()) return s;
    progress->Step(what + "steps", 0);
    if (absl::Status s = Time(); !s.ok()) return s;
    progress->Step(what + "steps", num_keys * data_.kv_heads * data_.layers);
    return row_;
  }

 private:
  const float* QueriesAt(int layer, int64_t position) const {
    const int64_t q_heads = int64_t{data_.kv_heads} * data_.group;
    return &set_.layers[layer].queries[position % source_.num_positions() * q_heads * data_.head_dim];
  }

  // Untimed: recall, candidates, and the bytes that a step must read.
  absl::Status Count() {
    double recall = 0;
    int64_t sets = 0, asked = 0, candidates = 0, all_candidates = 0, refined = 0, chosen = 0;
    SearchParams each = options_.search;  // of a query head, with its candidates
    each.scope = Scope::kPerQHead;
    each.with_candidates = true;
    SearchParams survivors = each;  // all that are refined are returned
    survivors.top_k = static_cast<int>(std::min<int64_t>(row_.num_keys, std::max(each.rescore_k, each.top_k)));
    for (int l = 0; l < data_.layers; ++l) {
      for (int64_t p = 0; p < data_.truth_positions; ++p, ++asked) {
        const auto& top = set_.layers[l].top[p];
        auto answer = index_->Retrieve(l, QueriesAt(l, p), options_.search);
        if (!answer.ok()) return answer.status();
        if (answer->positions.size() != top.size()) return absl::InternalError("another number of sets was asked for");
        for (size_t s = 0; s < top.size(); ++s, ++sets) recall += Share(answer->positions[s], top[s]);
        answer = index_->Retrieve(l, QueriesAt(l, p), each);
        if (!answer.ok()) return answer.status();
        for (const auto& list : answer->candidates) all_candidates += static_cast<int64_t>(list.size());
        candidates += CountDistinct(answer->candidates, data_.group);
        chosen += CountDistinct(answer->positions, data_.group);
        answer = index_->Retrieve(l, QueriesAt(l, p), survivors);
        if (!answer.ok()) return answer.status();
        refined += CountDistinct(answer->positions, data_.group);
      }
    }
    row_.recall_at_k = recall / static_cast<double>(sets);
    const auto steps = static_cast<double>(asked);
    row_.candidates = static_cast<double>(all_candidates) / (steps * data_.kv_heads * data_.group);
    return CountBytes(static_cast<double>(candidates) / steps, static_cast<double>(refined) / steps,
                      static_cast<double>(chosen) / steps);
  }

  // Of one layer's step; rows are distinct in a group.
  absl::Status CountBytes(double candidates, double refined, double chosen) {
    auto head = index_->Describe();
    if (!head.ok()) return head.status();
    auto info = index_->Info();
    if (!info.ok()) return info.status();
    row_.code_bytes = info->code_bytes;
    const CodeLayout& layout = head->layout;
    const double keys = static_cast<double>(row_.num_keys) * data_.kv_heads, row = 2.0 * data_.head_dim;
    double scanned = layout.coarse_bytes + 1 + 4.0 / kWindowTokens;  // kernels/codecs/code.h
    if (layout.centre_window > 0) scanned += (layout.head_dim + 4.0) / layout.centre_window;
    const double dense = static_cast<double>(data_.sink + data_.local) * data_.kv_heads * row;
    const double search = keys * scanned + candidates * layout.fine_bytes + refined * row;
    const double tail = keys / kWindowTokens * static_cast<double>(WindowMeansBytes(data_.head_dim));
    row_.bytes.retrieve = search;
    if (options_.search.scope == Scope::kPerKvHead && options_.search.gqa_reduce == GqaReduce::kSoftmaxSum) {
      row_.bytes.retrieve += dense;  // the softmax sums count the dense keys
    }
    row_.bytes.attend = search + chosen * row + 2 * dense + tail;
    row_.bytes.exact = 2 * keys * row + 2 * dense;
    return absl::OkStatus();
  }

  // Rounds of the three calls in turns, so that a shared machine's noise hits them alike; each with other queries than
  // the call before, on the next layer.
  absl::Status Time() {
    std::vector<double> us[3], other;
    std::vector<SearchStats> stats;
    std::vector<AttentionTimes> parts;
    const Clock::time_point begin = Clock::now();
    const int most = options_.repeat > 0 ? options_.repeat : kRounds;
    for (int round = -1; round < most; ++round) {  // the first one warms up and does not count
      const bool slow = Microseconds(begin) > kRoundSeconds * 1e6;
      if (options_.repeat == 0 && round >= kFewestRounds && slow) break;
      for (int call = 0; call < 3; ++call) {
        SearchStats of_call;
        AttentionTimes parts_of_call;
        auto took = TimeCall(call, &of_call, &parts_of_call);
        if (!took.ok()) return took.status();
        if (round < 0) continue;
        us[call].push_back(*took);
        if (call == 0) stats.push_back(of_call);
        if (call == 1) parts.push_back(parts_of_call);
      }
    }
    row_.rounds = static_cast<int>(stats.size());
    row_.us = {Median(us[0]), Median(us[1]), Median(us[2])};
    for (size_t i = 0; i < stats.size(); ++i) {
      const SearchStats& s = stats[i];
      other.push_back(us[0][i] -
                      static_cast<double>(s.prepare_ns + s.scan_ns + s.select_ns + s.rerank_ns + s.refine_ns) / 1e3);
    }
    row_.stage_us = {MedianUs(stats, &SearchStats::prepare_ns), MedianUs(stats, &SearchStats::scan_ns),
                     MedianUs(stats, &SearchStats::select_ns),  MedianUs(stats, &SearchStats::rerank_ns),
                     MedianUs(stats, &SearchStats::refine_ns),  std::nullopt};
    if (options_.threads == 1) row_.stage_us.other = Median(other);
    SplitAttend(us[1], parts);
    return absl::OkStatus();
  }

  void SplitAttend(const std::vector<double>& us, const std::vector<AttentionTimes>& parts) {
    using Times = AttentionTimes;
    row_.attend_us = {MedianUs(parts, &Times::dense_ns), MedianUs(parts, &Times::chosen_ns),
                      MedianUs(parts, &Times::tail_ns), MedianUs(parts, &Times::softmax_ns), std::nullopt};
    if (options_.threads != 1) return;
    std::vector<double> search;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Times& p = parts[i];
      search.push_back(us[i] - static_cast<double>(p.dense_ns + p.chosen_ns + p.tail_ns + p.softmax_ns) / 1e3);
    }
    row_.attend_us.search = Median(search);
  }

  template <typename Times>
  static double MedianUs(const std::vector<Times>& times, int64_t Times::*part) {
    std::vector<double> us;
    for (const Times& t : times) us.push_back(static_cast<double>(t.*part) / 1e3);
    return Median(us);
  }

  // 0: Retrieve, 1: Attend, 2: exact. Queries are in the cache, as a model has just computed them.
  absl::StatusOr<double> TimeCall(int call, SearchStats* stats, AttentionTimes* parts) {
    const int layer = static_cast<int>(calls_ % data_.layers);
    const float* from = QueriesAt(layer, calls_++);
    if (options_.cold) probe_->EvictCaches();
    queries_.assign(from, from + int64_t{data_.kv_heads} * data_.group * data_.head_dim);
    const Clock::time_point begin = Clock::now();
    absl::Status status;
    if (call == 0) {
      auto answer = index_->Retrieve(layer, queries_.data(), options_.search);
      status = answer.status();
      if (answer.ok()) *stats = answer->stats;
    } else if (call == 1) {
      auto answer = index_->Attend(layer, queries_.data(), options_.search);
      status = answer.status();
      if (answer.ok()) *parts = answer->times;
    } else {
      AttendExactly(set_.layers[layer].rows, queries_.data(), data_.group, backend_, &output_, &log_sum_exp_);
    }
    const double us = Microseconds(begin);
    if (!status.ok()) return status;
    return us;
  }

  const LayerSource& source_;
  const StepOptions& options_;
  const LayerDataOptions& data_;
  Backend* const backend_;
  MemoryProbe* const probe_;
  LayerSet set_;
  std::unique_ptr<FilledIndex> index_;
  StepRow row_;
  int64_t calls_ = 0;
  std::vector<float> queries_, output_, log_sum_exp_;
};

// What the system says is free; 0 where it does not say.
double AvailableBytes() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (double kib = 0; file >> name >> kib; std::getline(file, unit)) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

// Rows are held twice, the index's and the exact peer's; codes take less than a third of the keys; a head being made is
// in fp32, its values and their halves besides.
absl::Status CheckMemory(const LayerDataOptions& data, int64_t num_keys) {
  const double head = static_cast<double>(data.sink + num_keys + data.local) * data.head_dim;
  const double needed = head * data.kv_heads * data.layers * 9 + head * 16;
  const double available = AvailableBytes();
  if (available == 0 || needed < available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("--num-keys: %d keys of %d KV heads and %d layers need %.1f GB of memory, and %.1f GB are free",
                      num_keys, data.kv_heads, data.layers, needed / 1e9, available / 1e9));
}

}  // namespace

absl::StatusOr<std::vector<StepRow>> MeasureStep(const LayerSource& source, const StepOptions& options,
                                                 Backend* backend, MemoryProbe* probe) {
  int64_t total = 0;
  for (const int64_t keys : options.num_keys) {
    if (absl::Status s = CheckMemory(source.options(), keys); !s.ok()) return s;
    total += 3 * keys * source.options().kv_heads * source.options().layers;
  }
  Progress progress(total);
  std::vector<StepRow> rows;
  for (const int64_t keys : options.num_keys) {
    auto row = LengthBench(source, options, backend, probe).Run(keys, &progress);
    if (!row.ok()) return row.status();
    rows.push_back(*std::move(row));
  }
  for (StepRow& row : rows) {
    const double bytes_per_us = probe->best_gb_s() * 1e3;
    row.floor_us = {row.bytes.retrieve / bytes_per_us, row.bytes.attend / bytes_per_us, row.bytes.exact / bytes_per_us};
  }
  return rows;
}

BreakEven FindBreakEven(const std::vector<StepRow>& rows, double StepFigures::*method) {
  BreakEven found;
  if (rows.empty()) return found;
  const auto gap = [&](size_t i) { return std::log(rows[i].us.*method / rows[i].us.exact); };  // below 0: faster
  size_t last = rows.size() - 1;
  found.faster = gap(last) < 0;
  if (!found.faster) return found;
  while (last > 0 && gap(last - 1) < 0) --last;
  if (last == 0) return found;
  const double share = gap(last - 1) / (gap(last - 1) - gap(last));
  const double low = std::log(static_cast<double>(rows[last - 1].num_keys));
  const double high = std::log(static_cast<double>(rows[last].num_keys));
  found.num_keys = std::exp(low + share * (high - low));
  return found;
}

}  // namespace seine::bench
