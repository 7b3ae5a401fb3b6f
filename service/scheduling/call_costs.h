// What a tenant's calls will take, guessed before they are parsed: from the bytes of the request and from what the same
// calls have taken before. Bytes stand for tokens x heads of an append, and for queries of a search; what a query has
// to scan is in the average of the searches before.
#ifndef SEINE_SERVICE_SCHEDULING_CALL_COSTS_H_
#define SEINE_SERVICE_SCHEDULING_CALL_COSTS_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace seine {

// How the cost of a method grows.
enum class CostKind : uint8_t {
  kAppend,  // with its bytes: first guess 1 ns each
  kSearch,  // with its bytes: first guess 64 ns each
  kWhole,   // not with its bytes: first guess 10 ms a call
};

// Thread-safe: averages of the last few calls, by method; a lost update is harmless.
class CallCosts {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  static constexpr int kMethods = 64;  // those beyond share the last place

  Nanoseconds Estimate(int method, CostKind kind, int64_t bytes) const;
  // A call has taken so much of a processor.
  void Took(int method, CostKind kind, int64_t bytes, Nanoseconds time);

 private:
  static double Units(CostKind kind, int64_t bytes);
  double Average(int method, CostKind kind) const;

  std::array<std::atomic<double>, kMethods> averages_ = {};  // ns a unit; 0: none yet
};

}  // namespace seine

#endif  // SEINE_SERVICE_SCHEDULING_CALL_COSTS_H_
