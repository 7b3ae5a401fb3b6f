// An index over rows that lie in an engine's own KV cache: one layer of one stream of it. The engine keeps keys and
// values in cells; this holds their codes, the means of their windows, a hash a key and one of each window's values,
// reads the rows where they lie, and answers attention of one KV head into the engine's memory.
//
// A query says which cells it sees, and these are divided into the zone and dense cells (seen_cells.h). A window whose
// cells were written is stale until it is encoded again; others stay, so that cells may be used anew in any order.
//
// Who writes keys without telling is found out: those that an answer chose, and some more, are compared with their
// hashes. Values are compared by Verify alone.
#ifndef SEINE_INDEX_CELLS_CELL_LAYER_H_
#define SEINE_INDEX_CELLS_CELL_LAYER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "index/cells/seen_cells.h"
#include "index/config/config.h"
#include "index/memory/memory.h"
#include "index/storage/code_store.h"
#include "index/storage/row_store.h"
#include "index/transforms/transforms.h"
#include "kernels/backend.h"
#include "kernels/host.h"

namespace seine {

struct CellConfig {
  Geometry geometry;  // its dtype is of no account: the rows state theirs
  // Keys and queries come turned by the orthonormal Walsh-Hadamard matrix, each so many coordinates by themselves, as
  // llama.cpp turns them before it quantises. A power of two that divides head_dim; 0: they are the model's.
  int rotation = 0;
  CodecConfig codec;
  SearchParams search;   // top_k, candidate_fraction, rescore_k, softmax_scale
  int sink = 64;         // cells before the zone
  int local = 256;       // cells behind it, at least
  bool tail = true;      // AttentionParams::tail
  float softcap = 0;     // AttentionParams::softcap
  int64_t capacity = 0;  // cells of a stream
  int64_t shortest = 1;  // positions of the shortest text that codes are made for
};

// Where a layer's rows lie while a call lasts: [cells][KV heads][head_dim], strides in bytes. Of any types; those of
// one layer are always the same.
struct CellRows {
  const uint8_t* keys = nullptr;
  const uint8_t* values = nullptr;
  size_t key_cell = 0, key_head = 0;
  size_t value_cell = 0, value_head = 0;
  DType key_type = DType::kFloat16, value_type = DType::kFloat16;
};

// What the layers of one engine's cache share. Thread-safe.
class CellContext {
 public:
  // INVALID_ARGUMENT naming the field.
  static absl::StatusOr<std::unique_ptr<CellContext>> Create(const CellConfig& config);

  const CellConfig& config() const { return config_; }
  // Held beside the layers' bytes(): room for codes to come.
  int64_t spare_bytes() { return codes_.scan_pool.free_bytes() + codes_.fine_pool.free_bytes(); }

 private:
  friend class CellLayer;
  CellContext(const CellConfig& config, IndexConfig index);

  const CellConfig config_;
  const IndexConfig index_;
  const std::unique_ptr<Backend> backend_;
  MemoryLedger ledger_;
  Transforms transforms_;
  const CodeShape codes_;
  // A hash a key, of as many keys as a segment has codes of, beside the records of its codes.
  const RowFormat hashes_;
  const PieceList::Shape hash_parts_;
};

// Attend, AttendExactly and Lost may run at once, on one head too. Encode and Verify come one at a time on a head and
// not beside its Attend; different heads' may run at once. Refit, Reserve, Wrote, Placed and Changed come alone.
class CellLayer {
 public:
  // `context` must outlive it. INVALID_ARGUMENT where the layer's moments cannot be balanced.
  static absl::StatusOr<std::unique_ptr<CellLayer>> Create(CellContext* context, int layer);

  // A head's codes suit texts of up to so many positions: a power of two, `shortest` at least, the capacity at most.
  // Returns the first head whose codes suit none of `length`; -1: all do.
  int FindOutgrown(int64_t length) const;
  // Codes that suit such a text: all windows of the head become stale. RESOURCE_EXHAUSTED, or INVALID_ARGUMENT where
  // the layer's moments cannot be balanced: its codes stay, and are not outgrown until the text is as long again.
  absl::Status Refit(int head, int64_t length);

  // Cells [begin, end) were written: they are the newest, and hold other rows than before.
  void Wrote(int64_t begin, int64_t end) { Placed(begin, end), Changed(begin, end); }
  // They are the newest; their rows may be those they held.
  void Placed(int64_t begin, int64_t end);
  // They hold other rows, or may; they are as old as before. Returns how many windows of heads become stale.
  int64_t Changed(int64_t begin, int64_t end);
  // What a query that sees these cells attends by codes, and what row by row.
  SeenCells Divide(std::vector<CellRun> runs) const;
  // Room for the codes of `num_cells`. RESOURCE_EXHAUSTED.
  absl::Status Reserve(int64_t num_cells);

  // A run of a head's stale windows.
  struct Run {
    int head = 0;
    int64_t window = 0, count = 0;
  };
  // List runs of stale windows, each at most `most` long: of windows [begin, end), or of those that a query attends by
  // codes. Others stay stale, such as those that are partly written. Reserve was called.
  void ListStale(int64_t begin, int64_t end, int64_t most, std::vector<Run>* runs) const;
  void ListStale(const SeenCells& seen, int64_t most, std::vector<Run>* runs) const;
  // Encodes them. False: a key or value is not finite, and the windows stay stale.
  bool Encode(const Run& run, const CellRows& rows);

  // Compares all keys and values of a head's encoded windows in cells [0, end) with their hashes. Windows that differ
  // become stale; returns how many.
  int64_t Verify(int head, int64_t end, const CellRows& rows);

  // Softmax attention of `count` queries [count, head_dim] of one KV head over the cells that they see, into `out`, of
  // the same shape, and log_sum_exp [count] where it is given. None of the zone's windows is stale. False: a row is not
  // the one that was encoded, and `out` is of no use. `top_k`: in place of the configured one.
  bool Attend(int head, const float* queries, int count, const SeenCells& seen, const CellRows& rows, int top_k,
              float* out, float* log_sum_exp = nullptr);
  // The same without codes: every cell that is seen.
  void AttendExactly(int head, const float* queries, int count, const SeenCells& seen, const CellRows& rows, float* out,
                     float* log_sum_exp = nullptr) const;
  // The share of attention on the exact top k, less that on what Attend chooses, the mean of the queries
  // (index/layer_gate.h): every key that is seen is read.
  double Lost(int head, const float* queries, int count, const SeenCells& seen, const CellRows& rows, int top_k) const;
  // Whether Attend scores every key of the zone, so that nothing can be lost.
  bool ReadsWhole(const SeenCells& seen, int count, int top_k) const;

  int num_heads() const { return static_cast<int>(heads_.size()); }
  int64_t bytes() const;                      // codes, means, hashes, outliers and flags
  int64_t BytesFor(int64_t num_cells) const;  // bytes() once there is room for so many cells

 private:
  static constexpr int kSegmentKeys = CodeShape::kSegmentKeys;
  static constexpr int64_t kWindowsOfSegment = kSegmentKeys / kWindowTokens;

  struct Head {
    Head(const CellContext& context, int head);
    CodeStore codes;  // of the one head
    RowStore hashes;
    std::vector<uint8_t> means;          // [windows][WindowMeansBytes]
    std::vector<uint32_t> value_hashes;  // [windows]: of what the means are of
    std::vector<uint8_t> fresh;          // [windows]
    std::vector<uint64_t> outliers;      // [windows], outliers.h
    int64_t suits = 0;                   // positions of the longest text that its codecs are for
    const uint32_t& hash(int64_t key) const {
      return reinterpret_cast<const uint32_t*>(hashes.HeadChunks(0)[key / kSegmentKeys])[key % kSegmentKeys];
    }
    std::atomic<int64_t> next_check{0};  // whose keys an answer compares besides those that it chose
  };

  CellLayer(CellContext* context, int layer) : context_(context), layer_(layer) {}
  int64_t LengthToSuit(int64_t length) const;
  ConstRows Keys(int head, int64_t cell, const CellRows& rows) const;
  ConstRows Values(int head, int64_t cell, const CellRows& rows) const;
  void HashCells(int head, int64_t first, int64_t count, const CellRows& rows, uint32_t* hashes) const;
  uint32_t HashValues(int head, int64_t window, const CellRows& rows) const;
  // Windows that cells [begin, end) lie in, at least partly.
  std::pair<int64_t, int64_t> WindowsOf(int64_t begin, int64_t end) const;
  // Cells [first, first + count) of the zone: whether their keys are those that were encoded, and what that reads.
  bool Unchanged(int head, int64_t first, int64_t count, const CellRows& rows) const;
  // Attention of a head without what is found, which points into `at`.
  struct RowStarts {
    const uint8_t *key, *value, *means;
  };
  RowStarts StartsOf(int head, const CellRows& rows) const;
  host::AttentionTask AttentionOf(const float* queries, int count, const CellRows& rows, const RowStarts& at) const;
  SearchParams ParamsOf(int top_k) const;
  // Searches the zone, and completes `attention` by what is found and what is dense.
  void Search(int head, const SeenCells& seen, int top_k, host::AttentionTask* attention, SearchOutput* found) const;
  void FetchCells(int head, int64_t first, int64_t count, const CellRows& rows) const;

  CellContext* const context_;
  const int layer_;
  std::deque<Head> heads_;
  WriteOrder order_;
  int64_t windows_ = 0;  // that there is room for
};

}  // namespace seine

#endif  // SEINE_INDEX_CELLS_CELL_LAYER_H_
