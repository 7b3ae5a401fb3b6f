// Calls on one sequence, and what is said about the index.
#include "index/calls/index_impl.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "index/bytes/pace.h"
#include "index/calls/evict.h"
#include "index/calls/host_copies.h"
#include "index/calls/subspaces.h"
#include "index/quality/monitor.h"
#include "index/sequence/layer_lock.h"
#include "kernels/host.h"
#include "profile/field_error.h"
#include "profile/layout.h"

namespace seine {

namespace {

// Locks on all layers of one sequence, in order; `lock` gives a layer's.
template <typename Lock, typename Of>
absl::StatusOr<std::vector<Lock>> LockAll(const Sequence& sequence, Of lock) {
  std::vector<Lock> locks;
  locks.reserve(sequence.layers.size());
  for (const auto& layer : sequence.layers) {
    absl::StatusOr<Lock> one = lock(layer.get());
    if (!one.ok()) return one.status();
    locks.push_back(*std::move(one));
  }
  return locks;
}

int64_t LongestLayer(const Sequence& sequence) {
  int64_t longest = 0;
  for (const auto& layer : sequence.layers) longest = std::max(longest, layer->length());
  return longest;
}

absl::Status BeyondLongest(int64_t position, int64_t longest) {
  return FieldError(absl::StatusCode::kOutOfRange, "position",
                    absl::StrCat(position, " is not in [0, ", longest, "], the longest layer"));
}

// Adds a layer's part, its lock held, to what is said of a sequence.
void Add(const Layer& layer, SequenceInfo* info) {
  info->layer_tokens.push_back(layer.length());
  info->code_bytes += layer.code_bytes();
  info->store_bytes += layer.store_bytes();
}

// Returns OK if the index would fit: it is counted once it is there, but must not be made where it does not fit.
absl::Status CheckRoom(const IndexConfig& config, Backend* backend, std::shared_ptr<MemoryBudget> shared,
                       IdleTier* idle) {
  const int64_t bytes = IndexBytes(config);
  MemoryLedger ledger(backend, config.memory_limit_bytes, 0, std::move(shared), idle);
  if (Reservation(&ledger).Reserve(MemoryKind::kOther, bytes).ok()) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("geometry: the index alone would take ", bytes, " bytes, more than the memory limit leaves"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Index>> Index::Create(const IndexConfig& config, Backend* backend,
                                                     std::shared_ptr<MemoryBudget> budget,
                                                     std::shared_ptr<Counts> counts,
                                                     std::shared_ptr<QualityMonitor> quality,
                                                     std::shared_ptr<IdleTier> idle) {
  if (backend == nullptr) return BadField("backend", "must be given");
  if (absl::Status s = Validate(config); !s.ok()) return s;
  IndexConfig made = config;
  const auto bring = [&](std::shared_ptr<const Profile>* profile) {
    *profile = InLayout(std::move(*profile), made.geometry.rope);
  };
  bring(&made.codec.profile);
  if (made.eviction) bring(&made.eviction->profile);
  if (made.subspace) bring(&made.subspace->profile);
  if (made.eviction) made.eviction->keep_queries = QueriesKept(made);
  if (absl::Status s = FindRanks(&made); !s.ok()) return s;
  if (absl::Status s = CheckRoom(made, backend, budget, idle.get()); !s.ok()) return s;
  absl::StatusOr<LowRankShapes> low_rank = MakeLowRankShapes(made);
  if (!low_rank.ok()) return low_rank.status();
  auto index = std::make_unique<IndexImpl>(made, *std::move(low_rank), backend, std::move(budget), std::move(counts),
                                           std::move(quality), std::move(idle));
  if (absl::Status s = index->CountItself(); !s.ok()) return s;
  index->JoinIdleTier();
  return index;
}

IndexImpl::~IndexImpl() {
  if (context_.quality != nullptr) context_.quality->Leave(&context_);
}

absl::Status IndexImpl::CountItself() {
  const int64_t bytes = IndexBytes(context_.config);
  Reservation reservation(&context_.ledger);
  if (absl::Status s = reservation.Reserve(MemoryKind::kOther, bytes); !s.ok()) return s;
  overhead_ = reservation.Charge(MemoryKind::kOther, bytes);
  return absl::OkStatus();
}

IndexStats IndexImpl::stats() const {
  IndexStats stats;
  stats.num_sequences = sequences_.size();
  stats.code_bytes = context_.ledger.held(MemoryKind::kCode);
  stats.subspace_bytes = context_.ledger.held(MemoryKind::kSubspace);
  stats.store_bytes = context_.ledger.held(MemoryKind::kStore) + stats.subspace_bytes;
  stats.other_bytes = context_.ledger.held(MemoryKind::kOther);
  stats.query_bytes = context_.ledger.held(MemoryKind::kQuery);
  stats.reencoded_layers = reencoder_.layers_done();
  stats.reencoded_unfit_layers = reencoder_.unfit_layers_done();
  stats.reencoded_keys = reencoder_.keys_done();
  stats.dropped_queries = context_.dropped_queries.load(std::memory_order_relaxed);
  stats.evictions = context_.eviction.evictions();
  stats.evicted_tokens = context_.eviction.evicted_tokens();
  for (size_t layer = 0; layer < context_.gates.size(); ++layer) {
    const LayerGate::Reading gate = context_.gates[layer].Read();
    stats.gate_checks += gate.checks;
    stats.gate_lost += gate.lost;
    stats.gate_answers += gate.exact_answers;
    if (gate.exact) stats.gate_layers.emplace_back(static_cast<int>(layer), gate.lost_then);
  }
  return stats;
}

absl::StatusOr<SequenceHandle> IndexImpl::CreateSequence(absl::string_view id) {
  if (absl::Status s = sequences_.CheckNewId(id, "id"); !s.ok()) return s;
  absl::StatusOr<SequenceRef> sequence = sequences_.New();
  if (!sequence.ok()) return sequence.status();
  return sequences_.Insert(*std::move(sequence), id, "id");
}

absl::StatusOr<SequenceHandle> IndexImpl::Fork(const SequenceHandle& handle, absl::string_view new_id,
                                               int64_t position) {
  absl::StatusOr<SequenceRef> source = sequences_.Find(handle, "source");
  if (!source.ok()) return source.status();
  if (absl::Status s = sequences_.CheckNewId(new_id, "new_id"); !s.ok()) return s;
  absl::StatusOr<SequenceRef> copy = sequences_.New();
  if (!copy.ok()) return copy.status();
  (*copy)->family = (*source)->family;
  {
    const auto locks = LockAll<ReadLock>(**source, [](const Layer* layer) { return ReadLock::Of(*layer); });
    if (!locks.ok()) return locks.status();
    const int64_t longest = LongestLayer(**source);
    if (position > longest) return BeyondLongest(position, longest);
    Staging staging;
    for (size_t i = 0; i < (*copy)->layers.size(); ++i) {
      Layer& layer = *(*copy)->layers[i];
      layer.ShareFrom(*(*source)->layers[i]);
      if (position < 0) continue;
      if (absl::Status s = layer.PlanTruncate(position, &staging); !s.ok()) return s;
    }
    if (absl::Status s = staging.Allocate(&context_.ledger); !s.ok()) return s;
    staging.Install();
    for (const auto& layer : (*copy)->layers) {
      if (absl::Status s = layer->CommitTruncate(position < 0 ? longest : position); !s.ok()) return s;
      layer->Publish();
    }
  }
  return sequences_.Insert(*std::move(copy), new_id, "new_id");
}

absl::Status IndexImpl::Truncate(const SequenceHandle& handle, int64_t position, SequenceInfo* after) {
  absl::StatusOr<SequenceRef> sequence = sequences_.Find(handle);
  if (!sequence.ok()) return sequence.status();
  const auto locks = LockAll<WriteLock>(**sequence, WriteLock::Of);
  if (!locks.ok()) return locks.status();
  const int64_t longest = LongestLayer(**sequence);
  if (position < 0 || position > longest) return BeyondLongest(position, longest);
  Staging staging;
  for (const auto& layer : (*sequence)->layers) {
    if (absl::Status s = layer->PlanTruncate(position, &staging); !s.ok()) return s;
  }
  if (absl::Status s = staging.Allocate(&context_.ledger); !s.ok()) return s;
  staging.Install();
  absl::Status status;
  for (const auto& layer : (*sequence)->layers) status.Update(layer->CommitTruncate(position));
  if (after == nullptr) return status;
  *after = {.handle = {(*sequence)->id, (*sequence)->generation}, .layer_tokens = {}};
  for (const auto& layer : (*sequence)->layers) Add(*layer, after);
  return status;
}

absl::StatusOr<int64_t> IndexImpl::Append(const SequenceHandle& handle, int layer, int64_t position,
                                          const TensorView& keys, const TensorView& values, const QueryView& queries,
                                          RetainedReport report, Retained* retained) {
  if (keys.on_device || values.on_device) {
    // A copy of more bytes than the caller has there would lose the device.
    if (absl::StatusOr<SequenceRef> s = sequences_.Find(handle); !s.ok()) return s.status();
    if (absl::Status s = checks_.CheckAppendShapes(layer, position, keys, values); !s.ok()) return s;
    HostCopies copies(&context_);
    const absl::StatusOr<TensorView> host_keys = copies.Of("keys", keys), host_values = copies.Of("values", values);
    if (!host_keys.ok()) return host_keys.status();
    if (!host_values.ok()) return host_values.status();
    return Append(handle, layer, position, *host_keys, *host_values, queries, report, retained);
  }
  absl::StatusOr<SequenceRef> sequence = sequences_.Find(handle);
  if (!sequence.ok()) return sequence.status();
  if (absl::Status s = checks_.CheckAppend(layer, position, keys, values, queries); !s.ok()) return s;
  if (report != RetainedReport::kNone && retained == nullptr) return BadField("retained", "must be given for a report");
  NoteStep();
  Layer& target = *(*sequence)->layers[layer];
  absl::StatusOr<WriteLock> lock = WriteLock::Of(&target);
  if (!lock.ok()) return lock.status();
  const int64_t before = target.length();
  absl::StatusOr<int64_t> length = target.Append(position, keys, values, queries, report, retained);
  const bool outgrown = target.WantsReencoding(keys.num_tokens);
  lock->Unlock();
  if (length.ok() && context_.own_counts != nullptr) {
    context_.own_counts->Appended(*length - before);
    (*sequence)->use.Used();
  }
  if (outgrown) reencoder_.Add(*sequence, layer);
  return length;
}

absl::Status IndexImpl::Gather(const SequenceHandle& handle, int layer, int kv_head,
                               absl::Span<const int32_t> positions, std::string* keys, std::string* values) const {
  absl::StatusOr<SequenceRef> sequence = FindLayer(handle, layer);
  if (!sequence.ok()) return sequence.status();
  if (absl::Status s = checks_.CheckHead(kv_head); !s.ok()) return s;
  if (keys != nullptr && context_.config.kv_store == KvStore::kNone) {
    return FieldError(absl::StatusCode::kFailedPrecondition, "keys", "kv_store does not keep them");
  }
  if (values != nullptr && context_.config.kv_store != KvStore::kKeysValues) {
    return FieldError(absl::StatusCode::kFailedPrecondition, "values", "kv_store does not keep them");
  }
  const Layer& target = *(*sequence)->layers[layer];
  const auto lock = ReadLock::Of(target);
  if (!lock.ok()) return lock.status();
  return target.Gather(kv_head, positions, keys, values);
}

absl::StatusOr<HeadInfo> IndexImpl::DescribeHead(const SequenceHandle& handle, int layer, int kv_head) const {
  absl::StatusOr<SequenceRef> sequence = FindLayer(handle, layer);
  if (!sequence.ok()) return sequence.status();
  if (absl::Status s = checks_.CheckHead(kv_head); !s.ok()) return s;
  const Layer& target = *(*sequence)->layers[layer];
  const HeadFacts facts = target.facts(kv_head);
  const HeadGroupFacts& cache = facts.cache;
  HeadInfo info;
  info.num_tokens = facts.length;
  info.num_retained = cache.size;
  info.zone_begin = std::min<int64_t>(context_.config.zones.sink, cache.size);
  info.zone_end = info.zone_begin + cache.zone_keys;
  info.num_segments = cache.segments;
  info.code_bytes = cache.head_code_bytes;
  info.store_bytes = cache.head_store_bytes;
  info.bytes_per_key = cache.zone_keys > 0 ? double(info.code_bytes) / double(cache.zone_keys) : 0;
  info.layout = context_.transforms.layout();
  info.subspace = DescribeSubspace(context_.config, facts.low_rank);
  info.codec = context_.config.codec.name;
  info.coarse = Name(context_.config.search.coarse);
  info.centre = Name(context_.config.codec.centre);
  if (TraitsOf(context_.config.codec.name).needs_profile) {
    const CodecConfig& codec = context_.config.codec;
    info.profile = codec.profile_name;
    info.coarse_bits = codec.coarse_bits;
    info.total_bits = codec.total_bits;
    if (context_.config.geometry.rope.stated()) info.horizon = codec.horizon;
    if (const auto& codecs = cache.codecs; codecs != nullptr) {
      info.position = codecs->position;
      info.lambda = codecs->heads[kv_head].lambda;
      info.query_moments = codecs->queries != nullptr ? "live" : "profile";
      const std::vector<double> losses = target.queries().LossesOf(codecs.get());
      if (!losses.empty()) info.predicted_loss = losses[kv_head];
    }
  }
  return info;
}

absl::StatusOr<LayerScores> IndexImpl::Score(const SequenceHandle& handle, int layer, const ScorerConfig& scorer,
                                             const ScorerInputs& given) const {
  absl::StatusOr<SequenceRef> sequence = FindLayer(handle, layer);
  if (!sequence.ok()) return sequence.status();
  return ScoreLayer(checks_, *(*sequence)->layers[layer], scorer, given);
}

absl::StatusOr<EvictAnswer> IndexImpl::Evict(const SequenceHandle& handle, int layer, const EvictParams& params,
                                             const ScorerInputs& given) {
  absl::StatusOr<SequenceRef> sequence = FindLayer(handle, layer);
  if (!sequence.ok()) return sequence.status();
  return EvictLayer(context_, checks_, (*sequence)->layers[layer].get(), params, given);
}

absl::StatusOr<std::vector<HeadDiagnosis>> IndexImpl::Diagnose(const SequenceHandle& handle, int layer,
                                                               const DiagnoseParams& params,
                                                               const ScorerInputs& given) const {
  absl::StatusOr<SequenceRef> sequence = FindLayer(handle, layer);
  if (!sequence.ok()) return sequence.status();
  return DiagnoseLayer(context_, checks_, *(*sequence)->layers[layer], params, given);
}

absl::Status IndexImpl::Reconstruct(const SequenceHandle& handle, int layer, int kv_head, int64_t begin, int64_t end,
                                    std::vector<int32_t>* positions, std::string* keys, std::string* values) const {
  absl::StatusOr<SequenceRef> sequence = SubspaceLayer(handle, layer);
  if (!sequence.ok()) return sequence.status();
  if (absl::Status s = checks_.CheckHead(kv_head); !s.ok()) return s;
  return ReconstructRows(*(*sequence)->layers[layer], kv_head, begin, end, positions, keys, values);
}

absl::StatusOr<LayerBases> IndexImpl::GetBases(const SequenceHandle& handle, int layer) const {
  absl::StatusOr<SequenceRef> sequence = SubspaceLayer(handle, layer);
  if (!sequence.ok()) return sequence.status();
  return BasesOf(*(*sequence)->layers[layer]);
}

absl::Status IndexImpl::SetBases(const SequenceHandle& handle, int layer, const LayerBases& bases) {
  absl::StatusOr<SequenceRef> sequence = SubspaceLayer(handle, layer);
  if (!sequence.ok()) return sequence.status();
  return ReplaceBases(context_.config, layer, bases, (*sequence)->layers[layer].get());
}

absl::StatusOr<SequenceRef> IndexImpl::FindLayer(const SequenceHandle& handle, int layer) const {
  absl::StatusOr<SequenceRef> sequence = sequences_.Find(handle);
  if (!sequence.ok()) return sequence;
  if (absl::Status s = checks_.CheckLayer(layer); !s.ok()) return s;
  return sequence;
}

absl::StatusOr<SequenceRef> IndexImpl::SubspaceLayer(const SequenceHandle& handle, int layer) const {
  absl::StatusOr<SequenceRef> sequence = FindLayer(handle, layer);
  if (sequence.ok() && !context_.config.subspace)
    return FieldError(absl::StatusCode::kFailedPrecondition, "handle", "the index keeps nothing low-rank");
  return sequence;
}

}  // namespace seine
