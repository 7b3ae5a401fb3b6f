// AdminService's GetMetrics.
#include "absl/strings/str_cat.h"
#include "index/counts/counts.h"
#include "index/counts/histogram.h"
#include "index/index.h"
#include "kernels/backend.h"
#include "service/access/caller.h"
#include "service/calls/calls.h"
#include "service/catalog.h"
#include "service/fields/error.h"

namespace seine {
namespace {

void ToProto(const Index& index, bool codes_on_device, v1::IndexMetrics* out) {
  const IndexStats stats = index.stats();
  out->set_name(index.config().name);
  out->set_num_sequences(stats.num_sequences);
  out->set_code_bytes(stats.code_bytes);
  out->set_codes_on_device(codes_on_device);
  out->set_store_bytes(stats.store_bytes - stats.subspace_bytes);
  out->set_subspace_bytes(stats.subspace_bytes);
  out->set_query_bytes(stats.query_bytes);
  out->set_other_bytes(stats.other_bytes);
  const IndexCounts* const counts = index.counts();
  if (counts == nullptr) return;
  const HistogramReading steps = counts->steps();
  out->mutable_step_buckets()->Assign(steps.counts.begin(), steps.counts.end());
  out->set_step_seconds(static_cast<double>(steps.sum_ns) * 1e-9);
  const IndexTotals totals = counts->totals();
  out->set_tokens_appended(totals.appended);
  out->set_candidates(totals.candidates);
  out->set_attended_tokens(totals.attended);
  const QualityReading quality = counts->quality();
  out->set_quality_samples(quality.samples);
  out->set_quality_sets(quality.recall.count());
  out->set_quality_recall_sum(quality.recall.sum());
  out->set_quality_attention_mass_sum(quality.attention_mass.sum());
  out->set_quality_predicted_sets(quality.predicted_recall.count());
  out->set_quality_predicted_recall_sum(quality.predicted_recall.sum());
}

}  // namespace

absl::Status GetMetrics(Core& core, const v1::GetMetricsRequest&, v1::GetMetricsResponse* response) {
  response->set_counting(core.counts != nullptr);
  response->set_uptime_seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - core.started).count());
  response->set_calls(core.calls.load(std::memory_order_relaxed));
  response->set_errors(core.errors.load(std::memory_order_relaxed));
  response->set_executor_queue(core.QueuedCalls());
  response->set_executor_refused(core.RefusedCalls());
  const HistogramReading bounds;
  for (int b = 0; b < kBounds && core.counts != nullptr; ++b) response->add_bucket_seconds(bounds.bound_seconds(b));
  for (const auto& index : core.catalog.List(CurrentTenant())) {
    ToProto(*index, core.backend->codes_on_device(), response->add_indexes());
  }
  const auto bytes = static_cast<int64_t>(response->ByteSizeLong());
  if (bytes <= core.options.max_message_bytes) return absl::OkStatus();
  return Explain(absl::OutOfRangeError(absl::StrCat("the indexes take ", bytes, " bytes, more than ",
                                                    core.options.max_message_bytes, ", the message limit")),
                 "");
}

}  // namespace seine
