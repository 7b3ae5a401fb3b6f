// Reports of retained positions between the wire and the index, and those of a stream's pieces made one: declared in
// convert/eviction.h.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/calls/convert/eviction.h"
#include "service/fields/error.h"

namespace seine {
namespace {

// The report where there is no memory for its lists: the call's change stands.
void TellLess(v1::Retained* out) {
  out->clear_counts();
  out->clear_dropped();
  out->clear_kept();
}

std::vector<int32_t> PositionsOf(const v1::Tensor& tensor) {
  std::vector<int32_t> positions(tensor.raw().size() / sizeof(int32_t));
  if (!positions.empty()) std::memcpy(positions.data(), tensor.raw().data(), tensor.raw().size());
  return positions;
}

// Adds positions of `from` to those of `out`, both ascending and with none in common.
void AddPositions(const v1::Tensor& from, v1::Tensor* out) {
  const std::vector<int32_t> one = PositionsOf(*out), other = PositionsOf(from);
  std::vector<int32_t> both;
  both.reserve(one.size() + other.size());
  std::merge(one.begin(), one.end(), other.begin(), other.end(), std::back_inserter(both));
  SetVector(both, out);
}

// Makes `piece`, which comes after `before`, the report of both. Where evictions came between that neither tells of, it
// stays alone, and who follows sees by evictions_before that it has missed some.
void Prepend(v1::Retained* before, v1::Retained* piece) {
  const bool whole = piece->report() == v1::RETAINED_REPORT_KEPT;
  if (!whole && before->evictions() != piece->evictions_before()) return;
  piece->set_evictions_before(before->evictions_before());
  if (whole) return;
  if (!before->has_counts()) return TellLess(piece);
  if (piece->dropped().empty()) return piece->mutable_dropped()->Swap(before->mutable_dropped());
  for (int h = 0; h < before->dropped_size(); ++h) AddPositions(before->dropped(h), piece->mutable_dropped(h));
}

bool Continues(const v1::LayerRetained& before, const v1::AppendItem& item, const v1::Retained& piece) {
  const v1::SequenceHandle &a = before.handle(), &b = item.handle();
  return before.layer() == item.layer() && a.index() == b.index() && a.id() == b.id() &&
         a.generation() == b.generation() && before.retained().report() == piece.report();
}

}  // namespace

absl::Status ReportFrom(v1::RetainedReport wire, const std::string& field, RetainedReport* report) {
  if (!v1::RetainedReport_IsValid(wire)) {
    return FieldError("UNKNOWN_ENUM", field, absl::StrCat("no such value: ", static_cast<int>(wire)));
  }
  *report = static_cast<RetainedReport>(wire);
  return absl::OkStatus();
}

void ToProto(const Retained& retained, v1::Retained* out) {
  out->set_report(static_cast<v1::RetainedReport>(retained.report));
  out->set_evictions_before(retained.evictions_before);
  out->set_evictions(retained.evictions);
  out->set_num_tokens(retained.num_tokens);
  if (retained.counts.empty()) return;
  try {
    SetVector(retained.counts, out->mutable_counts());
    for (const std::vector<int32_t>& head : retained.dropped) SetVector(head, out->add_dropped());
    for (const std::vector<int32_t>& head : retained.kept) SetVector(head, out->add_kept());
  } catch (const std::bad_alloc&) {
    TellLess(out);
  }
}

void AddPiece(const v1::AppendItem& item, v1::Retained piece, v1::AppendStreamResponse* totals) {
  if (!totals->retained().empty()) {
    v1::LayerRetained& last = *totals->mutable_retained()->rbegin();
    if (Continues(last, item, piece)) {
      try {
        Prepend(last.mutable_retained(), &piece);
      } catch (const std::bad_alloc&) {
        TellLess(&piece);
      }
      last.mutable_retained()->Swap(&piece);
      return;
    }
  }
  v1::LayerRetained* added = totals->add_retained();
  *added->mutable_handle() = item.handle();
  added->set_layer(item.layer());
  added->mutable_retained()->Swap(&piece);
}

}  // namespace seine
