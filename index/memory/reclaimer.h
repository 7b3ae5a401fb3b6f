// Frees memory that a limit lacks, at the cost of bringing back later what was given up.
#ifndef SEINE_INDEX_MEMORY_RECLAIMER_H_
#define SEINE_INDEX_MEMORY_RECLAIMER_H_

#include <cstdint>

#include "index/memory/memory_budget.h"

namespace seine {

// Thread-safe.
class Reclaimer {
 public:
  virtual ~Reclaimer() = default;
  // Frees some of what counts in `full`, a budget that had no room for `bytes`. Returns false where there is nothing to
  // free and still no room, or the current call is stopped. The caller may hold locks of layers, but none of an index.
  virtual bool MakeRoom(const MemoryBudget& full, int64_t bytes) = 0;
};

}  // namespace seine

#endif  // SEINE_INDEX_MEMORY_RECLAIMER_H_
