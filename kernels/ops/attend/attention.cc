// Two passes over what a group sees, keys for the logits and values for the sums, with the softmax of each head between
// them. Every sum has one order, so the bits are the same on every target.
#include "kernels/ops/attend/attention.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>
#include <optional>

#include "kernels/codecs/codec_util.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/math.h"
#include "kernels/ops/low_rank/low_rank_products.h"
#include "kernels/ops/rows/rows.h"
#include "kernels/ops/rows/weighted_rows.h"
#include "kernels/ops/scan/coarse_stage.h"
#include "kernels/ops/select/select.h"
#include "kernels/stop.h"

namespace seine::cpu {
namespace {

// Logits, then weights.
struct Workspace {
  std::vector<float> dense;                   // [group][dense rows]
  std::vector<float> chosen[kMaxGroup];       // [group][rows of the head's set]
  std::vector<float> windows;                 // [group][windows]
  std::vector<float> key_steps, value_steps;  // [windows]
  std::vector<float> dots;
  std::vector<int8_t> queries8;  // [group][head_dim]
  std::vector<uint8_t> left;     // [windows] rows that a head has not chosen
  std::vector<int32_t> places;   // of dense rows that are low-rank
};

Workspace& Local() {
  static thread_local Workspace workspace;
  return workspace;
}

// Dense rows that lie together.
struct Part {
  int64_t place, count;
  bool low;  // kept low-rank
};

// The part that begins at `place` of the dense runs from *run on; an empty one behind the last.
Part PartFrom(const AttentionTask& task, const ChunkedRows& rows, int64_t place, size_t* run) {
  while (*run < task.dense.size() && place >= task.dense[*run].end) {
    if (++*run < task.dense.size()) place = task.dense[*run].begin;
  }
  if (*run == task.dense.size()) return {place, 0, false};
  const int64_t end = task.dense[*run].end;
  if (place >= task.low.begin && place < task.low.end) return {place, std::min(task.low.end, end) - place, true};
  const int64_t stop = place < task.low.begin ? std::min(end, task.low.begin) : end;
  return {place, std::min(rows.chunk_tokens - place % rows.chunk_tokens, stop - place), false};
}

RowsAhead AheadOf(const ChunkedRows& rows, const Part& part) {
  if (part.count == 0 || part.low) return {};
  return {{rows.row(part.place), rows.stride(), rows.dtype}, part.count};
}

RowsAhead FirstDense(const AttentionTask& task, const ChunkedRows& rows) {
  size_t run = 0;
  return AheadOf(rows, PartFrom(task, rows, task.dense.empty() ? 0 : task.dense[0].begin, &run));
}

// Dense rows in order: use(rows, count, offset, ahead) for what lies together in a chunk, use_low(places, count,
// offset) for what is low-rank; `offset` from the first run's begin. `ahead` is what comes next, at the end `behind`.
template <typename Use, typename UseLow>
void ForEachPart(const AttentionTask& task, const ChunkedRows& rows, const RowsAhead& behind, Workspace* w, Use use,
                 UseLow use_low) {
  size_t run = 0;
  int64_t offset = 0;
  Part part = PartFrom(task, rows, task.dense.empty() ? 0 : task.dense[0].begin, &run);
  while (part.count > 0 && !StopRequested()) {
    const Part next = PartFrom(task, rows, part.place + part.count, &run);
    if (part.low) {
      w->places.resize(part.count);
      std::iota(w->places.begin(), w->places.end(), static_cast<int32_t>(part.place));
      use_low(w->places.data(), part.count, offset);
    } else {
      use(ConstRows{rows.row(part.place), rows.stride(), rows.dtype}, part.count, offset,
          next.count > 0 ? AheadOf(rows, next) : behind);
    }
    offset += part.count;
    part = next;
  }
}

void CapLogits(const AttentionTask& task, std::vector<float>* logits) {
  if (task.softcap > 0) CapEach(logits->data(), logits->size(), task.softcap);
}

int64_t Size(const std::vector<PlaceRun>& runs) {
  int64_t size = 0;
  for (const PlaceRun& run : runs) size += run.end - run.begin;
  return size;
}

void DenseLogits(const AttentionTask& task, int64_t size, LowRankDots* low, Workspace* w) {
  w->dense.resize(size * task.group);
  ForEachPart(
      task, task.keys, FirstDense(task, task.values), w,
      [&](const ConstRows& rows, int64_t count, int64_t offset, const RowsAhead& ahead) {
        DotRows(rows, count, task.keys.head_dim, task.queries, task.group, w->dense.data() + offset, size, ahead);
      },
      [&](const int32_t* places, int64_t count, int64_t offset) {
        low->Dot(places, count, 0, task.group, w->dense.data() + offset, size);
      });
  for (float& logit : w->dense) logit *= task.scale;
  CapLogits(task, &w->dense);
}

const std::vector<int32_t>& SetOf(const AttentionTask& task, int g) {
  return (*task.sets)[task.sets->size() == 1 ? 0 : g];
}

// out[i][r] = <query first + i, row r of the set>, i < together.
void DotSet(const AttentionTask& task, const std::vector<int32_t>& set, int first, int together, LowRankDots* low,
            float* out) {
  const int count = static_cast<int>(set.size());
  if (low != nullptr) return low->Dot(set.data(), count, first, together, out, count);
  DotGather(task.keys, set.data(), count, task.queries + int64_t{first} * task.keys.head_dim, together, out);
}

void ChosenLogits(const AttentionTask& task, LowRankDots* low, Workspace* w) {
  for (int g = 0; g < task.group; ++g) w->chosen[g].clear();
  if (task.sets == nullptr) return;
  assert(task.sets->size() == 1 || static_cast<int>(task.sets->size()) == task.group);
  if (task.logits != nullptr) {
    for (int g = 0; g < task.group; ++g) {
      w->chosen[g] = (*task.logits)[g];
      CapLogits(task, &w->chosen[g]);
    }
    return;
  }
  const bool shared = task.sets->size() == 1;
  const int together = shared ? task.group : 1;
  for (int g = 0; g < task.group; g += together) {
    const std::vector<int32_t>& set = SetOf(task, g);
    const auto count = static_cast<int64_t>(set.size());
    w->dots.resize(count * together);
    DotSet(task, set, g, together, low, w->dots.data());
    for (float& logit : w->dots) logit *= task.scale;
    CapLogits(task, &w->dots);
    for (int i = 0; i < together; ++i) {
      w->chosen[g + i].assign(w->dots.begin() + i * count, w->dots.begin() + (i + 1) * count);
    }
  }
}

// The windows that count in: use(begin, end) of each run.
template <typename Use>
void ForEachWindowRun(const AttentionTask& task, Use use) {
  if (task.window_runs == nullptr || task.num_windows == 0) return use(int64_t{0}, task.num_windows);
  for (const WindowRun& run : *task.window_runs) use(run.begin, run.end);
}

// Windows lie in chunks: use(records, count, first) for what lies together.
template <typename Use>
void ForEachWindowPart(const AttentionTask& task, Use use) {
  const int64_t length = task.windows.chunk_windows;
  const size_t stride = WindowMeansBytes(task.keys.head_dim);
  ForEachWindowRun(task, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin, next; first < end; first = next) {
      next = std::min(end, (first / length + 1) * length);
      use(task.windows.chunks[first / length] + first % length * stride, next - first, first);
    }
  });
}

// Windows that do not count in weigh nothing.
void MaskOtherWindows(const AttentionTask& task, Workspace* w) {
  if (task.window_runs == nullptr || task.num_windows == 0) return;
  int64_t end_before = 0;
  const auto mask = [&](int64_t begin, int64_t end) {
    std::fill(w->value_steps.begin() + begin, w->value_steps.begin() + end, 0.0f);
    for (int g = 0; g < task.group; ++g) {
      std::fill_n(w->windows.begin() + g * task.num_windows + begin, end - begin, -INFINITY);
    }
  };
  ForEachWindowRun(task, [&](int64_t begin, int64_t end) {
    mask(end_before, begin);
    end_before = end;
  });
  mask(end_before, task.num_windows);
}

// scale <q, c_w>, queries in int8 as the scan has them.
void WindowLogits(const AttentionTask& task, Workspace* w) {
  const int dim = task.keys.head_dim;
  const size_t stride = WindowMeansBytes(dim);
  w->windows.resize(task.num_windows * task.group);
  w->queries8.resize(int64_t{task.group} * dim);
  w->key_steps.resize(task.num_windows);
  w->value_steps.resize(task.num_windows);
  float unit[kMaxGroup];
  for (int g = 0; g < task.group; ++g) {
    unit[g] = Quantise8(task.queries + int64_t{g} * dim, dim, w->queries8.data() + int64_t{g} * dim) * task.scale;
  }
  ForEachWindowPart(task, [&](const uint8_t* records, int64_t count, int64_t first) {
    DotRows8(reinterpret_cast<const int8_t*>(records), stride, count, dim, w->queries8.data(), task.group,
             task.num_windows, w->windows.data() + first);
    for (int64_t i = 0; i < count; ++i) {
      const WindowSteps steps = StepsOf(records + i * stride, dim);
      w->key_steps[first + i] = steps.key;
      w->value_steps[first + i] = steps.value;
    }
  });
  for (int g = 0; g < task.group; ++g) {
    ScaleEach(w->windows.data() + g * task.num_windows, w->key_steps.data(), unit[g], task.num_windows);
  }
  CapLogits(task, &w->windows);
  MaskOtherWindows(task, w);
}

float Largest(const float* x, size_t n) {
  float smallest, largest = -INFINITY;
  if (n > 0) Range(x, n, &smallest, &largest);
  return largest;
}

// Turns head g's logits into weights; returns their sum and sets the log-sum-exp.
float Softmax(const AttentionTask& task, int g, int64_t dense_size, Workspace* w, float* log_sum_exp) {
  float* dense = w->dense.data() + g * dense_size;
  float* windows = w->windows.data() + g * task.num_windows;
  std::vector<float>& chosen = w->chosen[g];
  const float most =
      std::max({Largest(dense, dense_size), Largest(chosen.data(), chosen.size()), Largest(windows, task.num_windows)});
  float lanes[16] = {0};
  ExpInPlace(dense, dense_size, most, lanes);
  ExpInPlace(chosen.data(), chosen.size(), most, lanes);
  if (task.num_windows > 0) {
    float of_one_row_each[16] = {0};
    ExpInPlace(windows, task.num_windows, most, of_one_row_each);
    w->left.assign(task.num_windows, kWindowTokens);
    for (const int32_t place : SetOf(task, g)) --w->left[(place - task.zone_begin) / kWindowTokens];
    CountEach(windows, w->left.data(), task.num_windows, lanes);
  }
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  *log_sum_exp = sum > 0 ? most + LogPositive(sum) : -INFINITY;
  return sum;
}

// Lists the rows with their weights, of which head g's add up to sums[g].
void ListAttended(const AttentionTask& task, int64_t size, const float* sums, const Workspace& w, AttendedRows* out) {
  out->places.clear();
  out->weights.clear();
  float shares[kMaxGroup];
  for (int g = 0; g < task.group; ++g) shares[g] = sums[g] > 0 ? 1.0f / (sums[g] * static_cast<float>(task.group)) : 0;
  out->weights.assign(size, 0.0f);
  for (const PlaceRun& run : task.dense) {
    for (int64_t place = run.begin; place < run.end; ++place) out->places.push_back(static_cast<int32_t>(place));
  }
  for (int g = 0; g < task.group; ++g) {
    for (int64_t i = 0; i < size; ++i) out->weights[i] += w.dense[g * size + i] * shares[g];
  }
  for (int g = 0; g < task.group && task.sets != nullptr; ++g) {
    const std::vector<int32_t>& set = SetOf(task, g);
    out->places.insert(out->places.end(), set.begin(), set.end());
    for (const float weight : w.chosen[g]) out->weights.push_back(weight * shares[g]);
  }
}

void AddDense(const AttentionTask& task, int64_t size, LowRankSums* low, Workspace* w, float* output) {
  ForEachPart(
      task, task.values, {}, w,
      [&](const ConstRows& rows, int64_t count, int64_t offset, const RowsAhead& ahead) {
        AddRows(rows, count, task.values.head_dim, w->dense.data() + offset, task.group, size, output, ahead);
      },
      [&](const int32_t* places, int64_t count, int64_t offset) {
        low->Add(places, count, w->dense.data() + offset, 0, task.group, size);
      });
}

// output[first + i] += the sum of the set's values, weighted by weights[i], i < heads.
void AddSet(const AttentionTask& task, const std::vector<int32_t>& set, const float* weights, int first, int heads,
            LowRankSums* low, float* output) {
  const auto count = static_cast<int64_t>(set.size());
  if (low != nullptr) return low->Add(set.data(), count, weights, first, heads, count);
  AddGathered(task.values, set.data(), count, weights, heads, count, output + int64_t{first} * task.values.head_dim);
}

// output += the weighted sum of the values that the sets name.
void AddChosen(const AttentionTask& task, LowRankSums* low, Workspace* w, float* output) {
  if (task.sets == nullptr) return;
  if (task.sets->size() == 1) {  // one set: its rows are read once for all heads
    w->dots.clear();
    for (int g = 0; g < task.group; ++g) w->dots.insert(w->dots.end(), w->chosen[g].begin(), w->chosen[g].end());
    return AddSet(task, SetOf(task, 0), w->dots.data(), 0, task.group, low, output);
  }
  for (int g = 0; g < task.group; ++g) {
    AddSet(task, SetOf(task, g), w->chosen[g].data(), g, 1, low, output);
  }
}

// output += the windows' values, by weights that take in a value's unit.
void AddWindows(const AttentionTask& task, Workspace* w, float* output) {
  const int dim = task.values.head_dim;
  const size_t stride = WindowMeansBytes(dim);
  for (int g = 0; g < task.group; ++g) {
    ScaleEach(w->windows.data() + g * task.num_windows, w->value_steps.data(), 1.0f, task.num_windows);
  }
  ForEachWindowPart(task, [&](const uint8_t* records, int64_t count, int64_t first) {
    AddRows8(reinterpret_cast<const int8_t*>(records) + dim, stride, count, dim, w->windows.data() + first, task.group,
             task.num_windows, output);
  });
}

// The part-th of `parts` in which memory is asked for `next`'s first dense rows, a line of every page. The beginning of
// cold rows waits for the addresses of pages, and that takes longer than reading them.
void FetchPages(const AttentionTask& next, int part, int parts) {
  if (next.low_keys != nullptr) return;
  constexpr int64_t kPageBytes = 4096, kMostPages = 96;  // no more are usually dense
  for (const ChunkedRows* rows : {&next.keys, &next.values}) {
    const int64_t step = std::max<int64_t>(1, kPageBytes / static_cast<int64_t>(rows->stride()));
    int64_t page = part;
    for (const PlaceRun& run : next.dense) {
      for (int64_t place = run.begin + part * step; place < run.end && page < kMostPages; place += parts * step) {
        PrefetchFar(rows->row(place));
        page += parts;
      }
    }
  }
}

// Gives each part of a call the time since the part before.
class PartClock {
 public:
  void Lap(int64_t* part) {
    const int64_t now = NowNs();
    *part += now - last_;
    last_ = now;
  }

 private:
  int64_t last_ = NowNs();
};

}  // namespace

int64_t Attend(const AttentionTask& task, float* output, float* log_sum_exp, AttentionTimes* times,
               const AttentionTask* next) {
  assert(task.group >= 1 && task.group <= kMaxGroup && (task.num_windows == 0 || task.sets != nullptr));
  Workspace* w = &Local();
  AttentionTimes took;
  PartClock clock;
  const int dim = task.values.head_dim;
  const int64_t size = Size(task.dense);
  std::optional<LowRankDots> low_keys;
  std::optional<LowRankSums> low_values;
  if (task.low_keys != nullptr) {
    low_keys.emplace(*task.low_keys, task.queries, task.group);
    low_values.emplace(*task.low_values, task.group, output);
  }
  LowRankDots* const dots = low_keys ? &*low_keys : nullptr;
  LowRankSums* const sums_of_codes = low_values ? &*low_values : nullptr;
  DenseLogits(task, size, dots, w);
  if (StopRequested()) return 0;
  clock.Lap(&took.dense_ns);
  ChosenLogits(task, dots, w);
  clock.Lap(&took.chosen_ns);
  WindowLogits(task, w);
  clock.Lap(&took.tail_ns);
  float sums[kMaxGroup];
  int64_t attended = size * task.group;
  for (int g = 0; g < task.group; ++g) {
    sums[g] = Softmax(task, g, size, w, &log_sum_exp[g]);
    if (next != nullptr) FetchPages(*next, g, task.group);
    attended += static_cast<int64_t>(w->chosen[g].size());
  }
  if (task.attended != nullptr) ListAttended(task, size, sums, *w, task.attended);
  clock.Lap(&took.softmax_ns);
  std::fill_n(output, int64_t{task.group} * dim, 0.0f);
  AddDense(task, size, sums_of_codes, w, output);
  clock.Lap(&took.dense_ns);
  AddChosen(task, sums_of_codes, w, output);
  if (sums_of_codes != nullptr) sums_of_codes->Finish();
  clock.Lap(&took.chosen_ns);
  AddWindows(task, w, output);
  clock.Lap(&took.tail_ns);
  for (int g = 0; g < task.group; ++g) {
    const float share = sums[g] > 0 ? 1.0f / sums[g] : 0.0f;
    for (int j = 0; j < dim; ++j) output[int64_t{g} * dim + j] *= share;
  }
  if (times != nullptr) times->Add(took);
  return attended;
}

}  // namespace seine::cpu
