// What is written into a cache outside of graphs: loads of states, copies between streams, clears. No node tells of it,
// but llama.cpp writes all of it by the functions of the cache's buffer. Those of a buffer that is listened to are
// ours: they tell what is about to be written, and then call ggml's own.
#ifndef SEINE_ENGINES_LLAMA_CPP_GGML_OUTSIDE_WRITES_H_
#define SEINE_ENGINES_LLAMA_CPP_GGML_OUTSIDE_WRITES_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ggml-backend.h"

namespace seine::llama {

// Who keeps something about a cache's rows. It is called on the thread that writes.
class WriteListener {
 public:
  // Bytes [at, at + size) are about to become those at `data`; nullptr: other ones.
  virtual void WritesOutside(const uint8_t* at, const uint8_t* data, size_t size) = 0;

 protected:
  ~WriteListener() = default;
};

// Returns false where the buffer is not built as this plug-in knows buffers. Listening twice is listening once. Both
// are thread-safe. A buffer that is freed is listened to no more.
bool Listen(ggml_backend_buffer_t buffer, WriteListener* listener);
void StopListening(WriteListener* listener);  // to all buffers

// Cells [begin, end).
using ChangedRun = std::pair<int64_t, int64_t>;
// The runs of cells in which such a write changes a byte, ascending. Cells lie in a row from `base` on, `cells` of
// `cell_bytes` each. Empty where the write goes elsewhere, or changes nothing.
std::vector<ChangedRun> ChangedCells(const uint8_t* base, int64_t cells, size_t cell_bytes, const uint8_t* at,
                                     const uint8_t* data, size_t size);
// Cells that the write touches, whether it changes them or not. Empty: {0, 0}.
ChangedRun TouchedCells(const uint8_t* base, int64_t cells, size_t cell_bytes, const uint8_t* at, size_t size);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_GGML_OUTSIDE_WRITES_H_
