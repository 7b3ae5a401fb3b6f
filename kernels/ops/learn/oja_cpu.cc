#include "kernels/ops/learn/oja_cpu.h"

#include <vector>

#include "kernels/ops/learn/oja_rule.h"
#include "kernels/ops/matrix/matrix.h"

namespace seine::cpu {

namespace {

// oja_rule.h, on the calling thread.
class Engine {
 public:
  void MatMul(const OjaMatrix& a, const float* b, int b_stride, int m, int n, int k, bool add, float* c, int c_stride) {
    cpu::MatMul({a.data, a.row_stride, a.column_stride}, b, b_stride, m, n, k, add, c, c_stride);
  }
  template <typename Fn>
  void Each(int m, int n, Fn fn) {
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) fn(i, j);
    }
  }
  template <typename Fn>
  void Once(Fn fn) {
    fn();
  }
  template <typename Term>
  double Sum(int n, Term term) {
    double lanes[16] = {0};
    int i = 0;
    for (; i + 16 <= n; i += 16) {
      for (int l = 0; l < 16; ++l) lanes[l] += term(i + l);
    }
    for (; i < n; ++i) lanes[i % 16] += term(i);
    for (int h = 8; h >= 1; h /= 2) {
      for (int l = 0; l < h; ++l) lanes[l] += lanes[l + h];
    }
    return lanes[0];
  }
};

}  // namespace

void Learn(const LearnTask& task) {
  if (task.count == 0) return;
  const int dim = task.head_dim, interval = task.options.interval;
  std::vector<float> memory(OjaScratch::Floats(dim, task.rank, interval));
  const OjaScratch scratch(memory.data(), dim, task.rank, interval);
  Engine engine;
  OjaRule<Engine> rule(&engine, task, scratch);
  for (int64_t first = 0; first < task.count; first += interval) {
    rule.EndInterval(task.rows + first * dim, task.stats);
  }
}

}  // namespace seine::cpu
