// One retrieval: coarse scan of a head's codes, selection, rerank, exact refine, and the reduction over a query group.
// The same tasks go to every backend. Inputs are validated by the index; kernels assert.
#ifndef SEINE_KERNELS_OPS_QUERY_SEARCH_H_
#define SEINE_KERNELS_OPS_QUERY_SEARCH_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/codecs/code.h"
#include "kernels/codecs/codec.h"
#include "kernels/ops/low_rank/low_rank.h"
#include "kernels/types.h"

namespace seine {

enum class Scope : uint8_t { kPerKvHead = 0, kPerQHead = 1 };
// How the heads of a group agree on one set (Scope::kPerKvHead; docs/architecture.md#a-decode-step). kSoftmaxSum's
// weights are shares of the estimated mass of the zone and the dense runs.
enum class GqaReduce : uint8_t { kSoftmaxSum = 0, kMax = 1, kMean = 2 };
enum class Method : uint8_t { kIndex = 0, kExact = 1 };  // kExact reads every stored key

struct SearchParams {
  int top_k = 100;
  // > 0: the smallest k <= top_k whose estimated softmax mass of the zone (zone_mass.h, with the error) reaches p, at
  // least mass_floor. In a joint set the mean of the group's masses.
  float mass_p = 0;
  int mass_floor = 1;
  // Share of the zone kept as candidates, at least LeastCandidates; 0: Codec::DefaultCandidateFraction, and the index
  // may read a short zone whole (ReadsWhole).
  double candidate_fraction = 0;
  // > 0, below 1: in place of candidate_fraction, as many candidates as are predicted to hold this share of the exact
  // top_k, by the noise that the codec predicts (recall_target.h; the balanced code only). At most kMostCandidates of
  // the zone.
  double recall_target = 0;
  // > 0: exactly so many candidates, or the whole zone, whatever candidate_fraction and LeastCandidates come to. For
  // comparisons of methods at equal numbers; excludes recall_target.
  int64_t candidates = 0;
  // Coarse::kCollision: share of keys that each subvector's tiers cover. A key that no tier covers is no candidate
  // unless all are: where fewer than candidate_fraction of the zone collide, there are fewer candidates, and at most as
  // many answers.
  double collision_fraction = 0.2;
  // Survivors of the rerank, scored exactly where keys are stored; below top_k means top_k. The index may score all
  // candidates (RefinesAll).
  int rescore_k = 200;
  Coarse coarse = Coarse::kSignIp;
  Scope scope = Scope::kPerKvHead;
  GqaReduce gqa_reduce = GqaReduce::kSoftmaxSum;
  float softmax_scale = 0;  // 0: 1 / sqrt(head_dim)
  Method method = Method::kIndex;
  bool with_candidates = false;  // SearchOutput::candidates is filled (benches: recall of stage I)
};

inline constexpr double kMostCandidates = .5;

// Candidates are at least so many. Two scanned bits a coordinate are nearly the whole code: a candidate more than can
// survive the rerank is of no use.
inline int64_t LeastCandidates(const SearchParams& params, const CodeLayout& layout) {
  return layout.two_bits() ? std::max(params.rescore_k, params.top_k) : std::max(4 * params.top_k, 256);
}

// The share of a zone that is kept in any case, `usual` being its codec's Codec::DefaultCandidateFraction.
inline double ShareKept(const SearchParams& params, double usual) {
  if (params.recall_target > 0) return 0;
  return params.candidate_fraction > 0 ? params.candidate_fraction : usual;
}

// Candidates that it comes to.
inline int64_t CandidatesWanted(const SearchParams& params, const CodeLayout& layout, double usual, int64_t num_keys) {
  if (params.candidates > 0) return std::min(num_keys, params.candidates);
  const auto of_share = static_cast<int64_t>(std::ceil(ShareKept(params, usual) * static_cast<double>(num_keys)));
  return std::min(num_keys, std::max(LeastCandidates(params, layout), of_share));
}

// Whether params say how many candidates there are, by a share, a target or their number.
inline bool StatesCandidates(const SearchParams& params) {
  return params.candidate_fraction > 0 || params.recall_target > 0 || params.candidates > 0;
}

// A gathered row, with the scan and the rerank that find it, takes about as long as so many rows that are read in
// sequence; these are multiplied with up to four query heads at once
// (docs/decisions/attention/0103-short-zones-are-read-whole.md).
inline constexpr int64_t kRowsForOneGathered = 4;
inline constexpr int kHeadsOfARow = 4;

// Whether a zone is so short that scoring every stored key of it is faster than looking in the codes for those that
// each query head of a group refines. Where params ask for a share of candidates, or for the candidates themselves, the
// codes are searched, however short the zone.
inline bool ReadsWhole(const SearchParams& params, int group, int64_t num_keys) {
  if (params.method == Method::kExact) return true;
  if (params.with_candidates || params.coarse != Coarse::kSignIp) return false;
  if (StatesCandidates(params)) return false;
  const int64_t refined = std::max(params.rescore_k, params.top_k);
  return num_keys <= kRowsForOneGathered * std::min(group, kHeadsOfARow) * refined;
}

// Candidates for each survivor up to which scoring all of them exactly is faster than a rerank that first tells which
// (docs/decisions/attention/0109-few-candidates-are-all-refined.md).
inline constexpr int64_t kCandidatesForOneSurvivor = 3;

// Whether all `candidates` of a query head are scored exactly, without a rerank. So it is where params say nothing of
// the share of candidates, and neither heads that agree on a set nor a mass need estimates.
inline bool RefinesAll(const SearchParams& params, int64_t candidates) {
  if (params.scope == Scope::kPerKvHead || params.mass_p > 0 || params.coarse != Coarse::kSignIp) return false;
  if (StatesCandidates(params)) return false;
  return candidates <= kCandidatesForOneSurvivor * std::max(params.rescore_k, params.top_k);
}

// Whether a search needs the mass of a whole zone (zone_mass.h).
SEINE_HD inline bool NeedsZoneMass(const SearchParams& params) {
  return params.mass_p > 0 || (params.scope == Scope::kPerKvHead && params.gqa_reduce == GqaReduce::kSoftmaxSum);
}

// Counts and times of one task. Times in nanoseconds.
struct SearchStats {
  int64_t scanned_keys = 0;
  int64_t candidates = 0;
  int64_t rescans = 0;  // scans repeated because the sampled threshold let too few through
  int64_t refined = 0;
  // scan: over the whole coarse plane, survivors' copies included. select: the sample that sets the scan's threshold,
  // and the exact cuts.
  int64_t prepare_ns = 0, scan_ns = 0, select_ns = 0, rerank_ns = 0, refine_ns = 0;
  void Add(const SearchStats& o);
};

// Where the time of a task's attention goes, in nanoseconds (ops/attend/attention.h). Rows are read twice, keys for
// logits and values for sums.
struct AttentionTimes {
  int64_t dense_ns = 0;    // rows that every head sees
  int64_t chosen_ns = 0;   // rows of the sets; only values where logits are known
  int64_t tail_ns = 0;     // means of windows
  int64_t softmax_ns = 0;  // weights of all of them
  void Add(const AttentionTimes& o);
};

// A run of dense keys (sink, local, buffer), needed for log-sum-exps only.
struct DenseRun {
  ConstRows keys;
  int count = 0;
};

// Windows [begin, end) of a zone.
struct WindowRun {
  int64_t begin = 0, end = 0;
  bool operator==(const WindowRun&) const = default;
};

// One (sequence, layer, KV head) with the queries of its group.
struct SearchTask {
  const Codec* codec = nullptr;
  const ConstCodePlanes* segments = nullptr;  // [ceil(max(num_keys, counted_keys) / segment_keys)]
  int segment_keys = 0;                       // keys a full segment holds
  int64_t num_keys = 0;                       // keys in the zone, a multiple of 64
  int64_t zone_begin = 0;                     // position of key 0 of the zone
  // Windows that are searched, ascending and apart, and the number of their keys; nullptr: the whole zone. No other is
  // read. The CPU alone takes them, with `keys`, Scope::kPerQHead, Coarse::kSignIp, and without a mass or recall
  // target.
  const std::vector<WindowRun>* runs = nullptr;
  int64_t keys_of_runs = 0;
  const SharedCentre* shared_centre = nullptr;
  // Coarse::kCollision only: [head_dim / 8][256] of the first counted_keys >= num_keys keys. Whoever searches takes
  // those that are not searched off, or counts anew.
  const uint32_t* collision_counts = nullptr;
  int64_t counted_keys = 0;
  ChunkedRows keys;  // stored keys by position; chunks == nullptr and no low_rank: none is scored exactly
  std::shared_ptr<const LowRankTokens> low_rank;  // in place of `keys`, where some are low-rank
  std::vector<DenseRun> dense;
  // Both need `keys`.
  bool whole = false;              // every stored key is scored, as by Method::kExact
  bool refine_all = false;         // every candidate is scored exactly, and none reranked
  const float* queries = nullptr;  // [group, head_dim]
  int group = 1;
  // A device's backend alone: queries lie in its memory, as what `stream`, a cudaStream_t, has by now leaves them.
  bool device_queries = false;
  void* stream = nullptr;

  int64_t searched_keys() const { return runs == nullptr ? num_keys : keys_of_runs; }
  // Calls use(begin, end) for each run of keys that is searched, ascending.
  template <typename Use>
  void ForEachRun(Use use) const {
    if (runs == nullptr) return use(int64_t{0}, num_keys);
    for (const WindowRun& run : *runs) use(run.begin * kWindowTokens, run.end * kWindowTokens);
  }
};

// Answers of one task: `rows` = 1 (kPerKvHead) or group (kPerQHead) sets, each ascending by position.
struct SearchOutput {
  std::vector<std::vector<int32_t>> positions;  // [rows][<= top_k]
  // Scores beside them: logits <q, k> * softmax_scale (kPerQHead, kMax, kMean) or summed softmax weights (kSoftmaxSum).
  std::vector<std::vector<float>> scores;
  // [rows] under mass_p, else empty: the estimated softmax mass of the zone that a set holds, and 1 where top_k ended
  // it before that reached mass_p.
  std::vector<float> masses;
  std::vector<uint8_t> capped;
  std::vector<std::vector<int32_t>> candidates;  // [group] positions of stage I, if asked for
  SearchStats stats;

  // To be filled anew; sets keep their memory.
  void Clear() { candidates.clear(), stats = SearchStats(); }
};

}  // namespace seine

#endif  // SEINE_KERNELS_OPS_QUERY_SEARCH_H_
