// The queries that a layer of a sequence was asked, a bounded sample of the latest: what a profile is measured on where
// no trace was recorded, and what tells whether the layer's balanced code fits its queries.
//
// Kept as they were asked, in bfloat16, with their positions; moments are computed from them when somebody wants them.
// So a step costs one copy, or mostly nothing: the first kSteps steps are kept, then one in kSpacing replaces the
// oldest.
#ifndef SEINE_INDEX_TRANSFORMS_QUERY_WINDOW_H_
#define SEINE_INDEX_TRANSFORMS_QUERY_WINDOW_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "index/memory/memory.h"
#include "index/transforms/query_fit.h"
#include "index/transforms/transforms.h"

namespace seine {

class StateReader;  // index/bytes/state_reader.h
class StateWriter;  // index/bytes/state_writer.h

// Thread-safe: it has a lock of its own, under which no other is taken, and a step never waits for it.
class QueryWindow {
 public:
  static constexpr int kSteps = 128;  // held; of D 64 x 3 query heads they give moments as good as 512 do
  static constexpr int kSpacing = 8;  // of steps kept, once kSteps are
  static constexpr int kFewest = 64;  // steps that moments may be learnt from
  static constexpr int kChunk = 16;   // steps that memory is taken for at a time

  // `row`: floats of a step, num_q_heads * head_dim.
  QueryWindow(MemoryLedger* ledger, int64_t row) : ledger_(ledger), row_(row) {}
  QueryWindow(const QueryWindow&) = delete;
  QueryWindow& operator=(const QueryWindow&) = delete;

  struct Added {
    bool refused = false;  // to be kept, but there was no memory
    bool renewed = false;  // the sample is another by now: after kFewest and kSteps steps, then each kSteps * kSpacing
  };
  // One step's queries [num_q_heads][head_dim] at `position`. Steps that meet another one here are not kept.
  Added Add(int64_t position, const float* queries);

  // The sample, in no order; how many steps it has, and one of them as [num_q_heads][head_dim]. `step` in [0, held()).
  SeenQueries Seen() const;
  int held() const;
  std::vector<float> Step(int step) const;
  // The step that was kept last, and its position; nothing, and -1: there is none.
  std::pair<std::vector<float>, int64_t> Latest() const;

  // Codes may be made for the queries seen at most once each time that their number has doubled, however these change.
  bool MayRefit() const;
  void Refitted();

  // What was predicted of `codecs` when they were last held against the sample (query_fit.h), a KV head each.
  void SetLosses(std::shared_ptr<const LayerCodecs> codecs, std::vector<double> losses);
  std::vector<double> LossesOf(const LayerCodecs* codecs) const;  // empty where they were not

  // For snapshots: the same as `source`, in new ones. False: there is no memory. Save follows the layer's codecs; what
  // was predicted of codecs that are not there is left out. Load: into new ones.
  bool CopyFrom(const QueryWindow& source);
  void Save(StateWriter* writer) const;
  void Load(StateReader* reader);

 private:
  MemoryLedger* const ledger_;
  const int64_t row_;
  std::atomic<int64_t> steps_{0};  // seen
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  struct Chunk {
    Memory charge;
    std::unique_ptr<uint16_t[]> rows;  // [kChunk][row_]
  };
  int64_t chunk_bytes() const { return kChunk * (row_ * static_cast<int64_t>(sizeof(uint16_t)) + 8); }
  std::vector<Chunk> chunks_;
  std::vector<int64_t> positions_;  // [at most kSteps]
  int next_ = 0;                    // the oldest, once full
  int64_t refitted_at_ = 0;         // steps
  std::shared_ptr<const LayerCodecs> judged_;
  std::vector<double> losses_;
};

}  // namespace seine

#endif  // SEINE_INDEX_TRANSFORMS_QUERY_WINDOW_H_
