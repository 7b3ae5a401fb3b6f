// AdminService's CompareExact.
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

}  // namespace seine
