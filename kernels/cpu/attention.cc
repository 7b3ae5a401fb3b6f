// Two passes over what a group sees, keys for the logits and values for the sums, with the softmax of each head between
// them. Every sum has one order, so the bits are the same on every target.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/weighted_rows.h"
#include "kernels/math.h"

namespace seine::cpu {
namespace {

// Logits, then weights. Rows of `dense` are [group]; `chosen` is one row a head, each as long as the head's set.
struct Workspace {
  std::vector<float> dense;
  std::vector<float> chosen[kMaxGroup];
  std::vector<float> dots;
};

Workspace& Local() {
  static thread_local Workspace workspace;
  return workspace;
}

// A dense run's rows lie in chunks: use(rows, count, offset) for what lies together, `offset` from the first run's
// begin.
template <typename Use>
void ForEachPart(const ChunkedRows& rows, const std::vector<PlaceRun>& runs, Use use) {
  const size_t stride = rows.head_dim * SizeOf(rows.dtype);
  int64_t offset = 0;
  for (const PlaceRun& run : runs) {
    for (int64_t place = run.begin; place < run.end;) {
      const int64_t count = std::min(rows.chunk_tokens - place % rows.chunk_tokens, run.end - place);
      use(ConstRows{rows.row(place), stride, rows.dtype}, count, offset);
      offset += count;
      place += count;
    }
  }
}

int64_t Size(const std::vector<PlaceRun>& runs) {
  int64_t size = 0;
  for (const PlaceRun& run : runs) size += run.end - run.begin;
  return size;
}

void DenseLogits(const AttentionTask& task, int64_t size, Workspace* w) {
  w->dense.resize(size * task.group);
  ForEachPart(task.keys, task.dense, [&](const ConstRows& rows, int64_t count, int64_t offset) {
    DotRows(rows, count, task.keys.head_dim, task.queries, task.group, w->dense.data() + offset, size);
  });
  for (float& logit : w->dense) logit *= task.scale;
}

const std::vector<int32_t>& SetOf(const AttentionTask& task, int g) {
  return (*task.sets)[task.sets->size() == 1 ? 0 : g];
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
    DotGather(task.keys, set.data(), static_cast<int>(count), task.queries + int64_t{g} * dim, together,
              w->dots.data());
    for (float& logit : w->dots) logit *= task.scale;
    for (int i = 0; i < together; ++i) {
      w->chosen[g + i].assign(w->dots.begin() + i * count, w->dots.begin() + (i + 1) * count);
    }
  }
}

// Turns a head's logits into weights; returns their sum and sets the log-sum-exp.
float Softmax(float* dense, int64_t size, std::vector<float>* chosen, float* log_sum_exp) {
  float most = -INFINITY;
  for (const auto& [x, n] : {std::pair{dense, size}, std::pair{chosen->data(), static_cast<int64_t>(chosen->size())}}) {
    if (n == 0) continue;
    float smallest, largest;
    Range(x, n, &smallest, &largest);
    most = std::max(most, largest);
  }
  float lanes[16] = {0};
  ExpInPlace(dense, size, most, lanes);
  ExpInPlace(chosen->data(), chosen->size(), most, lanes);
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  *log_sum_exp = sum > 0 ? most + LogPositive(sum) : -INFINITY;
  return sum;
}

// output += the weighted sum of the values that the sets name.
void AddChosen(const AttentionTask& task, Workspace* w, float* output) {
  if (task.sets == nullptr) return;
  const int dim = task.values.head_dim;
  if (task.sets->size() == 1) {  // one set: its rows are read once for all heads
    const std::vector<int32_t>& set = SetOf(task, 0);
    const auto count = static_cast<int64_t>(set.size());
    w->dots.clear();
    for (int g = 0; g < task.group; ++g) w->dots.insert(w->dots.end(), w->chosen[g].begin(), w->chosen[g].end());
    return AddGathered(task.values, set.data(), count, w->dots.data(), task.group, count, output);
  }
  for (int g = 0; g < task.group; ++g) {
    const std::vector<int32_t>& set = SetOf(task, g);
    const auto count = static_cast<int64_t>(set.size());
    AddGathered(task.values, set.data(), count, w->chosen[g].data(), 1, count, output + int64_t{g} * dim);
  }
}

}  // namespace

int64_t Attend(const AttentionTask& task, float* output, float* log_sum_exp) {
  assert(task.group >= 1 && task.group <= kMaxGroup);
  Workspace* w = &Local();
  const int dim = task.values.head_dim;
  const int64_t size = Size(task.dense);
  DenseLogits(task, size, w);
  ChosenLogits(task, w);
  float sums[kMaxGroup];
  int64_t attended = size * task.group;
  for (int g = 0; g < task.group; ++g) {
    sums[g] = Softmax(w->dense.data() + g * size, size, &w->chosen[g], &log_sum_exp[g]);
    attended += static_cast<int64_t>(w->chosen[g].size());
  }
  std::fill_n(output, int64_t{task.group} * dim, 0.0f);
  ForEachPart(task.values, task.dense, [&](const ConstRows& rows, int64_t count, int64_t offset) {
    AddRows(rows, count, dim, w->dense.data() + offset, task.group, size, output);
  });
  AddChosen(task, w, output);
  for (int g = 0; g < task.group; ++g) {
    const float share = sums[g] > 0 ? 1.0f / sums[g] : 0.0f;
    for (int j = 0; j < dim; ++j) output[int64_t{g} * dim + j] *= share;
  }
  return attended;
}

}  // namespace seine::cpu
