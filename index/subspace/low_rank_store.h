// Keys and values of a layer's tokens as codes in bases that follow them (subspace.md; ojakv.txt, section 5).
//
// Tokens come in whole blocks. Each head's trackers see a block's keys and values first; then the block is stored:
//   codes       K U_k and V U_v in the index's dtype, U of the *version* that the block's run of tokens has. Blocks are
//               written once and read with their own version, whatever the trackers have learnt since;
//   full rank   the share of a head's tokens whose keys lose most to attention (5.1): e_t^2 = r_t^T E[q q^T] r_t / D
//               with the profile's moment of queries, |r_t|^2 / D without one.
// A version is what the trackers hold when its first block has come; it lasts `version_tokens`, for a basis takes as
// many bytes as D tokens' codes.
//
// Forks share blocks and versions; the trackers are copied. A cut may fall anywhere: what is below it stays as it is
// stored, and the trackers keep what they have learnt. So codes follow from the blocks and cuts alone, not from the
// calls that brought the tokens.
#ifndef SEINE_INDEX_SUBSPACE_LOW_RANK_STORE_H_
#define SEINE_INDEX_SUBSPACE_LOW_RANK_STORE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "index/memory.h"
#include "index/subspace/basis.h"
#include "index/subspace/calibrate.h"
#include "index/subspace/oja.h"
#include "kernels/types.h"
#include "profile/rope.h"

namespace seine {

struct LowRankOptions {
  int heads = 1, head_dim = 128;
  DType dtype = DType::kFloat16;
  KeyFrame frame = KeyFrame::kPostRope;
  Rope rope;                   // kPreRope: as the keys carry it
  int64_t first_position = 0;  // of the store's first token
  int key_rank = 96, value_rank = 96;
  int block_tokens = 512;         // up to 65,536
  int64_t version_tokens = 8192;  // a multiple of block_tokens
  double full_rank = 0;           // share of a block's tokens, in [0, 1)
  OjaOptions oja;
};
// INVALID_ARGUMENT naming the field.
absl::Status Validate(const LowRankOptions& options);

// What the stores of one layer's sequences share.
struct LowRankShape {
  LowRankOptions options;
  LayerBases start;                            // empty: from the first block's own moments
  std::vector<Eigen::MatrixXd> query_moments;  // [heads], in the key basis's frame; empty: none

  int64_t kept() const;  // tokens of a block that stay full-rank
};

// One head's rows of tokens that follow each other.
struct HeadRows {
  ConstRows keys, values;
};

struct LowRankBytes {
  int64_t codes = 0, full_rank = 0, bases = 0;  // bases: versions and trackers
  int64_t total() const { return codes + full_rank + bases; }
};

struct LowRankMetrics {
  OjaStats keys, values;
  // Of what the keys' tracker holds now, to the first version: the principal angle in radians, and the overlap.
  double angle = 0, overlap = 1;
  int64_t num_versions = 0;  // that the tokens held are stored in
};

// Not thread-safe; copies share blocks.
class LowRankStore {
 public:
  LowRankStore(const LowRankShape* shape, MemoryLedger* ledger) : shape_(shape), ledger_(ledger) {}

  int64_t size() const { return size_; }

  // Appends `count` tokens, a multiple of block_tokens, finite, rows [heads]. RESOURCE_EXHAUSTED: nothing has changed.
  absl::Status Append(absl::Span<const HeadRows> rows, int64_t count);
  void Truncate(int64_t size);

  // Rows of one head's tokens [begin, end), fp32 [end - begin, D], as they read: rebuilt, or as they were where they
  // are kept full-rank. Keys are turned to their positions. Either may be nullptr.
  void Read(int head, int64_t begin, int64_t end, float* keys, float* values) const;
  // The basis that token `place` of a head is stored in.
  Basis BasisOf(int head, int64_t place, bool of_values) const;
  // What is learnt so far; from the first block on.
  const OjaTracker& key_tracker(int head) const { return trackers_->heads[head].keys; }
  const OjaTracker& value_tracker(int head) const { return trackers_->heads[head].values; }

  LowRankBytes bytes() const;  // shared blocks counted whole
  LowRankMetrics metrics(int head) const;

 private:
  struct Trackers {
    OjaTracker keys, values;
  };
  struct TrackerSet {
    std::vector<Trackers> heads;
    Memory charge;
  };
  // Bases of all heads as fp16: of keys [heads][D][key_rank], then of values.
  struct Version {
    Memory memory;
  };
  // Codes of keys [heads][block_tokens][key_rank], of values; keys kept full-rank [heads][kept][D], values: all in the
  // index's dtype. Then their places in the block, uint16 [heads][kept] ascending.
  struct Block {
    Memory memory;
    std::shared_ptr<const Version> version;
  };
  struct Run {  // a block, or what a cut has left of one
    std::shared_ptr<const Block> block;
    int64_t begin = 0;
  };
  struct Offsets {  // in a block; codes of keys are at 0
    int64_t value_codes, kept_keys, kept_values, places, end;
  };
  // What an append is going to install.
  struct Staged {
    std::vector<std::shared_ptr<Block>> blocks;
    std::vector<std::shared_ptr<Version>> versions;  // beside blocks; nullptr: the one before goes on
    std::shared_ptr<TrackerSet> trackers;
  };

  Offsets BlockOffsets() const;
  int64_t VersionBytes() const;
  absl::Status Stage(int64_t num_blocks, Staged* staged) const;
  absl::Status StartTrackers(absl::Span<const HeadRows> rows, std::vector<Trackers>* trackers) const;
  std::vector<float> KeysInFrame(const ConstRows& keys, int64_t count, int64_t place) const;
  absl::Status FillBlock(const HeadRows& rows, int head, int64_t place, Version* fresh, Trackers* trackers,
                         Block* block) const;
  Basis Unpack(const Version& version, int head, bool of_values) const;
  void Pack(const Basis& basis, int head, bool of_values, Version* version) const;
  size_t RunOf(int64_t place) const;
  void ReadRun(const Run& run, int head, int64_t begin, int64_t end, float* keys, float* values) const;

  const LowRankShape* shape_;
  MemoryLedger* ledger_;
  int64_t size_ = 0;
  int64_t version_tokens_ = 0;                  // stored since the newest version began
  std::vector<Run> runs_;                       // by begin
  std::shared_ptr<const TrackerSet> trackers_;  // nullptr before the first block
};

}  // namespace seine

#endif  // SEINE_INDEX_SUBSPACE_LOW_RANK_STORE_H_
