// How a sharded sequence begins, changes as a whole and ends. What a layer is given is in sharded_append.cc,
// what it is asked in sharded_step.cc.
#include "client/sharded/sharded_sequence.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sharded/shard_error.h"
#include "profile/field_error.h"

namespace seine::client {
namespace {

constexpr int64_t kWindow = 64;  // tokens that share a code's centre: zones begin and end at multiples

StripeZones ZonesOf(const v1::IndexSpec& spec) {
  StripeZones zones;
  const v1::Zones& given = spec.zones();
  if (given.has_sink()) zones.sink = given.sink();
  if (given.has_local()) zones.local = given.local();
  if (given.has_update_buffer()) zones.update_buffer = given.update_buffer();
  if (given.has_dense_threshold()) zones.dense_threshold = given.dense_threshold();
  return zones;
}

absl::Status Check(const v1::IndexSpec& spec, const StripeZones& zones, size_t shards, int64_t run) {
  if (shards == 0) return BadField("shards", "none given");
  if (run < kWindow || run % kWindow != 0) return BadField("run", run, " is no multiple of ", kWindow);
  if (zones.sink % kWindow != 0 || zones.sink < 0 || zones.sink > run) {
    return BadField("zones.sink", zones.sink, " is no multiple of ", kWindow, " up to a run's ", run);
  }
  if (zones.update_buffer < kWindow || zones.update_buffer % kWindow != 0) {
    return BadField("zones.update_buffer", zones.update_buffer, " is no multiple of ", kWindow);
  }
  if (spec.codec().has_centre_window() && spec.codec().centre_window() != kWindow) {
    return BadField("codec.centre_window", "must be ", kWindow);
  }
  if (zones.local < 0) return BadField("zones.local", "is negative");
  if (zones.dense_threshold < 0) return BadField("zones.dense_threshold", "is negative");
  if (spec.has_eviction())
    return BadField("eviction", "a sharded sequence does not evict: budgets and scores are of a whole");
  if (spec.has_subspace()) {
    return BadField("subspace", "a shard does not know its tokens' positions, which low-rank keys are rotated by");
  }
  return absl::OkStatus();
}

// What a shard's index is told: it keeps nothing dense but the sink and what is not encoded yet. An item says what else
// is (RetrieveItem::dense_from).
v1::IndexSpec SpecOfShard(v1::IndexSpec spec, const StripeZones& zones, int shard) {
  if (shard > 0) spec.mutable_name()->append(".rest");
  spec.mutable_zones()->set_sink(shard == 0 ? static_cast<int>(zones.sink) : 0);
  spec.mutable_zones()->set_local(0);
  spec.mutable_zones()->set_update_buffer(kWindow);
  spec.mutable_zones()->set_dense_threshold(0);
  return spec;
}

// Shards of one server need ids of their own.
std::string IdOfShard(const std::string& id, int shard) { return shard == 0 ? id : absl::StrCat(id, ".", shard); }

absl::Status Compare(const v1::IndexSpec& want, const v1::IndexSpec& have) {
  const auto differs = [&](absl::string_view field) {
    return FieldError(absl::StatusCode::kAlreadyExists, field,
                      absl::StrCat("the index ", want.name(), " is there and has another"));
  };
  const v1::Geometry &a = want.geometry(), &b = have.geometry();
  if (a.num_layers() != b.num_layers()) return differs("geometry.num_layers");
  if (a.num_q_heads() != b.num_q_heads()) return differs("geometry.num_q_heads");
  if (a.num_kv_heads() != b.num_kv_heads()) return differs("geometry.num_kv_heads");
  if (a.head_dim() != b.head_dim()) return differs("geometry.head_dim");
  if (a.dtype() != b.dtype()) return differs("geometry.dtype");
  const v1::Zones &zones = want.zones(), &there = have.zones();
  if (zones.sink() != there.sink()) return differs("zones.sink");
  if (zones.local() != there.local()) return differs("zones.local");
  if (zones.update_buffer() != there.update_buffer()) return differs("zones.update_buffer");
  if (zones.dense_threshold() != there.dense_threshold()) return differs("zones.dense_threshold");
  if (want.kv_store() != v1::KV_STORE_UNSPECIFIED && want.kv_store() != have.kv_store()) return differs("kv_store");
  const std::string& codec = want.codec().name();
  if (!codec.empty() && codec != have.codec().name()) return differs("codec.name");
  return absl::OkStatus();
}

absl::StatusOr<v1::IndexInfo> FindIndex(Client* client, const v1::IndexSpec& spec, bool create) {
  if (create) {
    absl::StatusOr<v1::IndexInfo> made = client->CreateIndex(spec);
    if (made.ok() || !absl::IsAlreadyExists(made.status())) return made;
  }
  absl::StatusOr<v1::IndexInfo> found = client->GetIndex(spec.name());
  if (!found.ok()) return found;
  if (absl::Status s = Compare(spec, found->spec()); !s.ok()) return s;
  return found;
}

// Takes back what a call that failed has made; says where that failed, too.
absl::Status TakenBack(const std::vector<Client*>& shards, const std::vector<Sequence>& made, absl::Status status) {
  for (size_t s = 0; s < made.size(); ++s) {
    if (shards[s]->DeleteSequence(made[s]).ok()) continue;
    status = WithMessage(status, absl::StrCat(status.message(), "; ", made[s].id, " stays on shard ", s));
  }
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardedSequence>> ShardedSequence::Prepare(std::vector<Client*> shards,
                                                                          const v1::IndexSpec& spec,
                                                                          const ShardedOptions& options, bool create) {
  const StripeZones zones = ZonesOf(spec);
  if (absl::Status s = Check(spec, zones, shards.size(), options.run); !s.ok()) return s;
  std::unique_ptr<ShardedSequence> out(new ShardedSequence(std::move(shards), zones, options));
  for (int s = 0; s < out->num_shards(); ++s) {
    const v1::IndexSpec of_shard = SpecOfShard(spec, zones, s);
    absl::StatusOr<v1::IndexInfo> index = FindIndex(out->shards_[s], of_shard, create);
    if (!index.ok()) return OfShard(s, index.status());
    out->geometry_ = index->spec().geometry();
    out->top_k_ = index->spec().retrieval().top_k();
    out->handles_.push_back({of_shard.name(), "", 0});
  }
  out->layers_.resize(out->geometry_.num_layers());
  return out;
}

absl::StatusOr<std::unique_ptr<ShardedSequence>> ShardedSequence::Create(std::vector<Client*> shards,
                                                                         const v1::IndexSpec& spec,
                                                                         const std::string& id,
                                                                         const ShardedOptions& options) {
  auto out = Prepare(std::move(shards), spec, options, true);
  if (!out.ok()) return out;
  std::vector<Sequence> made;
  for (int s = 0; s < (*out)->num_shards(); ++s) {
    auto sequence =
        (*out)->shards_[s]->CreateSequence((*out)->handles_[s].index, IdOfShard(s == 0 ? id : made[0].id, s));
    if (!sequence.ok()) return TakenBack((*out)->shards_, made, OfShard(s, sequence.status()));
    made.push_back(*std::move(sequence));
  }
  (*out)->handles_ = std::move(made);
  return out;
}

absl::StatusOr<std::unique_ptr<ShardedSequence>> ShardedSequence::Open(std::vector<Client*> shards,
                                                                       const v1::IndexSpec& spec, const std::string& id,
                                                                       const ShardedOptions& options) {
  auto out = Prepare(std::move(shards), spec, options, false);
  if (!out.ok()) return out;
  for (int s = 0; s < (*out)->num_shards(); ++s) (*out)->handles_[s].id = IdOfShard(id, s);
  if (absl::Status s = (*out)->Sync(); !s.ok()) return s;
  return out;
}

absl::Status ShardedSequence::Sync() {
  std::vector<std::vector<int64_t>> rows(layers_.size(), std::vector<int64_t>(num_shards()));
  for (int s = 0; s < num_shards(); ++s) {
    absl::StatusOr<SequenceInfo> info = shards_[s]->GetSequence(handles_[s]);
    if (!info.ok()) return OfShard(s, info.status());
    handles_[s] = info->handle;
    for (size_t l = 0; l < rows.size(); ++l) rows[l][s] = info->layer_tokens[l];
  }
  for (size_t l = 0; l < rows.size(); ++l) {
    layers_[l].tokens = layers_[l].ends = map_.HeldBy(rows[l]);
    for (int s = 0; s < num_shards(); ++s) {
      if (rows[l][s] > 0) layers_[l].ends = std::max(layers_[l].ends, map_.PositionOf(s, rows[l][s] - 1) + 1);
    }
  }
  return absl::OkStatus();
}

absl::Status ShardedSequence::Truncate(int64_t position) {
  int64_t longest = 0;
  for (const LayerState& layer : layers_) longest = std::max(longest, layer.tokens);
  if (position < 0) return BadField("position", "must not be negative");
  if (position > longest) {
    return FieldError(absl::StatusCode::kOutOfRange, "position",
                      absl::StrCat(position, " is past the longest layer's ", longest, " tokens"));
  }
  for (LayerState& layer : layers_) layer.tokens = std::min(layer.tokens, position);
  for (int s = 0; s < num_shards(); ++s) {
    absl::StatusOr<SequenceInfo> left = shards_[s]->TruncateSequence(handles_[s], map_.RowsBefore(s, position));
    if (left.ok()) continue;
    const absl::Status status = OfShard(s, left.status());
    return WithMessage(status, absl::StrCat(status.message(), "; truncate to ", position, " again"));
  }
  for (LayerState& layer : layers_) layer.ends = layer.tokens;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ShardedSequence>> ShardedSequence::Fork(const std::string& new_id,
                                                                       std::optional<int64_t> position) {
  std::unique_ptr<ShardedSequence> fork(new ShardedSequence(shards_, zones_, options_));
  fork->geometry_ = geometry_;
  fork->top_k_ = top_k_;
  int64_t longest = 0;
  for (const LayerState& layer : layers_) {
    if (layer.ends > layer.tokens) return absl::FailedPreconditionError("a layer has gaps: append or truncate first");
    longest = std::max(longest, layer.tokens);
    const int64_t tokens = std::min(layer.tokens, position.value_or(layer.tokens));
    fork->layers_.push_back({tokens, tokens});
  }
  if (position && (*position < 0 || *position > longest)) {
    return FieldError(absl::StatusCode::kOutOfRange, "position",
                      absl::StrCat(*position, " is not in the longest layer's ", longest, " tokens"));
  }
  for (int s = 0; s < num_shards(); ++s) {
    const int64_t rows = map_.RowsBefore(s, position.value_or(longest));
    auto made = shards_[s]->ForkSequence(handles_[s], IdOfShard(s == 0 ? new_id : fork->handles_[0].id, s), rows);
    if (!made.ok()) return TakenBack(shards_, fork->handles_, OfShard(s, made.status()));
    fork->handles_.push_back(*std::move(made));
  }
  return fork;
}

absl::Status ShardedSequence::Delete() {
  std::vector<absl::Status> statuses;
  for (int s = 0; s < num_shards(); ++s) {
    absl::Status status = shards_[s]->DeleteSequence(handles_[s]);
    if (!absl::IsNotFound(status)) statuses.push_back(OfShard(s, status));
  }
  return FirstError(statuses);
}

}  // namespace seine::client
