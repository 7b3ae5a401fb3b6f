// A cache of a layer: one or all of its KV heads, which hold the same tokens; their stored rows and codes, and how
// these change together.
//
// A cache counts its tokens by place, 0 .. size() - 1. As long as nothing was evicted a layer is one cache of all heads
// and places are positions. Eviction gives each head a cache of its own, whose places map to ascending positions. What
// is held follows from the size m and the index's settings, whatever the history:
//   codes    of places [sink, zone end), whole windows of them beyond that after a truncation (code_store.h);
//   keys     KvStore::kKeys, kKeysValues: of all places. kNone (nothing can be evicted): of the sink and of
//            [raw_begin, m), where raw_begin stays one update buffer behind the zone's end, so that rolling back a few
//            tokens always finds the keys it needs;
//   windows  kKeysValues: the means of the zone's windows of 64 (window_means.h), of the rows as they read when the
//            window has come into the zone;
//   checksums  where rows are not held as they came, of every token with all of the layer's heads, also where these
//            have parted: to tell a replay from a rewrite;
//   sums     of all keys held, where the index evicts by itself with a scorer that wants them (key_sums.h).
//
// With IndexConfig::subspace a run of places [low_begin, low_end) is held low-rank, by a LowRankStore a head, and the
// rows before and behind it as they came. A token becomes low-rank as the zone's end passes it, and stays so: after a
// cut dense tokens may be low-rank, and after an eviction those of the zone may not be so yet. Searches and attention
// multiply codes (kernels/ops/low_rank/low_rank_products.h); whoever else reads rows gets them rebuilt
// (head_group_cache_low_rank.cc). No sums are kept.
#ifndef SEINE_INDEX_SEQUENCE_HEAD_GROUP_CACHE_H_
#define SEINE_INDEX_SEQUENCE_HEAD_GROUP_CACHE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "index/context.h"
#include "index/scorers/scorer.h"
#include "index/sequence/layer_facts.h"
#include "index/storage/code_store.h"
#include "index/storage/row_store.h"
#include "index/subspace/low_rank_store.h"
#include "index/transforms/query_fit.h"
#include "kernels/host.h"

namespace seine {

// What a head's view may point into.
struct HeadStorage {
  std::vector<int32_t> positions;
  Buffer keys, values;  // rebuilt
  const uint8_t* key_chunk = nullptr;
  const uint8_t* value_chunk = nullptr;
};

// What an append tells low-rank stores besides its rows.
struct LowRankAppend {
  bool prompt = false;  // its tokens are a prompt's, or a part of it
  SeenQueries queries;  // the layer's last ones, those of the append among them; SubspaceConfig::choice
};

// Not thread-safe; the owning layer's lock guards it. Heads are counted from the cache's first.
class HeadGroupCache {
 public:
  // All heads of a layer, or the one `head`, whose tokens have positions of their own.
  HeadGroupCache(const Context* context, int layer);
  HeadGroupCache(const Context* context, int layer, int head);
  // Copies share all pieces until one side writes. Not while a Staging holds plans for it.
  HeadGroupCache(const HeadGroupCache&) = default;
  HeadGroupCache& operator=(const HeadGroupCache&) = default;

  bool whole() const { return whole_; }  // nothing was evicted: all heads, places are positions
  int first_head() const { return first_head_; }
  int num_heads() const { return whole_ ? context_->config.geometry.num_kv_heads : 1; }
  int64_t size() const { return size_; }
  int32_t position(int64_t place) const;
  // How many tokens lie before `position`.
  int64_t PlaceOf(int64_t position) const;
  const CodeStore& codes() const { return codes_; }
  CodeStore* mutable_codes() { return &codes_; }

  // ALREADY_EXISTS where the keys or values of held tokens at positions [position, position + count) differ from those
  // given, [count, num_kv_heads, head_dim] of the whole layer. Evicted tokens cannot be compared.
  absl::Status CheckReplay(int64_t position, int64_t count, const uint8_t* keys, const uint8_t* values) const;

  // Appends tokens [first_position, first_position + count), in steps so that all caches of a layer change or none
  // does: Plan each, allocate, StageLow each, install, Write each, Commit each. `values` is read where they are stored.
  // ChooseCodecs comes first, with what the layer's length is going to be.
  bool WantsCodecs(int64_t count) const;
  void ChooseCodecs(std::shared_ptr<const LayerCodecs> codecs) { codes_.Choose(std::move(codecs)); }
  void PlanAppend(int64_t count, Staging* staging);
  // Projects what becomes low-rank; RESOURCE_EXHAUSTED. An append that then fails drops it.
  absl::Status StageLow(int64_t first_position, int64_t count, const uint8_t* keys, const uint8_t* values,
                        const LowRankAppend& low);
  // Whether an append of `count` tokens has something to project.
  bool WillLower(int64_t count) const { return !low_.empty() && LowEndAt(size_ + count) > LowStart(); }
  void DropStaged() { staged_.clear(); }
  // The staging is installed: for every cache, before any is written. Not needed where nothing was staged.
  void Installed();
  // WriteAppend may fail where a device does, or the call is stopped; then every cache is as it was after UndoAppend,
  // and no piece is held for the tokens that did not come. CommitAppend cannot fail.
  absl::Status WriteAppend(int64_t first_position, int64_t count, const uint8_t* keys, const uint8_t* values);
  absl::Status UndoAppend();
  void CommitAppend(int64_t count);

  // Drops the tokens at and after `position`, in steps as above. FAILED_PRECONDITION where keys that would become dense
  // are gone (kNone).
  absl::Status PlanTruncate(int64_t position, Staging* staging);
  absl::Status CommitTruncate(int64_t position);

  // Fills this empty cache of one head with the tokens at `places` (ascending) of that head in `source`.
  void PlanKeep(const HeadGroupCache& source, absl::Span<const uint32_t> places, Staging* staging);
  absl::Status CommitKeep(const HeadGroupCache& source, absl::Span<const uint32_t> places);

  // Keys of the zone that an item searches (RetrieveItem::dense_from): whole windows of 64, and of those that share a
  // centre.
  int64_t ZoneKeys(int64_t dense_from) const;
  // One head's search over the zone's first `zone_keys` keys, which must be some. Positions in it are places. Dense
  // keys are given where the reduction needs them. RESOURCE_EXHAUSTED.
  absl::Status PrepareSearch(int head, const SearchParams& params, int64_t zone_keys, SearchTask* task) const;
  // One head's attention, in places, where so many keys of the zone were searched; 0: none, and all is dense. `tail`:
  // with their windows, which are the device's copies for one that is attended there. The values must be kept. What it
  // reads must not outlive the cache or see it change.
  void FillAttention(int head, int64_t zone_keys, bool tail, bool on_device, host::AttentionTask* task) const;
  // A head as scorers see it. RESOURCE_EXHAUSTED, or UNAVAILABLE, where rows are rebuilt.
  absl::StatusOr<HeadTokens> Tokens(int head, HeadStorage* storage) const;

  bool keeps_all_keys() const { return context_->config.kv_store != KvStore::kNone; }
  // Brings `next`, whose codecs are chosen, up to `most` keys nearer to this cache's zone. RESOURCE_EXHAUSTED: no
  // memory for all of the zone.
  absl::Status GrowFromStored(int64_t most, CodeStore* next) const;

  // Stored tokens [place, place + count) of one head as fp32, `stride` floats apart. `values` may be nullptr.
  void CopyFloats(int head, int64_t place, int64_t count, float* keys, float* values, int64_t stride) const;
  // out[g * stride + i] = <query_g, key> of places [begin, end) of one head, queries [group, head_dim]; of a low-rank
  // key as it reads. The keys must be kept.
  void DotKeys(int head, int64_t begin, int64_t end, const float* queries, int group, float* out, int64_t stride) const;
  // Stored rows of places of one head, appended to `keys` and `values` where those are given. What a stopped call gets
  // is of no use.
  void Gather(int head, absl::Span<const int64_t> places, std::string* keys, std::string* values) const;

  // The low-rank store of a head; nullptr: everything is full-rank.
  const LowRankStore* low_rank(int head) const { return low_.empty() ? nullptr : &low_[head]; }

  // In place of that of each head, [num_heads].
  void SetLowRank(std::vector<LowRankStore> low);

  // For snapshots (head_group_cache_read.cc): plans copies of what a write to another cache that shares pieces with
  // this one would touch, Installed() to follow; writes all; reads it into this new cache of a layer of `length`
  // tokens. IsRight: once all has been read, whether positions ascend below `length`.
  void PlanOwnTail(Staging* staging);
  void Save(StateWriter* writer) const;
  void Load(int64_t length, StateReader* reader);
  bool IsRight(int64_t length) const;

  int64_t store_bytes() const;
  int64_t code_bytes() const;  // with what bases and the device's copies of means take beside the codes
  // Fills in the facts of the cache; leaves what `facts` has already as it is. Some tens of nanoseconds.
  void FillFacts(HeadGroupFacts* facts) const;

 private:
  PieceList::Extent RowExtent() const;
  void SaveWindows(StateWriter* writer) const;
  void LoadWindows(StateReader* reader);
  void SaveLow(StateWriter* writer) const;
  void LoadLow(StateReader* reader);
  class AppendedKeys;
  struct SearchedRows;

  // After every change of low_.
  void LowRankChanged();
  bool keeps_checksums() const { return !keeps_all_keys() || !low_.empty(); }
  bool keeps_values() const { return context_->config.kv_store == KvStore::kKeysValues; }
  // Where the cache's first head begins in a token of the whole layer.
  int64_t head_offset() const { return int64_t{first_head_} * context_->row_bytes(); }
  absl::Status CheckReplayAt(int64_t place, int64_t count, const uint8_t* keys, const uint8_t* values) const;
  // Places [first, second) beyond size() whose new keys are not stored, for kNone and a size of `size`.
  std::pair<int64_t, int64_t> NotStored(int64_t size) const;
  void AddToSums(int64_t begin);
  // Windows of a zone of the size that the cache has, or of another.
  int64_t WindowsAt(int64_t size) const { return context_->ZoneKeys(size) / kWindowTokens; }
  void MirrorDense(int64_t size, RowStore* rows) const;
  void CopyToDevice(const std::vector<CopyTask>& copies) const;
  void WriteWindows(int64_t begin, int64_t end);
  void WritePositions(int64_t place, absl::Span<const int32_t> positions);
  int64_t RawBeginAt(int64_t size) const;
  int64_t EncodedAfterCut(int64_t place) const;
  bool CutWorks(int64_t place) const;
  void AddDense(int head, int64_t begin, int64_t end, bool for_backend, std::vector<DenseRun>* dense) const;

  // What follows is of caches with low-rank stores.
  int64_t low_end() const { return low_begin_ + low_[0].size(); }
  bool IsLow(int64_t place) const { return !low_.empty() && place >= low_begin_ && place < low_end(); }
  // Where the next tokens begin that become low-rank, and where they end once the cache has grown to `size`.
  int64_t LowStart() const { return low_[0].size() == 0 ? context_->config.zones.sink : low_end(); }
  int64_t LowEndAt(int64_t size) const;
  RecentQueries QueriesOf(const SeenQueries& seen, int head) const;         // of one head; lasts as long as `seen`
  static std::vector<KeySums> MakeSums(const Context& context, int heads);  // of no keys
  void InstallLow();
  absl::Status KeepLow(const HeadGroupCache& source, absl::Span<const uint32_t> places);
  // Rebuilds each row of the zone once, writes the windows, and returns the keys as they are encoded, [zone keys,
  // head_dim] in the index's dtype. For a cache of one head that eviction has just filled.
  std::vector<uint8_t> RebuildZone();
  // The range [first, second) of `places` that is low-rank in this cache.
  std::pair<size_t, size_t> LowAmong(absl::Span<const uint32_t> places) const;
  // Rows of a head at `places`, in any order, fp32 [places, head_dim]. Either may be nullptr.
  void ReadRows(int head, absl::Span<const int64_t> places, float* keys, float* values) const;
  void ReadRange(int head, int64_t begin, int64_t end, float* keys, float* values) const;
  void ViewRows(int head, bool of_values, LowRankStore::Reader reader, LowRankTokens* tokens) const;
  absl::StatusOr<DenseRun> RebuildDense(int head, int64_t begin, int64_t end, std::vector<Buffer>* owner) const;
  absl::Status RebuildTokens(int head, HeadStorage* storage, HeadTokens* tokens) const;
  void GatherRebuilt(int head, absl::Span<const int64_t> places, std::string* keys, std::string* values) const;
  absl::Status FillLowSearch(int head, bool with_dense, SearchTask* task) const;  // zone_begin and num_keys are set
  void FillLowAttention(int head, host::AttentionTask* task) const;

  const Context* context_;
  bool whole_;  // all heads, places are positions
  int first_head_;
  int64_t size_ = 0;
  int64_t raw_begin_ = 0;  // kNone: keys of [raw_begin_, size_) are held, besides the sink's
  RowStore keys_;
  RowStore values_;            // kKeysValues
  RowStore checksums_;         // kNone, or with low_
  RowStore positions_;         // int32, unless whole
  RowStore windows_;           // kKeysValues; by window
  std::vector<KeySums> sums_;  // [num_heads], or empty
  CodeStore codes_;

  int64_t low_begin_ = 0;
  std::vector<LowRankStore> low_;             // [num_heads], of equal sizes, or empty
  std::vector<LowRankStore::Staged> staged_;  // beside them, from StageLow to CommitAppend
  // Facts of low_: a copy, and bytes of the host's and the device's.
  std::shared_ptr<const std::vector<LowRankStore>> published_low_;
  int64_t low_store_bytes_ = 0, low_code_bytes_ = 0;
};

}  // namespace seine

#endif  // SEINE_INDEX_SEQUENCE_HEAD_GROUP_CACHE_H_
