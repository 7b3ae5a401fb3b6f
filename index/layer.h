// One layer of one sequence: its length, stored rows and codes, and how they change together.
//
// What is held follows from the layer's length n and the index's settings:
//   codes    of zone keys [sink, zone end), whole windows of them beyond that after a truncation (code_store.h);
//   keys     KvStore::kKeys, kKeysValues: of all positions. kNone: of the sink and of [raw_begin, n), where raw_begin
//   stays
//            one update buffer behind the zone's end, so that rolling back a few tokens always finds the keys it needs;
//   checksums  kNone only: of every token's keys, to tell a replay from a rewrite.
#ifndef SEINE_INDEX_LAYER_H_
#define SEINE_INDEX_LAYER_H_

#include <atomic>
#include <cstdint>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "index/code_store.h"
#include "index/context.h"
#include "index/index.h"
#include "index/query_window.h"
#include "index/row_store.h"

namespace seine {

// Every method but mutex() needs the mutex held: shared where const, else exclusive. To hold several layers' mutexes,
// lock them in the order of sequence generation, then layer.
class Layer {
 public:
  Layer(const Context* context, int layer);  // its number
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  std::shared_mutex& mutex() const { return mutex_; }
  int64_t length() const { return length_; }
  const CodeStore& codes() const { return codes_; }
  int64_t zone_keys() const { return codes_.visible(); }
  int64_t num_segments() const { return codes_.num_segments(); }

  // Index::Append for views that are checked but for their position. `values` is empty unless they are stored.
  absl::StatusOr<int64_t> Append(int64_t position, const TensorView& keys, const TensorView& values);

  // Truncation in steps, so that all layers of a sequence change or none does: Plan each, allocate, install, Commit
  // each. FAILED_PRECONDITION where keys that would become dense are gone (kNone).
  absl::Status PlanTruncate(int64_t position, Staging* staging);
  // UNAVAILABLE: it is done, but the device is lost.
  absl::Status CommitTruncate(int64_t position);

  // Makes this new layer a copy of `source` (its mutex held, shared); all pieces are shared until one side writes.
  void ShareFrom(const Layer& source);

  // One KV head's search over the zone, which must not be empty. Dense keys are given where the reduction needs them.
  void FillTask(int kv_head, const SearchParams& params, SearchTask* task) const;

  // For the reencoder. Whether the positions that the codes' transform was made for end before the layer does, and the
  // keys to encode anew are held.
  bool Outgrown() const;
  int64_t cuts() const { return cuts_; }  // truncations so far that took tokens away
  // Brings `next`, whose codecs are chosen, up to `most` keys nearer to this layer's zone. RESOURCE_EXHAUSTED: no
  // memory for all of the zone. UNAVAILABLE: the device is lost.
  absl::Status GrowFromStored(int64_t most, CodeStore* next) const;
  void Swap(CodeStore* next) { std::swap(codes_, *next); }
  // Whether codes made for the queries that the layer is asked may take the place of those that it has.
  bool Refittable() const;
  // Whether the layer waits for the reencoder: sets it and returns what it was. Needs no mutex.
  bool SetQueued(bool queued) { return queued_.exchange(queued); }

  // What the layer was asked lately. Needs no mutex. Forks begin without.
  QueryWindow& queries() const { return queries_; }
  // Keeps a step's queries [num_q_heads, head_dim], asked at `position`, for whoever measures them; not where the keys
  // are not kept beside which they would be measured. True: it is time for the reencoder to hold the codes against
  // them. Needs no mutex.
  bool Asked(int64_t position, const float* queries) const;

  // Stored tokens [position, position + count), which the layer holds, as fp32 [count, num_kv_heads, head_dim].
  // `values` may be nullptr.
  void CopyStored(int64_t position, int64_t count, float* keys, float* values) const;

  // OUT_OF_RANGE naming the first position that is not in the layer. The row stores must exist.
  absl::Status Gather(int kv_head, absl::Span<const int32_t> positions, std::string* keys, std::string* values) const;

  int64_t code_bytes() const { return codes_.bytes(); }
  int64_t head_code_bytes(int kv_head) const { return codes_.head_bytes(kv_head); }
  int64_t store_bytes() const { return keys_.bytes() + values_.bytes() + checksums_.bytes(); }

 private:
  class AppendedKeys;

  bool keeps_all_keys() const { return context_->config.kv_store != KvStore::kNone; }
  bool keeps_values() const { return context_->config.kv_store == KvStore::kKeysValues; }
  absl::Status CheckReplay(int64_t position, int64_t count, const uint8_t* keys, const uint8_t* values) const;
  absl::Status ChooseCodecs(int64_t new_length);
  absl::Status Extend(int64_t new_length, const uint8_t* keys, const uint8_t* values);
  int64_t RawBeginAt(int64_t length) const;
  int64_t EncodedAfterCut(int64_t position) const;
  bool CutWorks(int64_t position) const;
  void AddDense(int kv_head, int64_t begin, int64_t end, std::vector<DenseRun>* dense) const;

  const Context* context_;
  const int layer_;
  mutable std::shared_mutex mutex_;
  int64_t length_ = 0;
  int64_t raw_begin_ = 0;  // kNone: keys of [raw_begin_, length_) are held, besides the sink's
  int64_t cuts_ = 0;
  std::atomic<bool> queued_{false};
  mutable QueryWindow queries_;
  RowStore keys_;
  RowStore values_;     // kKeysValues
  RowStore checksums_;  // kNone
  CodeStore codes_;
};

}  // namespace seine

#endif  // SEINE_INDEX_LAYER_H_
