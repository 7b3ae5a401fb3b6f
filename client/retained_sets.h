// The positions that each KV head of one layer of a sequence retains, followed from answers alone: for an engine that
// holds keys and values itself, and frees the rows of what is evicted.
//
//   RetainedSets sets(num_kv_heads);                      // of an empty sequence
//   item.report = sets.wanted();
//   client->Append(item, &retained);                      // or Evict, AppendStream, a decode step
//   if (sets.Update(retained)) Free(sets.dropped());      // else the next answer sets it right: sets.wanted() says
//   kKept
//
// A fork begins with a copy, truncated where the fork is. seine/v1/eviction.proto has the contract.
#ifndef SEINE_CLIENT_RETAINED_SETS_H_
#define SEINE_CLIENT_RETAINED_SETS_H_

#include <cstdint>
#include <vector>

#include "client/types.h"

namespace seine::client {

// Not thread-safe. Copies are independent.
class RetainedSets {
 public:
  using Positions = std::vector<std::vector<int32_t>>;  // [num_kv_heads], each ascending

  explicit RetainedSets(int num_kv_heads) : heads_(num_kv_heads) {}

  // What the next append or eviction is to report: kKept once an answer was missed, else kDropped.
  RetainedReport wanted() const { return in_step_ ? RetainedReport::kDropped : RetainedReport::kKept; }

  // Takes an answer's report. False: an answer before it was missed, or somebody else has truncated the sequence. The
  // sets then stay as they were until a kKept report comes.
  bool Update(const Retained& report);

  // The sequence was truncated at `position`.
  void Truncate(int64_t position);

  // As of the last report that was taken, and the truncations since.
  const Positions& heads() const { return heads_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t evictions() const { return evictions_; }
  // What the last Update took out of the sets, tokens of its own append counted in; empty where that was nothing.
  const Positions& dropped() const { return dropped_; }

 private:
  bool Fits(const Retained& report) const;

  Positions heads_, dropped_;
  int64_t num_tokens_ = 0, evictions_ = 0;
  bool in_step_ = true;
};

}  // namespace seine::client

#endif  // SEINE_CLIENT_RETAINED_SETS_H_
