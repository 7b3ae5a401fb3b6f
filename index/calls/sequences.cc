// Sequences by name: made, found, listed, deleted.
#include "index/calls/sequences.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "profile/field_error.h"

namespace seine {

namespace {

using ReaderLock = std::shared_lock<std::shared_mutex>;
using WriterLock = std::unique_lock<std::shared_mutex>;

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

SequenceInfo Sequences::Describe(const Sequence& sequence) {
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

Sequences::~Sequences() {
  if (context_.idle != nullptr) context_.idle->Leave(this);
}

int64_t Sequences::size() const {
  ReaderLock lock(mutex_);
  return static_cast<int64_t>(sequences_.size());
}

// No sequence is held beyond the lock: who only looks at it keeps no family in memory (spill.cc).
int64_t Sequences::num_tokens() const {
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

absl::StatusOr<SequenceRef> Sequences::Look(const SequenceHandle& handle, absl::string_view field) const {
  ReaderLock lock(mutex_);
  const auto found = sequences_.find(handle.id);
  if (found == sequences_.end()) return NoSequence(field, handle.id);
  if (handle.generation != 0 && handle.generation != found->second->generation) {
    return FieldError(absl::StatusCode::kFailedPrecondition, field,
                      absl::StrCat("stale generation; '", handle.id, "' was deleted and made again"));
  }
  return found->second;
}

absl::Status Sequences::CheckNewId(absl::string_view id, absl::string_view field) const {
  if (!id.empty() && !IsSequenceId(id)) {
    return BadField(field, "expected 1 to ", kMaxIdLength, " printable characters without spaces");
  }
  ReaderLock lock(mutex_);
  if (sequences_.contains(id)) return AlreadyInUse(field, id);
  return absl::OkStatus();
}

absl::StatusOr<SequenceRef> Sequences::New() const {
  const int num_layers = context_.config.geometry.num_layers;
  const int64_t bytes = SequenceBytes(context_.config);
  Reservation reservation(&context_.ledger);
  if (absl::Status s = reservation.Reserve(MemoryKind::kOther, bytes); !s.ok()) return s;
  auto sequence = std::make_shared<Sequence>();
  sequence->overhead = reservation.Charge(MemoryKind::kOther, bytes);
  for (int i = 0; i < num_layers; ++i) sequence->layers.push_back(std::make_unique<Layer>(&context_, i));
  return sequence;
}

absl::StatusOr<SequenceHandle> Sequences::Insert(const SequenceRef& sequence, absl::string_view id,
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

absl::StatusOr<std::vector<SequenceRef>> Sequences::FindAll(absl::Span<const SequenceHandle> handles) const {
  std::vector<SequenceRef> sequences;
  for (const SequenceHandle& handle : handles) {
    absl::StatusOr<SequenceRef> sequence = Find(handle, "sequence");
    if (!sequence.ok()) return sequence.status();
    sequences.push_back(*std::move(sequence));
  }
  if (!handles.empty()) return sequences;
  const ReaderLock lock(mutex_);
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->spilled == nullptr) sequences.push_back(sequence);  // those on disk stay there
  }
  std::sort(sequences.begin(), sequences.end(),
            [](const SequenceRef& a, const SequenceRef& b) { return a->generation < b->generation; });
  return sequences;
}

absl::StatusOr<SequenceInfo> Sequences::Get(const SequenceHandle& handle) const {
  absl::StatusOr<SequenceRef> sequence = Look(handle, "handle");
  if (!sequence.ok()) return sequence.status();
  return Describe(**sequence);
}

std::vector<SequenceInfo> Sequences::List(absl::string_view after, size_t most) const {
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

// One on disk goes with its file, or, where forks still need that, is not brought back with them.
absl::Status Sequences::Delete(const SequenceHandle& handle) {
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

}  // namespace seine
