// What a layer reports of the positions that its heads retain: BeginReport and EndReport of layer.h.
#include <new>

#include "index/sequence/layer.h"

namespace seine {

void Layer::BeginReport(RetainedReport report, Retained* retained, DroppedPositions* dropped) const {
  if (retained == nullptr) return;
  *retained = {};
  retained->report = report;
  retained->evictions_before = evictions_;
  if (report == RetainedReport::kDropped) dropped->Watch(num_heads());
}

void Layer::EndReport(DroppedPositions* dropped, Retained* retained) const {
  if (retained == nullptr || retained->report == RetainedReport::kNone) return;
  retained->evictions = evictions_;
  retained->num_tokens = length_;
  try {
    retained->dropped = dropped->Take();
    for (int h = 0; h < num_heads(); ++h) {
      const HeadGroupCache& held = cache(h);
      retained->counts.push_back(static_cast<int32_t>(held.size()));
      if (retained->report != RetainedReport::kKept) continue;
      std::vector<int32_t>& kept = retained->kept.emplace_back(held.size());
      for (int64_t place = 0; place < held.size(); ++place) kept[place] = held.position(place);
    }
  } catch (const std::bad_alloc&) {  // what the call has changed stands
    retained->counts.clear();
    retained->dropped.clear();
    retained->kept.clear();
  }
}

}  // namespace seine
