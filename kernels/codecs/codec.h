// The codec seam: encode a window, prepare a query, rerank candidates. The scan between them is the same for all.
#ifndef SEINE_KERNELS_CODECS_CODEC_H_
#define SEINE_KERNELS_CODECS_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/codecs/code.h"
#include "kernels/types.h"

namespace seine {

// The share of a zone kept as candidates where nothing else is said: the lower of those that ParisKV names (appendix
// B.2.1).
inline constexpr double kDefaultCandidateFraction = .05;

struct CodecTables;  // kernels/codecs/kinds/registry.h

// The coordinates of one head where a codec that needs a profile keeps its keys, and the bits of each of them.
struct CodecTransform {
  std::vector<float> key_map;        // [head_dim, head_dim] row-major: y = x * key_map for a row x
  std::vector<float> query_map;      // the same for queries; <q, x> = <q * query_map, y>
  std::vector<float> lambda;         // [head_dim] positive, descending: second moments of keys and of queries
  std::vector<uint8_t> coarse_bits;  // [head_dim] of the plane that is scanned
  std::vector<uint8_t> total_bits;   // [head_dim] of the whole code
  // A codec that was made before (Codec::Transform) states these: what one of each column of key_map is worth,
  // [head_dim]. key_map is then the encoder's own, in whole numbers of 16 bits. Else empty.
  std::vector<float> key_scale = {};
};

// The codec seam. Immutable after construction; every method is thread-safe.
class Codec {
 public:
  virtual ~Codec() = default;
  virtual const CodeLayout& layout() const = 0;
  virtual Centre centre() const = 0;

  // What other devices need to do the same; the views live as long as the codec.
  virtual CodecTables Tables() const = 0;
  // What the codec was made of: the same spec and this make it again, bit for bit. Empty without a profile.
  virtual CodecTransform Transform() const { return {}; }
  // Expires with the codec: whoever keeps copies of its tables knows by it when to drop them.
  std::weak_ptr<const void> life() const { return life_; }

  // Encodes `num_keys` keys (a multiple of max(64, centre_window)) into `out`. Keys must be finite.
  // `shared` is the frozen centre under Centre::kGlobal, else nullptr.
  virtual void Encode(const ConstRows& keys, int num_keys, const SharedCentre* shared, const CodePlanes& out) const = 0;

  // The frozen centre of the first keys of a sequence (Centre::kGlobal).
  virtual SharedCentre MakeSharedCentre(const ConstRows& keys, int num_keys) const = 0;

  // Queries [count, head_dim], of one group: what is read of the codec is read once for all. out[count].
  virtual void PrepareQueries(const float* queries, int count, PreparedQuery* const* out) const = 0;
  // Asks for a part of what PrepareQueries reads, ahead of it: part `part` of `parts`.
  virtual void FetchAhead(int part, int parts) const {}
  void PrepareQuery(const float* query, PreparedQuery* out) const { PrepareQueries(query, 1, &out); }

  // The share of a zone of `num_keys` that a search keeps as candidates where it is not told
  // (SearchParams::candidate_fraction).
  virtual double DefaultCandidateFraction(int64_t num_keys) const { return kDefaultCandidateFraction; }

  // Predicted standard deviation of a coarse estimate's error, of a key of factor 1, in units of coarse_step; 0 where
  // the codec does not predict it.
  virtual float CoarseNoise(const PreparedQuery& query) const { return 0; }

  // The same for a search that estimates the mass of its zone, of every codec.
  virtual PredictedErrors PredictErrors(const PreparedQuery& query) const = 0;

  // Fine estimates of <q, k> (true units) of candidates chosen[0..count) (indices into `candidates`). out[count].
  // segments[i] holds keys [i * segment_keys, (i + 1) * segment_keys) of the zone.
  virtual void Rerank(const PreparedQuery& query, const Candidates& candidates, const uint32_t* chosen, size_t count,
                      const ConstCodePlanes* segments, int segment_keys, float* out) const = 0;

 private:
  const std::shared_ptr<const void> life_ = std::make_shared<const char>();
};

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_CODEC_H_
