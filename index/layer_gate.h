// Watches what a layer's answers lose against exact attention, and has the layer attend exactly where that is too much.
//
// Lost is the share of attention on the exact top k, less that on the tokens that the code chose: what a wrong or
// outgrown profile, or keys that the code describes badly, cost. What the best choice of so many tokens leaves out is
// not in it, for no other code would find it. Of SmolLM2-135M's layers at 4,096 and 7,936 tokens a code of two scanned
// bits loses .003, the worst layer .019; with moments of synthetic keys in its profile .02, the worst .07.
#ifndef SEINE_INDEX_LAYER_GATE_H_
#define SEINE_INDEX_LAYER_GATE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>

namespace seine {

// Share of attention that a layer may lose, the mean of its last checks.
inline constexpr double kGateBound = .05;

// Thread-safe.
class LayerGate {
 public:
  static constexpr int64_t kEvery = 256;  // answers from check to check; more over more than kUsualTokens
  static constexpr int64_t kUsualTokens = 16384;
  static constexpr int64_t kPause = 4096;  // exact answers, after which codes are tried again; each time twice as many
  static constexpr int kMostTries = 4;

  // `bound` in (0, 1]; 0: nothing is checked. `phase`: of checks that are far apart, so that layers take turns.
  explicit LayerGate(double bound, int phase = 0) : bound_(bound), phase_(phase), next_check_(first_check()) {}

  // Whether the layer attends exactly. Each call is one answer of such a layer.
  bool Exact();
  // Whether an answer of the codes, over so many tokens, is to be checked: the 2nd, 8th, 32nd and 128th of the first
  // layer, or since it was tried again, and later about every 256th. Each call is one answer.
  bool Due(int64_t tokens);
  int64_t checks_due() const { return checks_.load(std::memory_order_relaxed); }  // so far
  // What a check has found, the mean of its query heads. True: too much is lost, and the layer attends exactly from now
  // on. Two checks suffice where twice the bound is lost, and four otherwise.
  bool Checked(double lost);

  // Tokens that codes choose in place of top_k: twice as many for each time that the layer has lost too much.
  int Widened(int top_k) const { return top_k << tries_.load(std::memory_order_relaxed); }

  struct Reading {
    int64_t checks = 0;
    double lost = 0;            // summed over them
    int64_t exact_answers = 0;  // of the layer since it stepped back, every time
    bool exact = false;         // whether it attends exactly now
    double lost_then = 0;       // exact: the mean of the checks that were too much
  };
  Reading Read() const;

 private:
  static constexpr size_t kKept = 8;  // checks that the mean is over
  static constexpr int64_t kPhase = 37;
  int64_t first_check() const { return 2 + phase_ % 8; }
  bool exact() const { return exact_left_.load(std::memory_order_relaxed) > 0; }

  const double bound_;
  const int phase_;
  std::atomic<int64_t> exact_left_{0}, exact_answers_{0}, answers_{0};
  std::atomic<int> tries_{0};
  std::atomic<int64_t> checks_{0};
  mutable std::mutex mutex_;
  std::atomic<int64_t> next_check_;      // the answer that is checked next; set under mutex_
  std::deque<double> lost_;              // of the last checks; guarded by mutex_
  int64_t num_checked_ = 0;              // guarded by mutex_
  double sum_lost_ = 0, lost_then_ = 0;  // guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_INDEX_LAYER_GATE_H_
