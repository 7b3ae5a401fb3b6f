// One head's keys and values as codes in bases that follow them (OjaKV, section 5; docs/subspaces.md).
//
// Tokens come in blocks. The head's trackers see a block's keys and values first; then the block is stored:
//   codes       K U_k and V U_v in the index's dtype, U of the *version* that the block has. Blocks are written once
//               and read with their own version, whatever the trackers have learnt since;
//   full rank   the share of a block's tokens whose keys lose most to attention (5.1): by the last queries, where they
//               are given and see the block; else e_t^2 = r_t^T E[q q^T] r_t / D with the profile's moment of queries,
//               |r_t|^2 / D without one.
// A version is what the trackers hold when its first block has come. The first lasts 512 tokens, later ones seven times
// as many as came before them and at most `version_tokens`, for a basis takes as many bytes as D tokens' codes.
//
// With LowRankOptions::prompt, what a prompt's append brings makes one step with the moment of all its rows, ahead of
// its first block, and its blocks teach the trackers nothing more. They then share a version.
//
// Between blocks the trackers rest (packed_tracker.h). Forks share blocks and versions, and what is learnt until they
// learn more. A cut may fall anywhere: what is below it stays as it is stored, and the trackers keep what they have
// learnt. So codes follow from the blocks and cuts alone, not from the calls that brought the tokens, unless
// prompts or queries are to be told. Tokens are counted by place; keys that live before RoPE, and the choice by
// queries, need their positions too.
#ifndef SEINE_INDEX_SUBSPACE_LOW_RANK_STORE_H_
#define SEINE_INDEX_SUBSPACE_LOW_RANK_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "index/memory/memory.h"
#include "index/subspace/basis.h"
#include "index/subspace/calibrate.h"
#include "index/subspace/low_rank.h"
#include "index/subspace/oja.h"
#include "index/subspace/packed_tracker.h"
#include "kernels/host.h"
#include "kernels/types.h"
#include "profile/rope.h"

namespace seine {

class StateReader;  // index/bytes/state_reader.h
class StateWriter;  // index/bytes/state_writer.h

inline constexpr int kMaxBlockTokens = 65536;  // places in a block are uint16

struct LowRankOptions {
  int head_dim = 128;
  DType dtype = DType::kFloat16;
  KeyFrame frame = KeyFrame::kPostRope;
  Rope rope;  // kPreRope: as the keys carry it
  int key_rank = 96, value_rank = 96;
  int block_tokens = 512;          // up to kMaxBlockTokens
  int64_t version_tokens = 16384;  // that a version lasts at most: a new one begins with the first block behind them
  PromptUpdate prompt;
  double full_rank = 0;  // share of a block's tokens, in [0, 1)
  FullRankChoice choice;
  OjaOptions oja;
};
// INVALID_ARGUMENT naming the field.
absl::Status Validate(const LowRankOptions& options);

using host::Narrow;

// What the stores of one layer's head share.
struct LowRankShape {
  LowRankOptions options;
  std::optional<Basis> key_start, value_start;  // absent: from the first block's own moments
  std::optional<Eigen::MatrixXd> query_moment;  // in the key basis's frame
};

// Rows of tokens that follow each other, and the last queries that the head was asked, where they are known.
struct HeadRows {
  ConstRows keys, values;
  RecentQueries queries = {};
};

struct LowRankBytes {
  int64_t codes = 0, full_rank = 0, bases = 0;  // bases: versions and trackers
  int64_t device_bases = 0;                     // of versions, where codes have a memory of their own
  int64_t total() const { return codes + full_rank + bases; }
};

struct LowRankMetrics {
  OjaStats keys, values;
  // The principal angle in radians, and the overlap, of what the keys' tracker holds now to the first version.
  double angle = 0, overlap = 1;
  int64_t num_versions = 0;  // that the tokens held are stored in
  int64_t num_full_rank = 0;
  int64_t blocks_without_queries = 0;  // whose full-rank tokens were to be chosen by queries, and none saw the block
};

// Not thread-safe; copies share blocks.
class LowRankStore {
 private:
  struct Block;
  struct TrackerSet;

 public:
  LowRankStore(const LowRankShape* shape, MemoryLedger* ledger) : shape_(shape), ledger_(ledger) {}

  int64_t size() const { return size_; }
  const LowRankOptions& options() const { return shape_->options; }

  // An append in two steps, so that several stores change or none does: Stage each, Install each, which cannot fail.
  // Between the two, the store must not change. `count` tokens, finite, at `positions` [count]: a block of `first`, 1
  // to block_tokens, then whole ones, then what is left. `prompt`: they are a prompt's, or a part of it
  // (LowRankOptions::prompt). RESOURCE_EXHAUSTED.
  class Staged {
    friend class LowRankStore;
    std::vector<std::shared_ptr<const Block>> blocks_;
    std::shared_ptr<const TrackerSet> trackers_;
  };
  absl::StatusOr<Staged> Stage(const HeadRows& rows, const int32_t* positions, int64_t count, int64_t first,
                               bool prompt = false) const;
  // The same for several stores, which hold equally many tokens: [stores] rows. The ledger's backend learns and
  // projects for all of them together; UNAVAILABLE where its device is lost.
  static absl::StatusOr<std::vector<Staged>> StageAll(absl::Span<const LowRankStore> stores,
                                                      absl::Span<const HeadRows> rows, const int32_t* positions,
                                                      int64_t count, int64_t first, bool prompt = false);
  void Install(Staged staged);

  void Truncate(int64_t size);
  // The tokens at `places`, ascending, alone: stored as they are here, nothing projected anew (A.9: eviction selects
  // rows of the codes). RESOURCE_EXHAUSTED.
  absl::StatusOr<LowRankStore> Keep(absl::Span<const int64_t> places) const;

  // Rows of the tokens at `places`, in any order, fp32 [places, D], as they read: rebuilt, or as they were where they
  // are kept full-rank. Keys are turned to `positions` [places]. Either may be nullptr.
  void Read(absl::Span<const int64_t> places, const int32_t* positions, float* keys, float* values) const;
  // The same as plain views, for a backend to read: appends the runs of all tokens, the first of which has place
  // `begin` there. The settings of these runs are RowsShape's. Both last as long as the store does not change.
  enum class Reader : uint8_t { kHost, kBackend };  // who reads the bases
  void AppendRuns(bool of_values, Reader reader, int64_t begin, std::vector<LowRankRun>* runs) const;
  LowRankRows RowsShape(bool of_values) const;  // without runs
  // The basis that a token is stored in.
  Basis BasisOf(int64_t place, bool of_values) const;

  // The newest bases: those learnt, or what the next block will begin with; absent: its own moments.
  std::optional<Basis> key_basis() const;
  std::optional<Basis> value_basis() const;
  // Others in their place, of the same ranks, whole until the next block: with it learning begins anew, and a version.
  // RESOURCE_EXHAUSTED.
  absl::Status SetBases(Basis keys, Basis values);

  // For snapshots (low_rank_store_snapshot.cc). Load: into a new store, `most` tokens at most.
  void Save(StateWriter* writer) const;
  void Load(int64_t most, StateReader* reader);

  LowRankBytes bytes() const;  // shared blocks counted whole
  LowRankMetrics metrics() const;

 private:
  struct TrackerSet {
    PackedTracker keys, values;
    Memory charge;
    int64_t blocks_without_queries = 0;
  };
  struct GivenBases {
    Basis keys, values;
    Memory charge;
  };
  // U^T as fp16: of keys [key_rank][D], then of values.
  struct Version {
    Memory memory;
    Memory device;  // the same in MemorySpace::kCodes, where that is apart
  };
  // Codes of keys [tokens][key_rank], of values; keys kept full-rank [kept][D], values: all in the index's dtype. Then
  // their places in the block, uint16 [kept] ascending.
  struct Block {
    Memory memory;
    int64_t tokens = 0, kept = 0;
    std::shared_ptr<const Version> version;
  };
  struct Run {  // a block, or what a cut has left of one
    std::shared_ptr<const Block> block;
    int64_t begin = 0;
  };
  struct Offsets {  // in a block; codes of keys are at 0
    int64_t value_codes, kept_keys, kept_values, places, end;
  };
  struct Planned {  // blocks to be made, with memory
    std::vector<std::shared_ptr<Block>> blocks;
    std::vector<std::shared_ptr<Version>> fresh;  // beside them; nullptr: the version before goes on
    Memory trackers;
  };

  void SaveBlock(const std::shared_ptr<const Block>& block, StateWriter* writer) const;
  void SaveLearnt(StateWriter* writer) const;
  template <typename T>
  struct OfHead;
  template <typename T, typename Make>
  std::shared_ptr<const T> LoadShared(StateReader* reader, Make make) const;
  std::shared_ptr<const Block> NewBlock(StateReader* reader) const;
  std::shared_ptr<const Version> NewVersion(StateReader* reader) const;
  std::shared_ptr<const TrackerSet> NewTrackers(StateReader* reader) const;
  std::shared_ptr<const GivenBases> NewGiven(StateReader* reader) const;
  bool IsRight(const Block& block) const;  // one that was read
  Basis LoadBasis(int rank, StateReader* reader) const;

  Offsets OffsetsOf(int64_t tokens, int64_t kept) const;
  int64_t KeptOf(int64_t tokens) const;
  int64_t VersionBytes() const;
  int64_t VersionTokens(int64_t before) const;
  int64_t TrackerBytes(int64_t waiting) const;  // rows, since the last interval ended
  bool LearnsAtOnce(bool prompt) const { return prompt && shape_->options.prompt.pool > 0; }
  absl::StatusOr<Planned> Plan(int64_t count, int64_t first, bool prompt) const;
  absl::StatusOr<std::shared_ptr<TrackerSet>> NextTrackers(const HeadRows& rows, const int32_t* positions,
                                                           int64_t first_block) const;
  // An append under way (low_rank_append.cc).
  struct Appending;
  absl::StatusOr<Appending> Begin(const HeadRows& rows, const int32_t* positions, int64_t count, int64_t first,
                                  bool prompt) const;
  absl::Status LearnPrompt(const HeadRows& rows, const int32_t* positions, int64_t count, TrackerSet* trackers) const;
  static absl::Status LearnBlock(std::vector<Appending>* heads, size_t b);
  std::vector<float> KeysInFrame(const ConstRows& keys, const int32_t* positions, int64_t count) const;
  static absl::Status FillBlocks(std::vector<Appending>* heads, size_t b, const int32_t* positions, int64_t done);
  absl::Status TakeRows(const HeadRows& rows, const int32_t* positions, int64_t count, Appending* head) const;
  absl::Status ChooseVersion(size_t b, Appending* head) const;
  void PlanProjection(size_t b, Appending* head, std::vector<ProjectTask>* tasks) const;
  std::vector<float> ErrorsOf(const RecentQueries& queries, const int32_t* positions, std::vector<float>* residuals,
                              TrackerSet* trackers) const;
  void KeepFullRank(const HeadRows& rows, const std::vector<float>& errors, Block* block) const;
  absl::Status PackVersion(const TrackerSet& trackers, Version* version) const;
  void Pack(const Basis& basis, bool of_values, Version* version) const;
  Basis Unpack(const Version& version, bool of_values) const;
  size_t RunOf(int64_t place) const;
  // The row of a block's token among those that it keeps full-rank; -1: it is none of them.
  int64_t FullRankRow(const Block& block, int64_t in_block) const;
  absl::Status CopyTokens(absl::Span<const int64_t> places, Reservation* reservation, Block* block) const;

  const LowRankShape* shape_;
  MemoryLedger* ledger_;
  int64_t size_ = 0;
  std::vector<Run> runs_;                       // by begin
  std::shared_ptr<const TrackerSet> trackers_;  // of what is learnt; nullptr: nothing yet
  std::shared_ptr<const GivenBases> given_;     // by SetBases, since the last block
};

}  // namespace seine

#endif  // SEINE_INDEX_SUBSPACE_LOW_RANK_STORE_H_
