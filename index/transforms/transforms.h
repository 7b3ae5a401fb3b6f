// The codecs of an index's heads. rsq has one for all. The balanced code has one for each (layer, KV head, p): queries
// are expected at positions [p, p + horizon], so their moments are carried there, and keys' to [0, p]. Keys' moments
// are the profile's; queries' too, until those that a layer is asked turn out to be others (query_fit.h).
#ifndef SEINE_INDEX_TRANSFORMS_TRANSFORMS_H_
#define SEINE_INDEX_TRANSFORMS_TRANSFORMS_H_

#include <Eigen/Core>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "index/config/config.h"
#include "index/memory/memory.h"
#include "kernels/backend.h"
#include "kernels/codecs/code.h"
#include "kernels/codecs/codec.h"
#include "kernels/codecs/codec_traits.h"

namespace seine {

class StateReader;  // index/bytes/state_reader.h
class StateWriter;  // index/bytes/state_writer.h

struct HeadCodec {
  std::shared_ptr<const Codec> codec;
  // Set where the codec needs a profile.
  std::vector<float> lambda;  // [head_dim]
  // Shares of the scores' variance that the scanned plane, and the whole code, are expected to leave as noise.
  double noise = 0, fine_noise = 0;
};

// Second moments of the queries of each KV head's group, before RoPE, up to a scale. [num_kv_heads], [D, D]
using QueryMoments = std::vector<Eigen::MatrixXd>;

// What one layer's keys are encoded with. Immutable.
struct LayerCodecs {
  int64_t position = -1;                        // p; -1 where positions play no part: no profile, or RoPE not stated
  std::vector<HeadCodec> heads;                 // [num_kv_heads]
  std::shared_ptr<const QueryMoments> queries;  // learnt from what the layer was asked; nullptr: the profile's
  Memory memory;                                // what the tables take
};

// p of a layer that has `length` tokens when its first keys are encoded: the length rounded down to its two leading
// binary digits, in steps of at most an eighth of the horizon, at least 512. So sequences of like length share their
// transforms, and nearly the whole horizon lies ahead.
int64_t SealingPosition(int64_t length, int64_t horizon);

// Thread-safe. Each set of codecs is computed over the backend's threads; those by the profile's moments once, and
// kept: a few for each layer. The ledger counts some 6 head_dim^2 bytes a head of each.
class Transforms {
 public:
  // `config` is valid; it and `ledger` outlive this and all that it makes. `rotation`: of the rows to come
  // (CellConfig::rotation); the profile's moments are of rows that are not turned.
  Transforms(const IndexConfig* config, MemoryLedger* ledger, int rotation = 0);

  const CodeLayout& layout() const { return layout_; }
  // Whether another p would serve a layer of `length` tokens better: the horizon of `codecs` ends before `length`, or
  // the layer is twice as long as its keys were expected to be.
  bool Outgrown(const LayerCodecs& codecs, int64_t length) const;
  bool Doubled(const LayerCodecs& codecs, int64_t length) const;  // the latter alone
  // For a layer of `length` tokens. INVALID_ARGUMENT where its moments cannot be balanced; RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<const LayerCodecs>> Of(int layer, int64_t length);
  // The same for other moments of queries than the profile's, where given; such codecs are the caller's alone.
  absl::StatusOr<std::shared_ptr<const LayerCodecs>> Of(int layer, int64_t length,
                                                        std::shared_ptr<const QueryMoments> queries);

  // Codecs in snapshots, as they are: a transform computed anew may differ in its last bits from build to build.
  // `codecs` may be nullptr. Load fails where they are not this index's.
  void Save(const std::shared_ptr<const LayerCodecs>& codecs, StateWriter* writer) const;
  std::shared_ptr<const LayerCodecs> Load(StateReader* reader) const;

 private:
  void SaveHead(const HeadCodec& head, StateWriter* writer) const;
  HeadCodec LoadHead(StateReader* reader) const;
  using Codecs = absl::StatusOr<std::shared_ptr<const LayerCodecs>>;
  struct Entry {
    std::mutex mutex;                           // held while they are computed
    std::shared_ptr<const LayerCodecs> codecs;  // guarded by mutex; nullptr: not computed, or there was no memory
  };

  int64_t TableBytes(bool with_moments) const;          // of a layer's codecs
  int64_t PositionOf(int layer, int64_t length) const;  // -1: nothing turns
  Codecs Compute(int layer, int64_t position, std::shared_ptr<const QueryMoments> queries) const;
  absl::StatusOr<HeadCodec> OfHead(int layer, int kv_head, int64_t position, const QueryMoments* queries) const;

  const IndexConfig& config_;
  const CodecTraits& traits_;  // of the configured codec
  const CodecSpec spec_;
  MemoryLedger* const ledger_;
  const int rotation_;
  const std::shared_ptr<const LayerCodecs> shared_;  // by every layer; nullptr where the codec needs a profile
  const CodeLayout layout_;
  std::mutex mutex_;
  std::map<std::pair<int, int64_t>, std::shared_ptr<Entry>> entries_;  // by (layer, p); guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_INDEX_TRANSFORMS_TRANSFORMS_H_
