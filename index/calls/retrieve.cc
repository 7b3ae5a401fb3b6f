// Retrieval of a batch: checks, the search, and what is learnt from having been asked.
#include <algorithm>
#include <utility>

#include "index/bytes/pace.h"
#include "index/calls/index_impl.h"
#include "index/quality/monitor.h"
#include "index/retrieval/search_batch.h"
#include "kernels/host.h"
#include "profile/field_error.h"

namespace seine {

absl::StatusOr<SequenceRef> IndexImpl::CheckItem(const RetrieveItem& item) const {
  absl::StatusOr<SequenceRef> sequence = sequences_.Find(item.sequence);
  if (!sequence.ok()) return sequence;
  const Geometry& g = context_.config.geometry;
  if (absl::Status s = checks_.CheckLayer(item.layer); !s.ok()) return s;
  if (item.device != nullptr) {
    if (absl::Status s = CheckDevice(item); !s.ok()) return s;
    NoteStep();
    if (context_.counts != nullptr) (*sequence)->use.Asked(item.layer, context_.counts.get());
    return sequence;
  }
  if (item.queries == nullptr) return BadField("queries", "no data");
  NoteStep();
  const ConstRows rows{item.queries, g.head_dim * sizeof(float), DType::kFloat32};
  const auto count = static_cast<int>(std::max<int64_t>(1, item.prompt_tokens) * g.num_q_heads);
  const int64_t bad = host::FirstNonFinite(rows, count, g.head_dim);
  if (bad < 0 && context_.counts != nullptr) (*sequence)->use.Asked(item.layer, context_.counts.get());
  if (bad < 0) return sequence;
  return BadField("queries", item.prompt_tokens > 0 ? absl::StrCat("token ", bad / g.num_q_heads, ", ") : "", "head ",
                  bad % g.num_q_heads, " holds NaN or infinity, or its norm overflows");
}

absl::Status IndexImpl::CheckDevice(const RetrieveItem& item) const {
  const DeviceTensors& device = *item.device;
  if (context_.backend->attention() == nullptr) {
    return BadField("device", "given, and the backend ", context_.backend->name(), " has none that attends");
  }
  if (context_.config.subspace || context_.eviction.accumulates() || context_.kept_queries() > 0) {
    return BadField("device", "given, and the index looks at queries (eviction, subspace)");
  }
  if (item.prompt_tokens > 0) return BadField("device", "given with a prompt's queries");
  if (device.queries == nullptr) return BadField("device", "no queries");
  if ((device.output == nullptr) != (device.log_sum_exp == nullptr)) {
    return BadField("device", "output and log_sum_exp are given together");
  }
  DeviceAttention* const attention = context_.backend->attention();
  if (!attention->CanAwait(device.stream)) {
    return BadField("device", "its stream is another device's, or captured into a graph, which cannot hold a call");
  }
  const Geometry& g = context_.config.geometry;
  const std::pair<const char*, const float*> tensors[] = {
      {"queries", device.queries}, {"output", device.output}, {"log_sum_exp", device.log_sum_exp}};
  for (const auto& [name, data] : tensors) {
    const size_t bytes = sizeof(float) * g.num_q_heads * (data == device.log_sum_exp ? 1 : g.head_dim);
    if (data == nullptr || attention->Holds(data, bytes)) continue;
    return BadField("device", name,
                    " is not in the memory of the device that searches, but the host's or another device's");
  }
  return absl::OkStatus();
}

// A decode step asks at the position of the token that it has just appended. One that asks first is a token early,
// which matters to no moment.
void IndexImpl::RecordQueries(const SequenceRef& sequence, const RetrieveItem& item, int64_t num_tokens) const {
  if (item.device != nullptr) return;
  if (sequence->layers[item.layer]->RecordQueries(num_tokens - 1, item.queries)) reencoder_.Add(sequence, item.layer);
}

absl::StatusOr<std::vector<ItemAnswer>> Index::Retrieve(absl::Span<const RetrieveItem> items,
                                                        const SearchParams& params,
                                                        const ProgressCallback& progress) const {
  const auto checked = Check(params);
  if (!checked.ok()) return checked.status();
  return Retrieve(items, *checked, progress);
}

absl::StatusOr<std::vector<ItemAnswer>> IndexImpl::Retrieve(absl::Span<const RetrieveItem> items,
                                                            const Checked<SearchParams>& params,
                                                            const ProgressCallback& progress) const {
  if (absl::Status s = CheckOwn(params); !s.ok()) return s;
  std::vector<ItemAnswer> answers(items.size());
  SearchBatch batch(&context_);
  for (size_t i = 0; i < items.size(); ++i) {
    absl::StatusOr<SequenceRef> sequence = CheckItem(items[i]);
    answers[i].status = sequence.status();
    if (sequence.ok() && items[i].positions != nullptr) {
      answers[i].status = BadField("positions", "given to a retrieval, which chooses them itself");
    }
    if (sequence.ok() && items[i].prompt_tokens > 0) {
      answers[i].status = BadField("queries", "a prompt's, which are attended and not retrieved for");
    }
    if (!answers[i].status.ok()) continue;
    if (absl::Status s = reencoder_.FinishDue(*sequence, items[i].layer); !s.ok()) return s;
    batch.Add(*std::move(sequence), &items[i], i);
  }
  if (absl::Status s = batch.Search(*params, progress); !s.ok()) return s;
  if (context_.quality != nullptr) context_.quality->Sample(batch);
  for (size_t t = 0; t < batch.targets().size(); ++t) batch.ReadAnswer(t, &answers[batch.targets()[t].place]);
  batch.KeepQueries();
  batch.Unlock();
  for (const SearchBatch::Target& target : batch.targets()) {
    const ItemAnswer& answer = answers[target.place];
    if (answer.path != SearchMode::kDense) RecordQueries(target.sequence, *target.item, answer.num_tokens);
  }
  return answers;
}

}  // namespace seine
