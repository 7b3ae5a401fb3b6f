// Synthetic sequences and the order in which they are asked.
#ifndef SEINE_BENCH_IDLE_MADE_TRAFFIC_H_
#define SEINE_BENCH_IDLE_MADE_TRAFFIC_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/idle/idle_bench.h"
#include "index/index.h"

namespace seine::bench {

// A sequence and how far it has got; one thread at a time makes its steps.
struct MadeSequence {
  std::string id, source;  // source: what it is forked from; empty: nothing
  int64_t first_row = 0;   // of the rows that its tokens have
  int64_t tokens = 0;
  std::mutex busy;
};

// Thread-safe.
class MadeTraffic {
 public:
  explicit MadeTraffic(const IdleBenchOptions& options);

  IndexConfig Config() const;
  // Makes every sequence in an index, forks included.
  absl::Status Fill(Index* index) const;
  // Appends the sequence's next token to every layer, unless it is there, and attends. Answers are by layer.
  absl::StatusOr<std::vector<AttendAnswer>> Step(Index* index, const MadeSequence& sequence) const;
  // The sequence to be asked next, by Zipf's law.
  MadeSequence* Next(std::mt19937* random) const;

 private:
  absl::Status Append(Index* index, const MadeSequence& sequence, int layer, int64_t at, int64_t count) const;
  std::vector<float> QueriesOf(const MadeSequence& sequence, int layer) const;
  int64_t token_bytes() const { return int64_t{o_.kv_heads} * o_.head_dim * 2; }

  const IdleBenchOptions o_;
  const std::string rows_;  // fp16, of tokens
  std::vector<std::unique_ptr<MadeSequence>> sequences_;
  std::vector<double> up_to_;  // the weights of the sequences, added up
};

}  // namespace seine::bench

#endif  // SEINE_BENCH_IDLE_MADE_TRAFFIC_H_
