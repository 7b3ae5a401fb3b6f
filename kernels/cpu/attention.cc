// Two passes over what a group sees, keys for the logits and values for the sums, with the softmax of each head between
// them. Every sum has one order, so the bits are the same on every target.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

#include "kernels/codec_util.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/weighted_rows.h"
#include "kernels/math.h"

namespace seine::cpu {
namespace {

// Rows that are made together: a whole number of the 64 that values are summed by, so that sums do not depend on it.
constexpr int64_t kMadeRows = 512;

// Logits, then weights.
struct Workspace {
  std::vector<float> dense;              // [group][dense rows]
  std::vector<float> chosen[kMaxGroup];  // [group][rows of the head's set]
  std::vector<float> windows;            // [group][windows]
  std::vector<WindowSteps> steps;        // [windows]
  std::vector<float> dots;
  std::vector<int8_t> queries8;  // [group][head_dim]
  std::vector<uint8_t> left;     // [windows] rows that a head has not chosen
  std::vector<int32_t> places;   // of dense rows to be made
  std::vector<float> made;       // [at most kMadeRows, head_dim]
};

Workspace& Local() {
  static thread_local Workspace workspace;
  return workspace;
}

ConstRows Make(const RowReader& reader, const int32_t* places, int64_t count, int dim, Workspace* w) {
  w->made.resize(kMadeRows * dim);
  reader.Read(places, static_cast<int>(count), w->made.data());
  return {w->made.data(), dim * sizeof(float), DType::kFloat32};
}

// A dense run's rows lie in chunks, or are made: use(rows, count, offset) for what lies together, `offset` from the
// first run's begin.
template <typename Use>
void ForEachPart(const AttentionTask& task, const ChunkedRows& rows, const RowReader* reader, Workspace* w, Use use) {
  const PlaceRun made = reader == nullptr ? PlaceRun{} : task.made;
  const size_t stride = rows.head_dim * SizeOf(rows.dtype);
  int64_t offset = 0, count = 0;
  for (const PlaceRun& run : task.dense) {
    for (int64_t place = run.begin; place < run.end; place += count, offset += count) {
      if (place >= made.begin && place < made.end) {
        count = std::min({kMadeRows, made.end - place, run.end - place});
        w->places.resize(count);
        std::iota(w->places.begin(), w->places.end(), static_cast<int32_t>(place));
        use(Make(*reader, w->places.data(), count, rows.head_dim, w), count, offset);
        continue;
      }
      const int64_t stop = place < made.begin ? std::min(run.end, made.begin) : run.end;
      count = std::min(rows.chunk_tokens - place % rows.chunk_tokens, stop - place);
      use(ConstRows{rows.row(place), stride, rows.dtype}, count, offset);
    }
  }
}

// A set's rows that are made: use(rows, count, first) for those made together.
template <typename Use>
void ForEachMade(const RowReader& reader, const std::vector<int32_t>& set, int dim, Workspace* w, Use use) {
  const auto size = static_cast<int64_t>(set.size());
  for (int64_t first = 0; first < size; first += kMadeRows) {
    const int64_t count = std::min(kMadeRows, size - first);
    use(Make(reader, set.data() + first, count, dim, w), count, first);
  }
}

int64_t Size(const std::vector<PlaceRun>& runs) {
  int64_t size = 0;
  for (const PlaceRun& run : runs) size += run.end - run.begin;
  return size;
}

void DenseLogits(const AttentionTask& task, int64_t size, Workspace* w) {
  w->dense.resize(size * task.group);
  ForEachPart(task, task.keys, task.key_reader.get(), w, [&](const ConstRows& rows, int64_t count, int64_t offset) {
    DotRows(rows, count, task.keys.head_dim, task.queries, task.group, w->dense.data() + offset, size);
  });
  for (float& logit : w->dense) logit *= task.scale;
}

const std::vector<int32_t>& SetOf(const AttentionTask& task, int g) {
  return (*task.sets)[task.sets->size() == 1 ? 0 : g];
}

// out[i][r] = <query i, row r of the set> of `queries` [together, head_dim].
void DotSet(const AttentionTask& task, const std::vector<int32_t>& set, const float* queries, int together,
            Workspace* w, float* out) {
  const auto count = static_cast<int64_t>(set.size());
  const int dim = task.keys.head_dim;
  if (task.key_reader == nullptr) {
    return DotGather(task.keys, set.data(), static_cast<int>(count), queries, together, out);
  }
  ForEachMade(*task.key_reader, set, dim, w, [&](const ConstRows& rows, int64_t made, int64_t first) {
    DotRows(rows, made, dim, queries, together, out + first, count);
  });
}

void ChosenLogits(const AttentionTask& task, Workspace* w) {
  for (int g = 0; g < task.group; ++g) w->chosen[g].clear();
  if (task.sets == nullptr) return;
  assert(task.sets->size() == 1 || static_cast<int>(task.sets->size()) == task.group);
  if (task.logits != nullptr) {
    for (int g = 0; g < task.group; ++g) w->chosen[g] = (*task.logits)[g];
    return;
  }
  const bool shared = task.sets->size() == 1;
  const int dim = task.keys.head_dim, together = shared ? task.group : 1;
  for (int g = 0; g < task.group; g += together) {
    const std::vector<int32_t>& set = SetOf(task, g);
    const auto count = static_cast<int64_t>(set.size());
    w->dots.resize(count * together);
    DotSet(task, set, task.queries + int64_t{g} * dim, together, w, w->dots.data());
    for (float& logit : w->dots) logit *= task.scale;
    for (int i = 0; i < together; ++i) {
      w->chosen[g + i].assign(w->dots.begin() + i * count, w->dots.begin() + (i + 1) * count);
    }
  }
}

// Windows lie in chunks: use(records, count, first) for what lies together.
template <typename Use>
void ForEachWindowPart(const AttentionTask& task, Use use) {
  const int length = task.windows.chunk_windows;
  for (int64_t first = 0; first < task.num_windows; first += length) {
    use(task.windows.chunks[first / length], std::min<int64_t>(length, task.num_windows - first), first);
  }
}

// scale <q, c_w>, queries in int8 as the scan has them.
void WindowLogits(const AttentionTask& task, Workspace* w) {
  const int dim = task.keys.head_dim;
  const size_t stride = WindowMeansBytes(dim);
  w->windows.resize(task.num_windows * task.group);
  w->queries8.resize(int64_t{task.group} * dim);
  w->steps.resize(task.num_windows);
  float unit[kMaxGroup];
  for (int g = 0; g < task.group; ++g) {
    unit[g] = Quantise8(task.queries + int64_t{g} * dim, dim, w->queries8.data() + int64_t{g} * dim) * task.scale;
  }
  ForEachWindowPart(task, [&](const uint8_t* records, int64_t count, int64_t first) {
    DotRows8(reinterpret_cast<const int8_t*>(records), stride, count, dim, w->queries8.data(), task.group,
             task.num_windows, w->windows.data() + first);
    for (int64_t i = 0; i < count; ++i) w->steps[first + i] = StepsOf(records + i * stride, dim);
  });
  for (int g = 0; g < task.group; ++g) {
    float* logits = w->windows.data() + g * task.num_windows;
    for (int64_t i = 0; i < task.num_windows; ++i) logits[i] *= w->steps[i].key * unit[g];
  }
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
    for (int64_t i = 0; i < task.num_windows; ++i) {
      windows[i] *= static_cast<float>(w->left[i]);
      lanes[i % 16] += windows[i];
    }
  }
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  *log_sum_exp = sum > 0 ? most + LogPositive(sum) : -INFINITY;
  return sum;
}

// output[i] += the sum of the set's values, weighted by weights[i], for `heads` of them.
void AddSet(const AttentionTask& task, const std::vector<int32_t>& set, const float* weights, int heads, Workspace* w,
            float* output) {
  const auto count = static_cast<int64_t>(set.size());
  const int dim = task.values.head_dim;
  if (task.value_reader == nullptr) {
    return AddGathered(task.values, set.data(), count, weights, heads, count, output);
  }
  ForEachMade(*task.value_reader, set, dim, w, [&](const ConstRows& rows, int64_t made, int64_t first) {
    AddRows(rows, made, dim, weights + first, heads, count, output);
  });
}

// output += the weighted sum of the values that the sets name.
void AddChosen(const AttentionTask& task, Workspace* w, float* output) {
  if (task.sets == nullptr) return;
  if (task.sets->size() == 1) {  // one set: its rows are read once for all heads
    w->dots.clear();
    for (int g = 0; g < task.group; ++g) w->dots.insert(w->dots.end(), w->chosen[g].begin(), w->chosen[g].end());
    return AddSet(task, SetOf(task, 0), w->dots.data(), task.group, w, output);
  }
  for (int g = 0; g < task.group; ++g) {
    AddSet(task, SetOf(task, g), w->chosen[g].data(), 1, w, output + int64_t{g} * task.values.head_dim);
  }
}

// output += the windows' values, by weights that take in a value's unit.
void AddWindows(const AttentionTask& task, Workspace* w, float* output) {
  const int dim = task.values.head_dim;
  const size_t stride = WindowMeansBytes(dim);
  for (int g = 0; g < task.group; ++g) {
    float* weights = w->windows.data() + g * task.num_windows;
    for (int64_t i = 0; i < task.num_windows; ++i) weights[i] *= w->steps[i].value;
  }
  ForEachWindowPart(task, [&](const uint8_t* records, int64_t count, int64_t first) {
    AddRows8(reinterpret_cast<const int8_t*>(records) + dim, stride, count, dim, w->windows.data() + first, task.group,
             task.num_windows, output);
  });
}

}  // namespace

int64_t Attend(const AttentionTask& task, float* output, float* log_sum_exp) {
  assert(task.group >= 1 && task.group <= kMaxGroup && (task.num_windows == 0 || task.sets != nullptr));
  Workspace* w = &Local();
  const int dim = task.values.head_dim;
  const int64_t size = Size(task.dense);
  DenseLogits(task, size, w);
  ChosenLogits(task, w);
  WindowLogits(task, w);
  float sums[kMaxGroup];
  int64_t attended = size * task.group;
  for (int g = 0; g < task.group; ++g) {
    sums[g] = Softmax(task, g, size, w, &log_sum_exp[g]);
    attended += static_cast<int64_t>(w->chosen[g].size());
  }
  std::fill_n(output, int64_t{task.group} * dim, 0.0f);
  ForEachPart(task, task.values, task.value_reader.get(), w, [&](const ConstRows& rows, int64_t count, int64_t offset) {
    AddRows(rows, count, dim, w->dense.data() + offset, task.group, size, output);
  });
  AddChosen(task, w, output);
  AddWindows(task, w, output);
  for (int g = 0; g < task.group; ++g) {
    const float share = sums[g] > 0 ? 1.0f / sums[g] : 0.0f;
    for (int j = 0; j < dim; ++j) output[int64_t{g} * dim + j] *= share;
  }
  return attended;
}

}  // namespace seine::cpu
