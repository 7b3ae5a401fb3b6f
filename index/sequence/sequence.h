// One sequence: its name and its layers.
#ifndef SEINE_INDEX_SEQUENCE_SEQUENCE_H_
#define SEINE_INDEX_SEQUENCE_SEQUENCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "index/counts/sequence_use.h"
#include "index/idle/spilled_family.h"
#include "index/memory/memory.h"
#include "index/sequence/layer.h"

namespace seine {

// The id and generation are set before the sequence is shared and do not change; each layer has its own lock. A deleted
// sequence lives on until the last call that uses it returns.
struct Sequence {
  std::string id;
  uint64_t generation = 0;
  uint64_t family = 0;                             // forks have that of their source, others their own generation
  std::unique_ptr<const SpilledSequence> spilled;  // nullptr: it is in memory; else it has no layers
  std::vector<std::unique_ptr<Layer>> layers;      // [num_layers]
  Memory overhead;                                 // the charge for these objects themselves
  SequenceUse use;                                 // where the index counts; touches where it has an idle tier
};

// Bytes that an index, and a sequence of it, take before their first token: for each layer, and for each head where
// tokens are scored as they come or kept low-rank. Of an index, some kilobytes are not counted. Measured with
// glibc's allocator (tests/index/overhead_test.cc).
int64_t IndexBytes(const IndexConfig& config);
int64_t SequenceBytes(const IndexConfig& config);
// The part of SequenceBytes that stays in memory while the idle tier has the sequence on disk.
int64_t SpilledSequenceBytes(const IndexConfig& config);

}  // namespace seine

#endif  // SEINE_INDEX_SEQUENCE_SEQUENCE_H_
