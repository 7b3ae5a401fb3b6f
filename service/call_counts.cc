#include "service/call_counts.h"

#include <cstring>

#include "service/transport/rpc_methods.h"

namespace seine {

CallCounts::CallCounts(bool on) {
  if (on) cells_.emplace(size() * kCellsEach);
}

int CallCounts::decode() { return static_cast<int>(RpcMethods().size()); }

int CallCounts::NumberOf(const char* method) {
  const auto& all = RpcMethods();
  for (size_t i = 0; i < all.size(); ++i) {
    if (strcmp(all[i].name, method) == 0) return static_cast<int>(i);
  }
  return strcmp(method, "Decode") == 0 ? decode() : kNone;
}

void CallCounts::Ended(int method, absl::StatusCode code, std::chrono::steady_clock::time_point began) {
  if (!cells_ || method == kNone) return;
  const int number = static_cast<int>(code);
  Add(method, kFirstCode + (number >= 0 && number < kCodes ? number : static_cast<int>(absl::StatusCode::kUnknown)));
  const auto took = std::chrono::steady_clock::now() - began;
  Histogram(&*cells_, method * kCellsEach).Add(std::chrono::duration_cast<std::chrono::nanoseconds>(took).count());
}

HistogramReading CallCounts::times(int method) const {
  return cells_ ? Histogram(&*cells_, method * kCellsEach).Read() : HistogramReading();
}

}  // namespace seine
