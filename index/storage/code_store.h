// Codes of one layer or head: per KV head a list of segments, and what depends on them, collision counts and the frozen
// centre.
//
// All heads of a store hold codes of the same keys (those of a layer, or one head's once tokens were evicted). Key i of
// the zone lies in segment i / segment_keys at i % segment_keys. `visible` keys are those of the zone now; after a
// truncation, whole windows below the cut may stay encoded beyond them, hidden until the zone grows over the same
// tokens again. A window's code depends on nothing but its keys (and the centre).
#ifndef SEINE_INDEX_STORAGE_CODE_STORE_H_
#define SEINE_INDEX_STORAGE_CODE_STORE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "index/memory/slab_pool.h"
#include "index/storage/piece_list.h"
#include "index/transforms/transforms.h"
#include "kernels/backend.h"
#include "kernels/codecs/code.h"
#include "kernels/codecs/codec.h"

namespace seine {

class SegmentFormat : public PieceFormat {
 public:
  SegmentFormat(const CodeLayout& layout, CodePart part) : layout_(layout), part_(part) {}
  int64_t Bytes(int capacity) const override;
  void Copy(const uint8_t* from, int from_capacity, uint8_t* to, int to_capacity, int count,
            std::vector<CopyTask>* copies) const override;

 private:
  const CodeLayout layout_;
  const CodePart part_;
};

// One fixed-size array kept as a piece of capacity 1.
class ArrayFormat : public PieceFormat {
 public:
  explicit ArrayFormat(int64_t bytes) : bytes_(bytes) {}
  int64_t Bytes(int capacity) const override { return bytes_; }
  void Copy(const uint8_t* from, int from_capacity, uint8_t* to, int to_capacity, int count,
            std::vector<CopyTask>* copies) const override;

 private:
  const int64_t bytes_;
};

// Shape that the code stores of an index, or of an engine's cells, share. It follows from the layout alone: codecs
// differ between heads and layers.
class CodeShape {
 public:
  CodeShape(Backend* backend, const CodeLayout& layout, int heads, bool with_counts);
  CodeShape(const CodeShape&) = delete;
  CodeShape& operator=(const CodeShape&) = delete;

  static constexpr int kSegmentKeys = 2048;  // segment_keys, or what whole units leave of it

  Backend* const backend;
  const CodeLayout layout;
  const int heads;
  const int unit_keys;     // keys are encoded in multiples of this: 64, or the tokens that share a centre
  const int segment_keys;  // keys in a full segment
  const bool with_counts;
  const int counts_per_head;  // uint32 [head_dim / 8][256]
  const SegmentFormat scan_format, fine_format;
  const ArrayFormat counts_format;
  mutable SlabPool scan_pool, fine_pool;  // thread-safe; apart, so that a scan streams from segment to segment
  const PieceList::Shape scan_parts, fine_parts;
  const PieceList::Shape counts;
};

// Where the keys that are to be encoded lie.
class KeySource {
 public:
  virtual ~KeySource() = default;
  // Rows of a head from zone key `key` on; *count: how many follow each other there (at least 1).
  virtual ConstRows Rows(int head, int64_t key, int64_t* count) const = 0;
};

// Not thread-safe; the owning layer's lock guards it.
class CodeStore {
 public:
  // The store holds KV heads [first_head, first_head + shape->heads) of a layer; everywhere else heads count from 0.
  explicit CodeStore(const CodeShape* shape, int first_head = 0)
      : shape_(shape), first_head_(first_head), counts_(&shape->counts) {}

  // A store of the same heads with nothing in it.
  CodeStore Empty() const { return CodeStore(shape_, first_head_); }

  int64_t visible() const { return visible_; }
  int64_t encoded() const { return encoded_; }

  // What the keys are encoded with: chosen before the first of them, kept as long as any is encoded. nullptr: none is.
  const std::shared_ptr<const LayerCodecs>& codecs() const { return codecs_; }
  void Choose(std::shared_ptr<const LayerCodecs> codecs) { codecs_ = std::move(codecs); }

  // Grows the zone to `visible` keys. Keys beyond encoded() are read from `source` and encoded, in parallel.
  // `centre_keys`: keys at the start of the zone that the frozen centre is made of (Centre::kGlobal).
  // RESOURCE_EXHAUSTED, UNAVAILABLE: the backend could not, and the zone is as it was.
  void PlanGrow(int64_t visible, Staging* staging);
  // After a Staging was installed: views of the pieces that it put in place. Grow does so itself.
  void Refresh();
  absl::Status Grow(int64_t visible, const KeySource& source, int centre_keys);

  // In place of Grow, for an engine's cells, which are written in any order: once PlanGrow's staging was installed,
  // there is room for `keys` keys. Encode writes the codes of `count` of them, whole units within a segment.
  void Extend(int64_t keys);
  void Encode(int head, int64_t key, ConstRows rows, int count);

  // Shrinks the zone to `visible` keys and keeps `encoded` >= visible keys encoded. UNAVAILABLE: it is done, but the
  // device is lost.
  void PlanShrink(int64_t visible, Staging* staging);
  absl::Status Shrink(int64_t visible, int64_t encoded);

  // For snapshots (code_store_snapshot.cc). The codecs are the caller's to write, and to choose before Load, which
  // bounds what is read by the cache's size in tokens and its zone's in keys.
  void PlanOwnTail(Staging* staging);
  void Save(StateWriter* writer) const;
  void Load(int64_t zone_keys, int64_t most_keys, StateReader* reader);

  // A head's part of a search over the visible keys.
  void PrepareSearch(int head, SearchTask* task) const;

  int64_t num_segments() const { return (visible_ + shape_->segment_keys - 1) / shape_->segment_keys; }
  int64_t bytes() const;
  int64_t head_bytes(int head) const;

 private:
  struct Head {
    PieceList scan, fine;                 // the two parts of each segment, of equal capacity
    std::vector<ConstCodePlanes> planes;  // of each segment
  };

  void LoadCentre(StateReader* reader);
  CodePlanes PlanesOf(const Head& head, size_t segment) const;
  CodePlanes PlanesFromKey(int head, int64_t key) const;
  void FreezeCentre(const KeySource& source, int centre_keys);
  absl::Status EncodeTo(int64_t end, const KeySource& source);
  absl::Status ZeroCounts();
  absl::Status CountKeys(int64_t begin, int64_t end, int sign);
  uint32_t* head_counts(int head) const {
    return reinterpret_cast<uint32_t*>(counts_.data(0)) + int64_t{head} * shape_->counts_per_head;
  }

  const Codec& codec(int head) const { return *codecs_->heads[first_head_ + head].codec; }

  const CodeShape* shape_;
  int first_head_;
  std::shared_ptr<const LayerCodecs> codecs_;                // shared by forks
  std::vector<Head> heads_;                                  // empty until the first key is encoded
  PieceList counts_;                                         // one array of all heads
  std::shared_ptr<const std::vector<SharedCentre>> centre_;  // [heads], shared by forks
  int64_t visible_ = 0;
  int64_t encoded_ = 0;
};

}  // namespace seine

#endif  // SEINE_INDEX_STORAGE_CODE_STORE_H_
