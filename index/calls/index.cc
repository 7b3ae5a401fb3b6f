// Sequences of an index: create, find, fork, truncate, append, and what is said about them.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "index/bytes/pace.h"
#include "index/index_impl.h"
#include "index/quality/monitor.h"
#include "index/sequence/layer_lock.h"
#include "kernels/host.h"
#include "profile/field_error.h"
#include "profile/layout.h"

namespace seine {

namespace {

using ReaderLock = std::shared_lock<std::shared_mutex>;
using WriterLock = std::unique_lock<std::shared_mutex>;

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

absl::Status NoSequence(absl::string_view field, absl::string_view id) {
  return FieldError(absl::StatusCode::kNotFound, field, absl::StrCat("not found: '", id, "'"));
}

absl::Status AlreadyInUse(absl::string_view field, absl::string_view id) {
  return FieldError(absl::StatusCode::kAlreadyExists, field, absl::StrCat("'", id, "' is already in use"));
}

}  // namespace

bool IsSequenceId(absl::string_view id) {
  return !id.empty() && id.size() <= kMaxIdLength && std::all_of(id.begin(), id.end(), absl::ascii_isgraph);
}

absl::StatusOr<std::unique_ptr<Index>> Index::Create(const IndexConfig& config, Backend* backend,
                                                     std::shared_ptr<MemoryBudget> budget,
                                                     std::shared_ptr<Counts> counts,
                                                     std::shared_ptr<QualityMonitor> quality,
                                                     std::shared_ptr<IdleTier> idle) {
  if (backend == nullptr) return BadField("backend", "must be given");
  if (absl::Status s = Validate(config); !s.ok()) return s;
  if (backend->codes_on_device() && config.geometry.head_dim > kMaxDeviceHeadDim) {
    return BadField("geometry.head_dim", config.geometry.head_dim, ": a device searches keys of at most ",
                    kMaxDeviceHeadDim);
  }
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
  if (context_.idle != nullptr) context_.idle->Leave(this);
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
  {
    ReaderLock lock(mutex_);
    stats.num_sequences = static_cast<int64_t>(sequences_.size());
  }
  stats.code_bytes = context_.ledger.held(MemoryKind::kCode);
  stats.subspace_bytes = context_.ledger.held(MemoryKind::kSubspace);
  stats.store_bytes = context_.ledger.held(MemoryKind::kStore) + stats.subspace_bytes;
  stats.other_bytes = context_.ledger.held(MemoryKind::kOther);
  stats.query_bytes = context_.ledger.held(MemoryKind::kQuery);
  stats.reencoded_layers = reencoder_.layers_done();
  stats.reencoded_unfit_layers = reencoder_.unfit_layers_done();
  stats.reencoded_keys = reencoder_.keys_done();
  stats.queries_not_kept = context_.queries_not_kept.load(std::memory_order_relaxed);
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

// No sequence is held beyond the lock: who only looks at it keeps no family in memory (spill.cc).
int64_t IndexImpl::num_tokens() const {
  int64_t tokens = 0;
  ReaderLock lock(mutex_);
  for (const auto& [id, sequence] : sequences_) {
    int64_t longest = 0;
    for (const auto& layer : sequence->layers) longest = std::max(longest, layer->totals().length);
    if (sequence->spilled != nullptr) {
      for (const int64_t length : sequence->spilled->layer_tokens) longest = std::max(longest, length);
    }
    tokens += longest;
  }
  return tokens;
}

absl::StatusOr<IndexImpl::SequenceRef> IndexImpl::Look(const SequenceHandle& handle, absl::string_view field) const {
  ReaderLock lock(mutex_);
  const auto found = sequences_.find(handle.id);
  if (found == sequences_.end()) return NoSequence(field, handle.id);
  if (handle.generation != 0 && handle.generation != found->second->generation) {
    return FieldError(absl::StatusCode::kFailedPrecondition, field,
                      absl::StrCat("stale generation; '", handle.id, "' was deleted and made again"));
  }
  return found->second;
}

absl::Status IndexImpl::CheckNewId(absl::string_view id, absl::string_view field) const {
  if (!id.empty() && !IsSequenceId(id)) {
    return BadField(field, "expected 1 to ", kMaxIdLength, " printable characters without spaces");
  }
  ReaderLock lock(mutex_);
  if (sequences_.contains(id)) return AlreadyInUse(field, id);
  return absl::OkStatus();
}

absl::StatusOr<IndexImpl::SequenceRef> IndexImpl::NewSequence() const {
  const int num_layers = context_.config.geometry.num_layers;
  const int64_t bytes = SequenceBytes(context_.config);
  Reservation reservation(&context_.ledger);
  if (absl::Status s = reservation.Reserve(MemoryKind::kOther, bytes); !s.ok()) return s;
  auto sequence = std::make_shared<Sequence>();
  sequence->overhead = reservation.Charge(MemoryKind::kOther, bytes);
  for (int i = 0; i < num_layers; ++i) sequence->layers.push_back(std::make_unique<Layer>(&context_, i));
  return sequence;
}

absl::StatusOr<SequenceHandle> IndexImpl::Insert(const SequenceRef& sequence, absl::string_view id,
                                                 absl::string_view field) {
  WriterLock lock(mutex_);
  std::string name(id);
  do {
    ++last_generation_;
    if (id.empty()) name = absl::StrCat("seq-", last_generation_);
  } while (id.empty() && sequences_.contains(name));
  sequence->id = name;
  sequence->generation = last_generation_;
  if (sequence->family != 0) last_fork_ = last_generation_;
  if (sequence->family == 0) sequence->family = last_generation_;
  SequenceHandle handle{name, sequence->generation};
  if (!sequences_.emplace(std::move(name), sequence).second) {
    return AlreadyInUse(field, id);
  }
  return handle;
}

absl::StatusOr<SequenceHandle> IndexImpl::CreateSequence(absl::string_view id) {
  if (absl::Status s = CheckNewId(id, "id"); !s.ok()) return s;
  absl::StatusOr<SequenceRef> sequence = NewSequence();
  if (!sequence.ok()) return sequence.status();
  return Insert(*std::move(sequence), id, "id");
}

absl::StatusOr<SequenceInfo> IndexImpl::GetSequence(const SequenceHandle& handle) const {
  absl::StatusOr<SequenceRef> sequence = Look(handle, "handle");
  if (!sequence.ok()) return sequence.status();
  return Describe(**sequence);
}

std::vector<SequenceInfo> IndexImpl::ListSequences(absl::string_view after, size_t most) const {
  std::vector<const Sequence*> sequences;
  ReaderLock lock(mutex_);
  for (const auto& [id, sequence] : sequences_) {
    if (id > after) sequences.push_back(sequence.get());
  }
  const auto end = sequences.begin() + static_cast<int64_t>(std::min(most, sequences.size()));
  std::partial_sort(sequences.begin(), end, sequences.end(),
                    [](const auto& a, const auto& b) { return a->id < b->id; });
  sequences.erase(end, sequences.end());
  std::vector<SequenceInfo> infos;
  infos.reserve(sequences.size());
  for (const Sequence* sequence : sequences) infos.push_back(Describe(*sequence));
  return infos;
}

SequenceInfo IndexImpl::Describe(const Sequence& sequence) const {
  SequenceInfo info;
  info.handle = {sequence.id, sequence.generation};
  info.on_disk = sequence.spilled != nullptr;
  if (info.on_disk) info.layer_tokens = sequence.spilled->layer_tokens;
  for (const auto& layer : sequence.layers) {
    const LayerTotals totals = layer->totals();
    info.layer_tokens.push_back(totals.length);
    info.code_bytes += totals.code_bytes;
    info.store_bytes += totals.store_bytes;
  }
  return info;
}

// One on disk goes with its file, or, where forks still need that, is not brought back with them.
absl::Status IndexImpl::DeleteSequence(const SequenceHandle& handle) {
  absl::StatusOr<SequenceRef> sequence = Look(handle, "handle");  // the memory goes when this, or the last call, ends
  if (!sequence.ok()) return sequence.status();
  {
    WriterLock lock(mutex_);
    const auto found = sequences_.find(handle.id);
    if (found == sequences_.end() || found->second->generation != (*sequence)->generation) {
      return NoSequence("handle", handle.id);
    }
    *sequence = std::move(found->second);  // it may be back from disk by now
    sequences_.erase(found);
  }
  if (context_.counts != nullptr) (*sequence)->use.Deleted(context_.counts.get());
  return absl::OkStatus();
}

absl::StatusOr<SequenceHandle> IndexImpl::Fork(const SequenceHandle& handle, absl::string_view new_id,
                                               int64_t position) {
  absl::StatusOr<SequenceRef> source = Find(handle, "source");
  if (!source.ok()) return source.status();
  if (absl::Status s = CheckNewId(new_id, "new_id"); !s.ok()) return s;
  absl::StatusOr<SequenceRef> copy = NewSequence();
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
  return Insert(*std::move(copy), new_id, "new_id");
}

absl::Status IndexImpl::Truncate(const SequenceHandle& handle, int64_t position, SequenceInfo* after) {
  absl::StatusOr<SequenceRef> sequence = Find(handle);
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
  absl::StatusOr<SequenceRef> sequence = Find(handle);
  if (!sequence.ok()) return sequence.status();
  if (absl::Status s = CheckAppend(layer, position, keys, values); !s.ok()) return s;
  if (absl::Status s = CheckAppended(queries, keys.num_tokens); !s.ok()) return s;
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
  absl::StatusOr<SequenceRef> sequence = Find(handle);
  if (!sequence.ok()) return sequence.status();
  if (absl::Status s = CheckLayer(layer); !s.ok()) return s;
  if (absl::Status s = CheckHead(kv_head); !s.ok()) return s;
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
  absl::StatusOr<SequenceRef> sequence = Find(handle);
  if (!sequence.ok()) return sequence.status();
  if (absl::Status s = CheckLayer(layer); !s.ok()) return s;
  if (absl::Status s = CheckHead(kv_head); !s.ok()) return s;
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

}  // namespace seine
