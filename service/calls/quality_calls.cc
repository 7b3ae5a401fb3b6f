// AdminService's CompareExact and DescribeStep.
#include <vector>

#include "service/calls/calls.h"
#include "service/calls/convert/convert.h"
#include "service/fields/error.h"

namespace seine {
namespace {

void ToProto(const HeadComparison& head, v1::HeadComparison* out) {
  out->set_layer(head.layer);
  out->set_kv_head(head.kv_head);
  out->set_sets(head.sets);
  out->set_recall(head.recall);
  out->set_least_recall(head.least_recall);
  out->set_attention_mass(head.attention_mass);
  if (head.predicted_recall) out->set_predicted_recall(*head.predicted_recall);
}

void ToProto(const StepSet& set, v1::StepSet* out) {
  out->set_kv_head(set.kv_head);
  out->set_q_head(set.q_head);
  out->mutable_positions()->Assign(set.positions.begin(), set.positions.end());
  out->mutable_weights()->Assign(set.weights.begin(), set.weights.end());
  out->set_sink(set.sink);
  out->set_local(set.local);
  out->set_found(set.found);
  out->set_tail(set.tail);
  out->set_recall(set.recall);
}

}  // namespace

absl::Status CompareExact(Core& core, const v1::CompareExactRequest& request, v1::CompareExactResponse* response) {
  auto index = FindIndex(core, request.index(), "index");
  if (!index.ok()) return index.status();
  auto search = ParamsFrom(request.selector(), (*index)->config());
  if (!search.ok()) return search.status();
  if (search->method == Method::kExact) {
    return FieldError("CONFLICT", "selector.exact", "is what the answers are compared with");
  }
  if (auto checked = (*index)->Check(*search); !checked.ok()) return Explain(checked.status(), "selector");
  ComparisonParams params;
  params.search = *search;
  params.layers.assign(request.layers().begin(), request.layers().end());
  if (request.samples() != 0) params.samples = request.samples();
  std::vector<SequenceHandle> handles;
  if (!request.sequence().empty()) handles.push_back({request.sequence(), 0});
  const auto report = (*index)->CompareExact(handles, params);
  if (!report.ok()) return Explain(report.status(), "");
  for (const HeadComparison& head : report->heads) ToProto(head, response->add_heads());
  response->set_compared(report->compared);
  response->set_dropped(report->dropped);
  return absl::OkStatus();
}

absl::Status DescribeStep(Core& core, const v1::DescribeStepRequest& request, v1::DescribeStepResponse* response) {
  SequenceHandle handle;
  auto index = ResolveHandle(core, request.handle(), "handle", &handle);
  if (!index.ok()) return index.status();
  const IndexConfig& config = (*index)->config();
  const int64_t set_bytes = 80 + int64_t{9} * config.search.top_k;  // positions take up to five bytes
  if (auto s = CheckAnswer(core, config.geometry.num_q_heads, set_bytes, "handle.index"); !s.ok()) return s;
  const auto step = (*index)->DescribeStep(handle, request.layer());
  if (!step.ok()) return Explain(step.status(), "");
  response->set_position(step->position);
  response->set_num_tokens(step->num_tokens);
  for (const StepSet& set : step->sets) ToProto(set, response->add_sets());
  return absl::OkStatus();
}

}  // namespace seine
