// A sequence that is too long for one server: its tokens lie on several, the shards, in runs of positions
// (stripe_map.h). Each shard is an ordinary sequence of an ordinary seined. A step asks all shards at once and merges
// what they answer: attention by its log-sum-exps, positions by score.
//
//   std::vector<Client*> shards = {a.get(), b.get(), c.get()};
//   auto book = ShardedSequence::Create(shards, spec, "book").value();      // spec: as of the whole, on one node
//   book->Append(layer, 0, {keys, dtype, {tokens, 8, 128}}, {values, dtype, {tokens, 8, 128}}).value();  // prefill
//   book->Append(layer, position, key, value).value();                     // a token: one shard
//   Attended answer = book->Attend(layer, {queries, dtype, {32, 128}}, {.top_k = 100}).value();
//
// Positions are those of the whole everywhere. Keys come after RoPE, so a shard needs none of it: it counts its tokens
// from 0, and this class maps what it answers. What is dense is what one node would keep dense: the sink lies on shard
// 0, the local window where the last tokens are.
//
// Errors name the shard: "shard 2: ...", and FieldOf and ReasonOf tell what the server said. Calls that change
// something say at each method what a failure leaves behind. Nothing throws.
//
// Thread safety: one thread at a time. The Clients may serve others meanwhile.
#ifndef SEINE_CLIENT_SHARDED_SHARDED_SEQUENCE_H_
#define SEINE_CLIENT_SHARDED_SHARDED_SEQUENCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "client/sharded/merge.h"
#include "client/sharded/stripe_map.h"
#include "client/types.h"

namespace seine::client {

struct ShardedOptions {
  int64_t run = 4096;  // positions of a run, a multiple of 64
  // Ask each shard for all top_k, in place of its share (ShardTopK): more is attended than on one node, and no better
  // token is left out.
  bool full_top_k = false;
  // Choose the whole's best top_k first, and attend these: as many tokens as on one node, for a second round trip.
  // Where the best lie together, in one passage, shares of top_k leave some of them out.
  bool choose_first = false;
  Transport transport = Transport::kBlocking;  // of steps
};

// A step of one layer: one round trip to each shard.
struct ShardedStep {
  int layer = 0;
  // Tokens to append first, from `position` on; absent: none. As AppendItem's.
  int64_t position = 0;
  ConstTensor keys = {}, values = {};
  ConstTensor queries = {};    // [num_q_heads, head_dim]
  v1::Selector selector = {};  // as of ShardedSequence::Attend
  v1::Attention attention = {};
};

class ShardedSequence {
 public:
  // Creates the indexes that are missing and the sequence on every shard. `spec` is what one node would be told, zones
  // included: shard 0 gets an index of its name, the others one of its name and ".rest", which has no sink. Several
  // shards may be one server: shard 2 of "book" is the sequence "book.2". An empty id asks for one. The clients must
  // outlive the sequence.
  // INVALID_ARGUMENT: no shard; a sink, update_buffer or run that is no multiple of 64; a sink longer than a run; a
  // centre_window other than 64; eviction,
  // or subspaces, which need to know positions. ALREADY_EXISTS: an index of that name is another one. A failure leaves
  // no sequence behind, unless the error says so; indexes stay.
  static absl::StatusOr<std::unique_ptr<ShardedSequence>> Create(std::vector<Client*> shards, const v1::IndexSpec& spec,
                                                                 const std::string& id,
                                                                 const ShardedOptions& options = {});
  // Takes one up that is there; shards, spec and options must be those that it was made with. NOT_FOUND.
  static absl::StatusOr<std::unique_ptr<ShardedSequence>> Open(std::vector<Client*> shards, const v1::IndexSpec& spec,
                                                               const std::string& id,
                                                               const ShardedOptions& options = {});

  const std::string& id() const { return handles_[0].id; }
  const StripeMap& map() const { return map_; }
  const std::vector<Sequence>& handles() const { return handles_; }
  // Tokens of a layer that all shards hold without a gap, as far as this object knows.
  int64_t num_tokens(int layer) const { return layers_[layer].tokens; }

  // Appends tokens of a layer at `position`; each run goes to its shard, shards in parallel. keys, values: as
  // AppendItem's. Position-checked as Client::Append is: a replay is a no-op, a gap OUT_OF_RANGE. Returns the layer's
  // length. A failure may leave some tokens on some shards: the error names the position from which they are to be
  // appended again, and the same call again sets it right. Until then questions to the layer are FAILED_PRECONDITION.
  absl::StatusOr<int64_t> Append(int layer, int64_t position, const ConstTensor& keys, const ConstTensor& values);

  // The positions of the whole that matter most. The scope is PER_Q_HEAD unless told otherwise; PER_KV_HEAD needs
  // gqa_reduce MAX or MEAN, whose scores are logits. Not mass_p: shares of a shard's mass do not compare.
  absl::StatusOr<Answer> Retrieve(int layer, const ConstTensor& queries, const v1::Selector& selector);

  // Attention over what is dense and what is selected of the whole. With selector.exact it is what one node would
  // answer, to rounding: the whole's exact top_k is chosen first (choose_first). Else each shard attends its share of
  // top_k, some more than one node would.
  absl::StatusOr<Attended> Attend(int layer, const ConstTensor& queries, const v1::Selector& selector,
                                  const v1::Attention& attention = {});
  // Appends and attends in one round trip. After an error the same step is safe to repeat: what was appended is a
  // replay then.
  absl::StatusOr<Attended> Step(const ShardedStep& step);

  // Stored rows of positions of the whole, as Client::Gather.
  absl::StatusOr<Gathered> Gather(int layer, int kv_head, absl::Span<const int32_t> positions, bool keys, bool values);

  // Drops tokens at and after `position` in every layer, shard by shard. A failure leaves the shards after the one that
  // it names as they were; the same call again sets it right, and until then questions are FAILED_PRECONDITION.
  absl::Status Truncate(int64_t position);
  // A copy-on-write copy of the first `position` tokens; absent: of all. A failure leaves no fork behind, unless the
  // error says so.
  absl::StatusOr<std::unique_ptr<ShardedSequence>> Fork(const std::string& new_id, std::optional<int64_t> position);
  // Deletes it on every shard, and goes on where one fails; the same call again deletes what is left.
  absl::Status Delete();
  // Asks every shard what it holds: needed where others append to the same sequence, or after a failed append.
  absl::Status Sync();

 private:
  struct LayerState {
    int64_t tokens = 0;  // held by all without a gap
    int64_t ends = 0;    // some shard may hold tokens up to here
  };

  // One question to the whole, `tokens` long.
  struct Question {
    int layer = 0;
    int64_t tokens = 0;
    ConstTensor queries;
    v1::Selector selector;
    std::optional<v1::Attention> attention = {};
  };
  using Appends = std::vector<std::vector<AppendItem>>;  // [shards], in order
  using Steps = std::vector<DecodeStep>;                 // [shards]; one with nothing in it is not sent
  using Answers = std::vector<DecodeAnswer>;             // [shards]

  ShardedSequence(std::vector<Client*> shards, const StripeZones& zones, const ShardedOptions& options)
      : shards_(std::move(shards)),
        zones_(zones),
        options_(options),
        map_(static_cast<int>(shards_.size()), options.run),
        streams_(shards_.size()) {}

  // Everything but the handles; `create`: and the indexes that are missing.
  static absl::StatusOr<std::unique_ptr<ShardedSequence>> Prepare(std::vector<Client*> shards,
                                                                  const v1::IndexSpec& spec,
                                                                  const ShardedOptions& options, bool create);
  int num_shards() const { return map_.shards(); }
  absl::Status CheckLayer(int layer) const;
  // The layer is there and has no gap once tokens up to `end` have come, and the selector's answers can be merged.
  absl::Status CheckQuestion(int layer, int64_t end, const v1::Selector& selector) const;
  WholeLayer Whole(const Question& question) const;
  absl::StatusOr<Appends> Split(int layer, int64_t position, const ConstTensor& keys, const ConstTensor& values) const;
  absl::Status AppendTo(int shard, const std::vector<AppendItem>& items);
  // Takes note of how an append has ended; returns its error as the caller reads it.
  absl::Status Appended(int layer, int64_t position, int64_t count, const absl::Status& status);
  Steps StepsOf(const Question& question) const;
  // Sends the steps and reads their answers. The errors of appends, and of all else; the first of each.
  struct Errors {
    absl::Status append, question;
  };
  Errors Ask(const Steps& steps, Answers* answers);
  // Returns true if the whole's sets are chosen before they are attended.
  int TopK(const Question& question) const {
    return question.selector.has_top_k() ? question.selector.top_k() : top_k_;
  }
  bool ChoosesFirst(const Question& question) const { return options_.choose_first || question.selector.exact(); }
  absl::StatusOr<Attended> AttendChosen(const Question& question, const Answer& chosen);
  Answer Merged(const Question& question, const Answers& answers) const;
  Attended MergedAttention(const Question& question, const Answers& answers) const;

  const std::vector<Client*> shards_;
  const StripeZones zones_;
  const ShardedOptions options_;
  const StripeMap map_;
  v1::Geometry geometry_;
  int top_k_ = 0;  // of a selector that has none
  std::vector<Sequence> handles_;
  std::vector<LayerState> layers_;
  std::vector<std::unique_ptr<DecodeStream>> streams_;  // opened when first needed
};

}  // namespace seine::client

#endif  // SEINE_CLIENT_SHARDED_SHARDED_SEQUENCE_H_
