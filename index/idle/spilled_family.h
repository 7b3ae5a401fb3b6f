// A family that the idle tier has in a file, and what is told of its sequences meanwhile.
#ifndef SEINE_INDEX_IDLE_SPILLED_FAMILY_H_
#define SEINE_INDEX_IDLE_SPILLED_FAMILY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "index/fair_mutex.h"
#include "index/idle/idle_tier.h"

namespace seine {

// Whoever writes it, or brings it back, holds the mutex: others wait there, and then look the sequence up again. The
// file goes with the last sequence that would need it.
struct SpilledFamily {
  explicit SpilledFamily(std::shared_ptr<IdleTier> its_tier) : tier(std::move(its_tier)) {}
  ~SpilledFamily() { RemoveFile(); }
  SpilledFamily(const SpilledFamily&) = delete;
  SpilledFamily& operator=(const SpilledFamily&) = delete;

  void RemoveFile() {
    if (!path.empty()) tier->Remove(path, bytes);
    path.clear();
  }

  const std::shared_ptr<IdleTier> tier;
  FairMutex mutex;
  std::string path;   // guarded by mutex; empty: it is in memory
  int64_t bytes = 0;  // of the file; guarded by mutex
};

// Stands in a sequence for its layers.
struct SpilledSequence {
  std::shared_ptr<SpilledFamily> family;
  std::vector<int64_t> layer_tokens;  // [num_layers]
};

}  // namespace seine

#endif  // SEINE_INDEX_IDLE_SPILLED_FAMILY_H_
